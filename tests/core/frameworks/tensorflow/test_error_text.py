"""An error of TensorFlow is reported by its reason, without the text before it."""

import keras
import pytest
import tensorflow as tf

from enplace.frameworks.tensorflow.error_text import (
    describe_out_of_memory,
    first_line,
    is_out_of_memory,
)

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


ALLOCATOR = (
    "Graph execution error:\n\nDetected at node dense/MatMul defined at (most recent call last):\n"
    "OOM when allocating tensor with shape[32768,65536] and type float on "
    "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc\n"
    "\t [[{{node dense/MatMul}}]]\nHint: If you want to see a list of allocated tensors..."
)
CUBLAS = (
    "Attempting to perform BLAS operation using StreamExecutor without BLAS support\n"
    "\t [[{{node dense/MatMul}}]]"
)
CUDNN = "Failed to get convolution algorithm. This is probably because cuDNN failed to initialize"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            tf.errors.ResourceExhaustedError(None, None, ALLOCATOR),
            "out of memory in op 'dense/MatMul' (for a tensor of 8.0 GiB, 32768 × 65536 on GPU:0);",
        ),
        (tf.errors.InternalError(None, None, CUBLAS), "out of memory in op 'dense/MatMul';"),
        (tf.errors.UnknownError(None, None, CUDNN), "out of memory;"),
        (RuntimeError("CUDNN_STATUS_ALLOC_FAILED"), "out of memory;"),
        (MemoryError(), "out of memory;"),
    ],
)
def test_any_lack_of_memory_is_one_line_with_the_op_and_its_tensor(error, line):
    assert is_out_of_memory(error)
    found = describe_out_of_memory(str(error))
    assert line in found
    assert "use a smaller batch" in found
    assert "\n" not in found


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    assert not is_out_of_memory(tf.errors.InvalidArgumentError(None, None, SHAPES))


def test_the_op_that_an_eager_call_ran_is_left_out():
    text = "{{function_node __wrapped__Next}} cache_0.lockfile; Permission denied [Op:Next] name: "
    assert first_line(ValueError(text)) == "cache_0.lockfile; Permission denied"
