"""A captured step gives the same results as the function, bit for bit."""

import numpy as np
import pytest
import tensorflow as tf

from enplace.frameworks.tensorflow.capture import N_BATCHES, step_of
from enplace.frameworks.tensorflow.step import LoadError, OpenStep

N_STEPS = 5


@pytest.fixture(scope="module")
def batches():
    return [tf.random.stateless_normal((4, 3), (7, i)) for i in range(N_STEPS)]


def trained(weight, loss_of):
    """Return a training step of plain gradient descent."""

    @tf.function
    def train_step(*batch):
        with tf.GradientTape() as tape:
            loss = loss_of(*batch)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    return train_step


def weight_of(*shape):
    return tf.Variable(tf.random.stateless_normal(shape or (3, 3), (1, 2)), name="weight")


def flat_calls(function, calls):
    concrete = function.get_concrete_function(*calls[0])
    unpack, bind = concrete.function_type.unpack_inputs, concrete.function_type.bind
    return concrete, [unpack(bind(*call)) for call in calls]


def assert_same(function, calls, *variables, name="weight"):
    """Check that step and function have equal outputs and variables after every step."""
    concrete, flats = flat_calls(function, calls)
    step = step_of("it", concrete, flats)
    with OpenStep(step) as alone:
        outputs = [alone.run() for _ in range(N_STEPS)]
        left = alone.values(step.variables)
    for call, found in zip(calls, outputs, strict=False):
        for expected, value in zip(tf.nest.flatten(function(*call)), found, strict=True):
            np.testing.assert_array_equal(expected, value)
    for variable in variables:
        np.testing.assert_array_equal(variable, left[variable.name.partition(":")[0]])
    return step


def calls_of(*columns):
    return list(zip(*columns, strict=True))


def test_calls_with_one_tensor_are_recorded(batches):
    weight = weight_of()
    function = trained(weight, lambda x: tf.reduce_sum(tf.nn.relu(x @ weight)))
    step = assert_same(function, calls_of(batches), weight)
    assert step.losses == step.outputs
    assert step.trainable == {"weight"}
    assert len(step.batches) == N_STEPS


def test_nested_arguments_and_python_numbers_are_captured(batches):
    weight = weight_of()

    @tf.function
    def train_step(batch, scale):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((batch["x"] @ weight - batch["pair"][1]) ** 2) * scale
        weight.assign_sub(0.01 * tape.gradient(loss, weight))
        return {"loss": loss, "norm": tf.norm(weight), "weights": weight + 0.0}

    nested = [{"x": x, "pair": (x, x * 2.0)} for x in batches]
    step = assert_same(train_step, calls_of(nested, [0.5] * N_STEPS), weight)
    assert len(step.outputs) == 3
    assert step.losses == step.outputs[:1]


def test_an_iterator_among_other_arguments_is_captured(batches):
    weight = weight_of()
    dataset = tf.data.Dataset.from_tensor_slices(tf.stack(batches))

    @tf.function
    def train_step(iterator, scale):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((next(iterator) @ weight) ** 2) * scale
        weight.assign_sub(0.01 * tape.gradient(loss, weight))
        return loss

    iterator, scale = iter(dataset), tf.constant(0.5)
    concrete, flats = flat_calls(train_step, [(iterator, scale)])
    step = step_of("it", concrete, flats)
    assert len(step.batches) == N_STEPS
    iterator = iter(dataset)
    with OpenStep(step) as alone:
        for _ in range(N_STEPS):
            np.testing.assert_array_equal(alone.run()[0], train_step(iterator, scale))


def test_a_captured_iterator_brings_the_batches(batches):
    weight = weight_of()
    iterator = iter(tf.data.Dataset.from_tensors(batches[0]).repeat())
    function = trained(weight, lambda: tf.reduce_sum(next(iterator) @ weight))
    step = assert_same(function, [()] * N_STEPS, weight)
    assert len(step.batches) == N_BATCHES


def test_batches_of_another_shape_than_the_commonest_are_left_out(batches):
    weight = weight_of()
    rows = tf.data.Dataset.from_tensor_slices(tf.reshape(tf.stack(batches), (-1, 3)))
    iterator = iter(rows.take(5).batch(5).concatenate(rows.batch(8)))
    function = trained(weight, lambda x: tf.reduce_sum(next(x) @ weight))
    step = step_of("it", *flat_calls(function, [(iterator,)]))
    assert [batch[0].shape for batch in step.batches] == [(8, 3), (8, 3)]


def test_constants_and_variables_with_equal_names_are_captured(batches):
    twins = [weight_of(), weight_of()]
    shift = tf.constant(np.eye(3, dtype=np.float32)) + 0.0

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((x @ twins[0]) @ (twins[1] + shift))
        for twin, gradient in zip(twins, tape.gradient(loss, twins), strict=True):
            twin.assign_sub(0.01 * gradient)
        return loss

    step = assert_same(train_step, calls_of(batches))
    assert set(step.variables) == {"weight", "weight_1"}


def test_a_variable_passed_as_an_argument_is_captured(batches):
    weight = weight_of()

    @tf.function
    def train_step(variable, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x @ variable)
        variable.assign_sub(0.1 * tape.gradient(loss, variable))
        return loss

    step = assert_same(train_step, calls_of([weight] * N_STEPS, batches))
    assert len(step.variables) == 1


