"""Inception-v3: blocks of parallel branches; RMSProp, in ``model.fit``.

As published: --batch 64 --size 299 --classes 1000 --divide 1 (divides all widths)
"""

import keras
from keras import layers

from training import fit, images, options


class Builder:
    """Adds convolutions with normalisation, numbered within their block."""

    def __init__(self, divide):
        self.divide = divide
        self.block, self.count = "stem", 0

    def conv(self, x, filters, size, stride=1, padding="same"):
        """Convolution, batch normalisation, ReLU."""
        name = f"{self.block}_{self.count}"
        self.count += 1
        filters = max(filters // self.divide, 1)
        x = layers.Conv2D(
            filters, size, stride, padding=padding, use_bias=False, name=f"{name}_conv"
        )(x)
        x = layers.BatchNormalization(scale=False, name=f"{name}_norm")(x)
        return layers.ReLU(name=f"{name}_relu")(x)

    def chain(self, x, *parts):
        """Add several convolutions, each (filters, size)."""
        for filters, size in parts:
            x = self.conv(x, filters, size)
        return x

    def begin(self, block):
        """Name the next block."""
        self.block, self.count = block, 0

    def join(self, *branches):
        """Concatenate the branches of the block."""
        return layers.Concatenate(name=f"{self.block}_join")(list(branches))

    def pool(self, x, kind=layers.AveragePooling2D, stride=1):
        """Pool three by three."""
        name = f"{self.block}_pool"
        return kind(3, stride, "same", name=name)(x)

    def block_a(self, x, pooled):
        """Add a block at the largest size: 1x1, 5x5 and two 3x3."""
        return self.join(
            self.conv(x, 64, 1),
            self.chain(x, (48, 1), (64, 5)),
            self.chain(x, (64, 1), (96, 3), (96, 3)),
            self.conv(self.pool(x), pooled, 1),
        )

    def block_b(self, x, inner):
        """Add a block at the middle size: 7x7 as rows and columns."""
        row, column = (1, 7), (7, 1)
        return self.join(
            self.conv(x, 192, 1),
            self.chain(x, (inner, 1), (inner, row), (192, column)),
            self.chain(x, (inner, 1), (inner, column), (inner, row), (inner, column), (192, row)),
            self.conv(self.pool(x), 192, 1),
        )

    def block_c(self, x):
        """Add a block at the smallest size, with branches that divide again."""
        row, column = (1, 3), (3, 1)
        middle = self.conv(x, 384, 1)
        deep = self.chain(x, (448, 1), (384, 3))
        return self.join(
            self.conv(x, 320, 1),
            self.conv(middle, 384, row),
            self.conv(middle, 384, column),
            self.conv(deep, 384, row),
            self.conv(deep, 384, column),
            self.conv(self.pool(x), 192, 1),
        )

    def halve(self, x, left, right):
        """Halve the size: two branches that end with a stride, and a maximum."""
        ends = []
        for *parts, (filters, size) in (left, right):
            ends.append(self.conv(self.chain(x, *parts), filters, size, 2))
        return self.join(*ends, self.pool(x, layers.MaxPooling2D, 2))


def inception_v3(given):
    """Build the network."""
    build = Builder(given.divide)
    pictures = keras.Input((given.size, given.size, 3))
    x = build.conv(pictures, 32, 3, 2)
    x = build.chain(x, (32, 3), (64, 3))
    x = layers.MaxPooling2D(3, 2, "same", name="stem_pool0")(x)
    x = build.chain(x, (80, 1), (192, 3))
    x = layers.MaxPooling2D(3, 2, "same", name="stem_pool1")(x)
    for number, pooled in enumerate((32, 64, 64)):
        build.begin(f"mixed{number}")
        x = build.block_a(x, pooled)
    build.begin("mixed3")
    x = build.halve(x, [(384, 3)], [(64, 1), (96, 3), (96, 3)])
    for number, inner in enumerate((128, 160, 160, 192), 4):
        build.begin(f"mixed{number}")
        x = build.block_b(x, inner)
    build.begin("mixed8")
    x = build.halve(x, [(192, 1), (320, 3)], [(192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3)])
    for number in (9, 10):
        build.begin(f"mixed{number}")
        x = build.block_c(x)
    x = layers.GlobalAveragePooling2D(name="mean")(x)
    return keras.Model(pictures, layers.Dense(given.classes, name="classes")(x), name="inception")


if __name__ == "__main__":
    given = options(__doc__, batch=2, size=75, classes=10, divide=8)
    optimizer = keras.optimizers.RMSprop(1e-3)
    pictures, classes = images(given.batch, given.size, given.classes)
    fit(inception_v3(given), optimizer, pictures, classes, given.train_steps)
