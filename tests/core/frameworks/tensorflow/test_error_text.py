"""What is said of an error is its reason, whatever TensorFlow puts before it."""

import keras
import pytest
import tensorflow as tf

from enplace.frameworks.tensorflow.error_text import first_line

SHAPES = "Incompatible shapes: [2] vs. [3]"


def failing_graph():
    """Any length is fine while it is traced."""

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def step(a):
        return a - tf.ones(3)

    step(tf.ones(2))


def failing_while_traced():
    @tf.function
    def step():
        raise ValueError("no such vocabulary")

    step()


def failing_layer():
    class Picky(keras.layers.Layer):
        def call(self, x):
            raise ValueError("wants pictures")

    Picky()(tf.ones((2, 3)))


def failing_layer_while_traced():
    tf.function(failing_layer)()


@pytest.mark.parametrize(
    ("fail", "heading", "reason"),
    [
        (failing_graph, "Graph execution error:", SHAPES),
        (failing_while_traced, "in user code:", "ValueError: no such vocabulary"),
        (failing_layer_while_traced, "in user code:", "wants pictures"),
        (failing_layer, "Exception encountered when calling", "wants pictures"),
    ],
)
def test_the_reason_and_no_heading(fail, heading, reason):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        fail()
    assert str(caught.value).startswith(heading)
    assert first_line(caught.value) == reason


def test_the_first_of_several_errors():
    """As kernels that fail at the same time are reported."""
    message = (
        "Graph execution error:\n\n2 root error(s) found.\n"
        f"  (0) INVALID_ARGUMENT:  {SHAPES}\n\t [[{{{{node sub}}}}]]\n"
        "  (1) INVALID_ARGUMENT:  another\n"
    )
    assert SHAPES in first_line(tf.errors.InvalidArgumentError(None, None, message))


def test_a_function_of_one_line():
    """TensorFlow names it in front of the reason and leaves the heading out."""
    step = tf.function(lambda a: tf.subtract(a, tf.ones(3)), [tf.TensorSpec([None])])
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        step(tf.ones(2))
    assert first_line(caught.value) == SHAPES


def test_an_error_that_says_nothing():
    assert first_line(AssertionError()) == ""