def test_random_generators_continue_from_their_state(batches):
    weight = weight_of()
    generator = tf.random.Generator.from_seed(5)
    function = trained(weight, lambda x: tf.reduce_sum(x @ weight * generator.normal((3,))))
    assert_same(function, calls_of(batches), weight)


def test_random_ops_with_a_seed_give_the_same_numbers(batches):
    weight = weight_of()
    function = trained(weight, lambda x: tf.reduce_sum(tf.nn.dropout(x @ weight, 0.5, seed=11)))
    assert_same(function, calls_of(batches), weight)


def test_random_ops_without_a_seed_are_given_one(batches):
    weight = weight_of()

    @tf.function
    def noisy(x):
        for _ in tf.range(2):
            x = x * tf.random.uniform(tf.shape(x))
        return x + tf.random.normal(tf.shape(x)), tf.random.normal(tf.shape(x))

    step = step_of("it", *flat_calls(noisy, calls_of(batches)))
    runs = []
    for _ in range(2):
        with OpenStep(step) as alone:
            runs.append([alone.run() for _ in range(3)])
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0][0], runs[0][1])
    assert weight is not None


def test_a_loop_that_reads_a_variable_is_captured(batches):
    weight = weight_of()

    def loss_of(x):
        for _ in tf.range(3):
            x = tf.tanh(x @ weight)
        return tf.reduce_sum(x)

    step = assert_same(trained(weight, loss_of), calls_of(batches), weight)
    assert any(node.op in ("While", "StatelessWhile") for node in step.graph_def.node)


def test_a_jit_compiled_function_is_captured(batches):
    weight = weight_of()

    @tf.function(jit_compile=True)
    def train_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((x @ weight) ** 2)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    concrete, flats = flat_calls(train_step, calls_of(batches))
    step = step_of("it", concrete, flats)
    with OpenStep(step) as alone:
        losses = [alone.run()[0] for _ in range(N_STEPS)]
    assert len(step.graph_def.node) > 10
    np.testing.assert_allclose(losses, [train_step(x) for x in batches], rtol=1e-4)


def test_sparse_gradients_and_integers_are_captured():
    table = tf.Variable(tf.random.stateless_normal((5, 2), (1, 2)), name="table")
    words = [tf.constant([i % 5, 1, 1]) for i in range(N_STEPS)]

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, x) ** 2)
        gradient = tape.gradient(loss, table)
        table.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
        return loss, x + 1

    step = assert_same(train_step, calls_of(words), table)
    assert step.losses == step.outputs[:1]


def refusal(function, *arguments):
    with pytest.raises(LoadError) as caught:
        step_of("it", *flat_calls(function, [arguments]))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_lookup_table_in_the_step_is_refused():
    keys = tf.lookup.KeyValueTensorInitializer([1, 2], [3, 4])
    table = tf.lookup.StaticHashTable(keys, 0)
    weight = weight_of()
    function = trained(
        weight, lambda x: tf.reduce_sum(weight) * tf.cast(table.lookup(x), tf.float32)
    )
    assert "lookup table; look words up in the dataset" in refusal(function, tf.constant(1))


def test_a_dataset_in_the_step_is_refused(batches):
    weight = weight_of()
    dataset = tf.data.Dataset.from_tensor_slices(tf.stack(batches))

    @tf.function
    def train_epoch(batches):
        for x in batches:
            weight.assign_sub(tf.reduce_sum(x) * weight)

    assert "call the function once for each batch" in refusal(train_epoch, dataset)


def test_two_iterators_are_refused(batches):
    weight = weight_of()
    iterators = [iter(tf.data.Dataset.from_tensors(batches[0]).repeat()) for _ in range(2)]
    function = trained(weight, lambda x, y: tf.reduce_sum((next(x) + next(y)) @ weight))
    assert "zip the datasets" in refusal(function, *iterators)


@pytest.mark.parametrize("scopes", [("", "replica_1/"), ("replica_0/", "replica_1/")])
def test_a_model_replicated_by_a_strategy_is_refused(scopes, batches):
    """Copies have the names that tf.distribute gives: the first replica has no prefix."""
    weight = weight_of()

    def loss(x):
        parts = []
        for scope, part in zip(scopes, tf.split(x, 2), strict=True):
            with tf.name_scope(scope):
                parts.append(tf.reduce_sum((part @ weight) ** 2))
        return tf.add_n(parts)

    function, batch = trained(weight, loss), tf.constant(batches[0])
    if scopes[0]:
        assert step_of("it", *flat_calls(function, [(batch,)])).graph_def.node
    else:
        message = refusal(function, batch)
        assert "over replicas with tf.distribute" in message
        assert "without the strategy, or with one replica" in message


def test_taking_two_batches_in_one_step_is_refused(batches):
    weight = weight_of()
    iterator = iter(tf.data.Dataset.from_tensors(batches[0]).repeat())
    function = trained(weight, lambda x: tf.reduce_sum((next(x) + next(x)) @ weight))
    assert "takes 2 batches" in refusal(function, iterator)


def test_an_empty_dataset_is_refused(batches):
    weight = weight_of()
    iterator = iter(tf.data.Dataset.from_tensors(batches[0]).skip(1))
    function = trained(weight, lambda x: tf.reduce_sum(next(x) @ weight))
    assert "dataset is empty" in refusal(function, iterator)
