"""VGG-19: sixteen convolutions and three dense layers; SGD with momentum, in ``model.fit``.

As published: --batch 64 --size 224 --classes 1000 --width 64
"""

import keras
from keras import layers

from training import fit, images, options

BLOCKS = ((1, 2), (2, 2), (4, 4), (8, 4), (8, 4))
"""Width, in multiples of the first, and number of convolutions."""


def vgg19(given):
    """Build the network."""
    x = pictures = keras.Input((given.size, given.size, 3))
    for block, (times, count) in enumerate(BLOCKS):
        for number in range(count):
            name = f"block{block}_conv{number}"
            x = layers.Conv2D(times * given.width, 3, padding="same", activation="relu", name=name)(
                x
            )
        x = layers.MaxPooling2D(2, padding="same", name=f"block{block}_pool")(x)
    x = layers.Flatten(name="flatten")(x)
    for number in range(2):
        x = layers.Dense(64 * given.width, activation="relu", name=f"dense{number}")(x)
        x = layers.Dropout(0.5, name=f"drop{number}")(x)
    return keras.Model(pictures, layers.Dense(given.classes, name="classes")(x), name="vgg19")


if __name__ == "__main__":
    given = options(__doc__, batch=4, size=32, classes=10, width=4)
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    pictures, classes = images(given.batch, given.size, given.classes)
    fit(vgg19(given), optimizer, pictures, classes, given.train_steps)
