"""NASNet-like network: cells of five pairs of branches, each cell fed by the two before; RMSProp.

Pesto's settings: --cells 4 --filters 212 (or 6 and 168) --size 224 --batch 32 --classes 1000
"""

import keras
from keras import layers

from training import fit, images, options


def fitted(x, filters, like, name):
    """Give an input a number of filters and the size of another."""
    stride = -(-x.shape[1] // like.shape[1])
    x = layers.ReLU(name=f"{name}_relu")(x)
    x = layers.Conv2D(filters, 1, stride, padding="same", use_bias=False, name=f"{name}_fit")(x)
    return layers.BatchNormalization(name=f"{name}_norm")(x)


def separable(x, filters, size, stride, name):
    """Apply two depthwise-separable convolutions."""
    for number, step in enumerate((stride, 1)):
        x = layers.ReLU(name=f"{name}_relu{number}")(x)
        x = layers.SeparableConv2D(
            filters, size, step, padding="same", use_bias=False, name=f"{name}_conv{number}"
        )(x)
        x = layers.BatchNormalization(name=f"{name}_norm{number}")(x)
    return x


def smoothed(x, name):
    """Average over three by three."""
    return layers.AveragePooling2D(3, 1, "same", name=name)(x)


def normal_cell(x, before, filters, name):
    """Make five sums of two branches each, and concatenate them."""
    x, before = fitted(x, filters, x, f"{name}_x"), fitted(before, filters, x, f"{name}_before")
    pairs = [
        (separable(x, filters, 3, 1, f"{name}_b0_left"), x),
        (
            separable(before, filters, 3, 1, f"{name}_b1_left"),
            separable(x, filters, 5, 1, f"{name}_b1_right"),
        ),
        (smoothed(x, f"{name}_b2_left"), before),
        (smoothed(before, f"{name}_b3_left"), smoothed(before, f"{name}_b3_right")),
        (
            separable(before, filters, 5, 1, f"{name}_b4_left"),
            separable(before, filters, 3, 1, f"{name}_b4_right"),
        ),
    ]
    sums = [layers.Add(name=f"{name}_b{i}_add")(list(pair)) for i, pair in enumerate(pairs)]
    return layers.Concatenate(name=f"{name}_join")([before, *sums])


def reduction_cell(x, before, filters, name):
    """Halve the size in five sums of branches."""
    x, before = fitted(x, filters, x, f"{name}_x"), fitted(before, filters, x, f"{name}_before")
    left = separable(x, filters, 5, 2, f"{name}_b0_left")
    first = layers.Add(name=f"{name}_b0_add")(
        [left, separable(before, filters, 7, 2, f"{name}_b0_right")]
    )
    largest = layers.MaxPooling2D(3, 2, "same", name=f"{name}_b1_left")(x)
    second = layers.Add(name=f"{name}_b1_add")(
        [largest, separable(before, filters, 7, 2, f"{name}_b1_right")]
    )
    mean = layers.AveragePooling2D(3, 2, "same", name=f"{name}_b2_left")(x)
    third = layers.Add(name=f"{name}_b2_add")(
        [mean, separable(before, filters, 5, 2, f"{name}_b2_right")]
    )
    fourth = layers.Add(name=f"{name}_b3_add")(
        [largest, separable(first, filters, 3, 1, f"{name}_b3_right")]
    )
    smooth = smoothed(first, f"{name}_b4_left")
    fifth = layers.Add(name=f"{name}_b4_add")([smooth, second])
    return layers.Concatenate(name=f"{name}_join")([second, third, fourth, fifth])


def nasnet(given):
    """Build the network: three groups of cells with a reduction cell between them."""
    pictures = keras.Input((given.size, given.size, 3))
    x = layers.Conv2D(given.stem, 3, 2, padding="same", use_bias=False, name="stem_conv")(pictures)
    x = before = layers.BatchNormalization(name="stem_norm")(x)
    for group in range(3):
        filters = given.filters << group
        for cell in range(given.cells):
            x, before = normal_cell(x, before, filters, f"cell{group * given.cells + cell}"), x
        if group < 2:
            x, before = reduction_cell(x, before, 2 * filters, f"reduction{group}"), x
    x = layers.GlobalAveragePooling2D(name="mean")(layers.ReLU(name="last_relu")(x))
    return keras.Model(pictures, layers.Dense(given.classes, name="classes")(x), name="nasnet")


if __name__ == "__main__":
    given = options(__doc__, batch=2, cells=1, filters=8, size=32, stem=8, classes=10)
    optimizer = keras.optimizers.RMSprop(1e-3)
    pictures, classes = images(given.batch, given.size, given.classes)
    fit(nasnet(given), optimizer, pictures, classes, given.train_steps)
