"""A layer of attention whose heads are ops of their own, and variables without Keras."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

BATCH, LENGTH, WIDTH, HEADS, STEPS = 16, 64, 128, 4, 5

tf.random.set_seed(7)


def matrix(rows, columns, name):
    """Return a variable with small random numbers."""
    return tf.Variable(tf.random.normal((rows, columns), stddev=0.05), name=name)


parts = ("query", "key", "value")
heads = [[matrix(WIDTH, WIDTH, f"head_{h}/{part}") for part in parts] for h in range(HEADS)]
merge, last = matrix(HEADS * WIDTH, WIDTH, "merge"), matrix(WIDTH, WIDTH, "last")
variables = [*(weights for head in heads for weights in head), merge, last]


def attend(x, number):
    """Return what one head makes of a batch of sequences."""
    with tf.name_scope(f"head_{number}"):
        query, key, value = (tf.tensordot(x, weights, 1) for weights in heads[number])
        scores = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) * WIDTH**-0.5)
        return tf.matmul(scores, value)


@tf.function
def train_step(x, wanted):
    """Train on one batch and return the loss."""
    with tf.GradientTape() as tape:
        mixed = tf.concat([attend(x, number) for number in range(HEADS)], 2)
        found = tf.tensordot(tf.nn.relu(tf.tensordot(mixed, merge, 1)), last, 1)
        loss = tf.reduce_mean(tf.square(found - wanted))
    for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
        variable.assign_sub(0.1 * gradient)
    return loss


x = tf.random.normal((BATCH, LENGTH, WIDTH), seed=7)
for _ in range(STEPS):
    train_step(x, tf.roll(x, 1, 1))
