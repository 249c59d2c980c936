"""A step in a session starts from the recorded state and cycles through the batches."""

import numpy as np
import pytest
import tensorflow as tf

from enplace.frameworks.tensorflow.capture import step_of
from enplace.frameworks.tensorflow.step import OpenStep, plain_config


def counting_step(*batches):
    """Return a step that sums its batches."""
    total = tf.Variable(5.0, name="total")

    @tf.function(input_signature=[tf.TensorSpec(None)])
    def count(x):
        return total.assign_add(tf.reduce_sum(x))

    return step_of("count", count.get_concrete_function(), [[tf.constant(b)] for b in batches])


def values(step, n_steps, **options):
    with OpenStep(step, **options) as alone:
        return [float(alone.run()[0]) for _ in range(n_steps)]


def test_the_first_batch_follows_the_last():
    assert values(counting_step(1.0, 10.0), 4) == [6.0, 16.0, 17.0, 27.0]


def test_every_run_starts_from_the_recorded_state():
    step = counting_step(1.0)
    assert values(step, 2) == values(step, 2) == [6.0, 7.0]


def test_fed_batches_may_differ_in_shape():
    assert values(counting_step([1.0, 1.0], [1.0, 1.0, 1.0]), 2) == [7.0, 10.0]


def test_the_value_of_a_variable_can_be_read():
    step = counting_step(1.0)
    with OpenStep(step) as alone:
        assert alone.values(["total"])["total"] == 5.0
        alone.run()
        assert alone.values(["total"])["total"] == 6.0


def test_many_variables_are_read_and_set_in_few_calls(monkeypatch):
    step = counting_step(1.0)
    calls = []
    run = tf.compat.v1.Session.run
    monkeypatch.setattr(
        tf.compat.v1.Session, "run", lambda *words, **more: calls.append(1) or run(*words, **more)
    )
    with OpenStep(step) as alone:
        assert set(alone.values(step.variables)) == set(step.variables)
    assert len(calls) <= 3  # set, fill the batches, read


def test_variables_too_large_for_one_call_are_divided(monkeypatch):
    from enplace.frameworks.tensorflow import step as module

    monkeypatch.setattr(module, "CALL_BYTES", 1)
    test_the_value_of_a_variable_can_be_read()


@pytest.mark.parametrize(
    "values", [tf.constant([b"a", b"b"]), tf.ones((2,), tf.bfloat16), tf.constant([True, False])]
)
def test_an_iterator_can_yield_any_type(values):
    dataset = tf.data.Dataset.from_tensor_slices(values)

    @tf.function
    def passed(iterator):
        return tf.identity(next(iterator))

    iterator = iter(dataset)
    function = passed.get_concrete_function(iterator)
    flat = function.function_type.unpack_inputs(function.function_type.bind(iterator))
    with OpenStep(step_of("passed", function, [flat])) as alone:
        np.testing.assert_array_equal([alone.run()[0] for _ in range(2)], values.numpy())


def test_a_placed_graph_runs_on_its_devices():
    step = counting_step(1.0)
    for node in step.graph_def.node:
        node.device = "/device:CPU:1"
    metadata = tf.compat.v1.RunMetadata()
    options = tf.compat.v1.RunOptions(output_partition_graphs=True)
    with OpenStep(step, config=plain_config({"CPU": 2})) as alone:
        alone.run(options, metadata)
    names = {node.name for node in step.graph_def.node} - set(step.inputs)
    ran = {
        node.name: node.device
        for graph in metadata.partition_graphs
        for node in graph.node
        if node.name in names
    }
    assert set(ran) == names
    assert all(device.endswith("CPU:1") for device in ran.values())
