"""Shared parts of the model scripts: options, random batches and a training loop.

A script defines its loss; this trains it for a few steps with its own ``tf.function``, as most
TensorFlow code outside Keras does, and prints the loss of each step.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

SEED = 7


def options(description, **defaults):
    """Read whole-number options such as ``--batch 16`` from the command line."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for name, value in {**defaults, "train_steps": 5}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value, metavar="N")
    keras.utils.set_random_seed(SEED)
    return parser.parse_args()


def tokens(batch, length, vocabulary, count=8):
    """Make batches of random sentences: whole numbers of shape (batch, length)."""
    shape = (count, batch, length)
    return tf.random.uniform(shape, 0, vocabulary, tf.int32, seed=SEED)


def images(batch, size, classes, count=4):
    """Make batches of random pictures, and their classes."""
    pictures = tf.random.uniform((count, batch, size, size, 3), seed=SEED)
    return pictures, tf.random.uniform((count, batch), 0, classes, tf.int32, seed=SEED)


def cross_entropy(logits, targets):
    """Return the mean loss of predicting ``targets``."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits))


def train(loss_of, module, optimizer, batches, steps):
    """Train a module: ``loss_of`` gets the parts of a batch."""

    @tf.function
    def train_step(*batch):
        with tf.GradientTape() as tape:
            loss = loss_of(*batch)
        variables = module.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    # One sample is enough to create the variables; the whole batch may not fit one device.
    loss_of(*(part[0][:1] for part in batches))
    optimizer.build(module.trainable_variables)
    for step in range(steps):
        loss = train_step(*(part[step % len(part)] for part in batches))
        print(f"step {step + 1}: loss {float(loss):.4f}")


def fit(model, optimizer, pictures, classes, steps):
    """Train a Keras model that classifies pictures with ``model.fit``."""
    model.compile(
        optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False
    )
    batches = tf.data.Dataset.from_tensor_slices((pictures, classes)).repeat()
    model.fit(batches, steps_per_epoch=steps, shuffle=False, verbose=2)
