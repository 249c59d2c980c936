"""Known shapes and sizes of the tensors of a step."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from enplace.frameworks.tensorflow.capture import step_of
from enplace.frameworks.tensorflow.shapes import tensor_shapes
from enplace.frameworks.tensorflow.step import LoadError, Step


def step_with(function, *calls):
    concrete = function.get_concrete_function(*calls[0])
    return step_of("it", concrete, calls)


def test_sizes_come_from_the_recorded_batches():
    weight = tf.Variable(tf.ones((3, 5), tf.float16), name="weight")

    @tf.function(input_signature=[tf.TensorSpec((None, 3), tf.float16)])
    def product(x):
        return tf.reduce_sum(tf.matmul(x, weight, name="product"))

    shapes = tensor_shapes(step_with(product, [tf.ones((7, 3), tf.float16)]))
    assert shapes["product:0"].shape == (7, 5)
    assert shapes["product:0"].n_bytes == 7 * 5 * 2
    assert shapes["weight:0"].n_bytes is None


def test_batches_of_an_iterator_have_known_sizes():
    data = tf.data.Dataset.from_tensor_slices(np.zeros((8, 3), np.float32)).repeat().batch(4)

    @tf.function
    def doubled(iterator):
        return tf.identity(next(iterator) * 2.0, name="doubled")

    iterator = iter(data)
    concrete = doubled.get_concrete_function(iterator)
    flat = concrete.function_type.unpack_inputs(concrete.function_type.bind(iterator))
    shapes = tensor_shapes(step_of("it", concrete, [flat]))
    assert shapes["mul:0"].n_bytes == 4 * 3 * 4


def test_shapes_that_vary_or_depend_on_values_are_unknown():
    @tf.function(input_signature=[tf.TensorSpec((None, 3))])
    def picked(x):
        return tf.where(x > 0.0, name="where"), tf.add(x, 1.0, name="add")

    shapes = tensor_shapes(step_with(picked, [tf.ones((2, 3))], [tf.ones((5, 3))]))
    assert shapes["where:0"].shape == (None, 2)
    assert shapes["add:0"].shape == (None, 3)
    assert shapes["where:0"].n_bytes is shapes["add:0"].n_bytes is None


def test_reading_shapes_does_not_change_the_step():
    @tf.function(input_signature=[tf.TensorSpec((None, 3))])
    def plus(x):
        return x + 1.0

    step = step_with(plus, [tf.ones((2, 3))])
    before = step.graph_def.SerializeToString(deterministic=True)
    tensor_shapes(step)
    assert isinstance(step, Step)
    assert step.graph_def.SerializeToString(deterministic=True) == before


def test_a_step_that_cannot_take_its_batches_is_refused_in_one_line():
    @tf.function(input_signature=[tf.TensorSpec(None)])
    def product(x):
        return tf.matmul(x, tf.ones((4, 2)))

    step = step_with(product, [tf.ones((32, 4))])
    odd = replace(step, batches=[(np.ones((32, 3), np.float32),)])
    with pytest.raises(LoadError, match=r"^it: it cannot take its batches: Dimensions must be"):
        tensor_shapes(odd)
