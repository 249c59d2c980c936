"""An error of TensorFlow is reported by its reason, without the text before it."""

import keras
import pytest
import tensorflow as tf

from enplace.frameworks.tensorflow.error_text import first_line

SHAPES = "Incompatible shapes: [2] vs. [3]"


def failing_graph():
    """Return a step that can be traced but fails when it runs."""

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
def test_the_reason_is_shown_without_its_heading(fail, heading, reason):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        fail()
    assert str(caught.value).startswith(heading)
    assert first_line(caught.value) == reason


def test_only_the_first_of_several_errors_is_shown():
    """TensorFlow lists errors of kernels that fail at the same time."""
    message = (
        "Graph execution error:\n\n2 root error(s) found.\n"
        f"  (0) INVALID_ARGUMENT:  {SHAPES}\n\t [[{{{{node sub}}}}]]\n"
        "  (1) INVALID_ARGUMENT:  another\n"
    )
    assert SHAPES in first_line(tf.errors.InvalidArgumentError(None, None, message))


def test_the_name_of_a_one_line_function_is_removed():
    """TensorFlow prints the name before the reason and omits the heading."""
    step = tf.function(lambda a: tf.subtract(a, tf.ones(3)), [tf.TensorSpec([None])])
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        step(tf.ones(2))
    assert first_line(caught.value) == SHAPES


def test_an_error_without_a_message_shows_its_type():
    assert first_line(AssertionError()) == ""


def test_a_name_in_an_error_does_not_control_the_terminal():
    error = ValueError("Node 'a\x9b2J\u202eb': invalid")
    assert first_line(error) == "Node 'a 2J b': invalid"
