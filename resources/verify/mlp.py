"""Two towers of dense layers whose outputs are joined, trained with ``model.fit``."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

BATCH, FEATURES, UNITS, LAYERS, STEPS = 128, 256, 512, 3, 5

keras.utils.set_random_seed(7)


def tower(x, name):
    """Return the output of some dense layers."""
    for number in range(LAYERS):
        x = keras.layers.Dense(UNITS, activation="relu", name=f"{name}_{number}")(x)
    return x


features = keras.Input((FEATURES,))
joined = keras.layers.Concatenate()([tower(features, "left"), tower(features, "right")])
model = keras.Model(features, keras.layers.Dense(10, name="classes")(joined))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)

random = np.random.default_rng(7)
x = random.normal(size=(BATCH * STEPS, FEATURES)).astype("float32")
y = random.integers(0, 10, BATCH * STEPS)
model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
