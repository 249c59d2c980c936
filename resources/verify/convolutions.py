"""Two branches of convolutions with kernels of different sizes, trained by a loop of its own."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

BATCH, SIZE, FILTERS, LAYERS, STEPS = 16, 24, 12, 3, 5

keras.utils.set_random_seed(7)
pictures = keras.Input((SIZE, SIZE, 3))
branches = []
for name, kernel in (("fine", 3), ("coarse", 5)):
    x = pictures
    for number in range(LAYERS):
        layer = f"{name}_{number}"
        x = keras.layers.Conv2D(FILTERS, kernel, padding="same", activation="relu", name=layer)(x)
    branches.append(keras.layers.GlobalAveragePooling2D(name=f"{name}_mean")(x))
joined = keras.layers.Concatenate()(branches)
model = keras.Model(pictures, keras.layers.Dense(10, name="classes")(joined))
optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
optimizer.build(model.trainable_variables)


@tf.function
def train_step(images, classes):
    """Train on one batch and return the loss."""
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, model(images))
        loss = tf.reduce_mean(losses)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


images = tf.random.uniform((BATCH, SIZE, SIZE, 3), seed=7)
classes = tf.random.uniform((BATCH,), 0, 10, tf.int32, seed=7)
for _ in range(STEPS):
    train_step(images, classes)
