"""ResNet-50: bottleneck blocks around shortcuts; SGD with momentum, in ``model.fit``.

As published: --batch 64 --size 224 --classes 1000 --width 64 --depth 50
"""

import keras
from keras import layers

from training import fit, images, options

DEPTHS = {14: (1, 1, 1, 1), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Number of blocks in each of the four stages."""


def convolution(x, filters, size, stride, name):
    """Apply a convolution and batch normalisation."""
    x = layers.Conv2D(filters, size, stride, padding="same", use_bias=False, name=f"{name}_conv")(x)
    return layers.BatchNormalization(name=f"{name}_norm")(x)


def block(x, filters, stride, name):
    """Apply three convolutions and add a shortcut."""
    shortcut = x
    if stride > 1 or x.shape[-1] != 4 * filters:
        shortcut = convolution(x, 4 * filters, 1, stride, f"{name}_shortcut")
    for number, (width, size, step) in enumerate(
        [(filters, 1, 1), (filters, 3, stride), (4 * filters, 1, 1)]
    ):
        x = convolution(x, width, size, step, f"{name}_{number}")
        if number < 2:
            x = layers.ReLU(name=f"{name}_{number}_relu")(x)
    return layers.ReLU(name=f"{name}_relu")(layers.Add(name=f"{name}_add")([x, shortcut]))


def resnet(given):
    """Build the network."""
    pictures = keras.Input((given.size, given.size, 3))
    x = layers.ReLU(name="stem_relu")(convolution(pictures, given.width, 7, 2, "stem"))
    x = layers.MaxPooling2D(3, 2, padding="same", name="stem_pool")(x)
    for stage, count in enumerate(DEPTHS[given.depth]):
        for number in range(count):
            stride = 2 if stage and not number else 1
            x = block(x, given.width << stage, stride, f"stage{stage}_block{number}")
    x = layers.GlobalAveragePooling2D(name="mean")(x)
    return keras.Model(pictures, layers.Dense(given.classes, name="classes")(x), name="resnet")


if __name__ == "__main__":
    given = options(__doc__, batch=4, size=32, classes=10, width=8, depth=14)
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    pictures, classes = images(given.batch, given.size, given.classes)
    fit(resnet(given), optimizer, pictures, classes, given.train_steps)
