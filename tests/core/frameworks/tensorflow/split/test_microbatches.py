"""Graphs of micro-batches give the results of the whole step."""

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from enplace.errors import PipelineError
from enplace.frameworks.tensorflow.shapes import shapes_in
from enplace.frameworks.tensorflow.split.microbatches import check_pipeline, cut_graph
from enplace.frameworks.tensorflow.step import plain_config

v1 = tf.compat.v1
SHAPE = (8, 6, 4)
PARTS = 4

rng = np.random.default_rng(0)
WEIGHTS = rng.random((4, 5)).astype("float32")
IMAGES = (8, 6, 6, 2)
FILTERS = rng.random((3, 3, 2, 3)).astype("float32")
NUMBERS = rng.integers(0, 4, (8, 6))

OPS = {
    "a product of matrices": lambda x: tf.reshape(x, (48, 4)) @ WEIGHTS,
    "a weight's gradient": lambda x: tf.matmul(
        tf.reshape(x, (48, 4)), tf.reshape(tf.square(x), (48, 4)), transpose_a=True
    ),
    "products of batches": lambda x: tf.matmul(x, tf.square(x), transpose_b=True),
    "heads of attention": lambda x: tf.transpose(tf.reshape(x, (8, 6, 2, 2)), (0, 2, 1, 3)),
    "einsum": lambda x: tf.einsum("abc,cd->adb", x, WEIGHTS),
    "a sum by einsum": lambda x: tf.einsum("abc,abd->cd", x, x),
    "a mean within samples": lambda x: x - tf.reduce_mean(x, -1, keepdims=True),
    "a mean over samples": lambda x: tf.reduce_mean(x, (0, 1)),
    "a sum over all": lambda x: tf.reduce_sum(x, 0, keepdims=True),
    "the largest of a sample": lambda x: (
        tf.argmax(x, -1) + tf.cast(tf.reduce_max(x, 1), "int64")[:, :1]
    ),
    "softmax": tf.nn.softmax,
    "broadcasting": lambda x: x * np.arange(4, dtype="float32") + np.ones((8, 1, 1), "float32"),
    "masks for the whole batch": lambda x: tf.where(np.ones(SHAPE) > 0.5, x, 0.0),
    "slices": lambda x: x[:, 1:5, ..., tf.newaxis][:, ::2, 0],
    "pieces": lambda x: tf.concat(tf.split(x, 2, 2)[::-1], 1),
    "a stack": lambda x: tf.unstack(tf.stack([x, x + 1], 1), axis=1)[1],
    "padding": lambda x: tf.pad(x, ((0, 0), (1, 2), (0, 0))),
    "tiles": lambda x: tf.tile(x[:, :, tf.newaxis], (1, 1, 3, 1)),
    "rows of a table": lambda x: tf.gather(WEIGHTS, tf.cast(x * 3, "int32")),
    "columns": lambda x: tf.gather(x, (2, 0), axis=1),
    "one in many": lambda x: tf.one_hot(tf.cast(x * 3, "int32"), 5),
    "running sums": lambda x: tf.cumsum(x, 1) + tf.reverse(x, (2,)),
    "segments": lambda x: tf.math.unsorted_segment_sum(x, NUMBERS, 5),
    "a bias and its gradient": lambda x: v1.gradients(
        tf.square(tf.nn.bias_add(x, np.ones(4, "float32"))), x
    )[0],
    "cross entropy": lambda x: v1.gradients(
        tf.nn.sparse_softmax_cross_entropy_with_logits(NUMBERS, x), x
    )[0],
    "shapes": lambda x: tf.reshape(x, tf.stack((tf.shape(x)[0], tf.size(x) // 8))),
}


def pooled(x):
    x = tf.nn.max_pool2d(tf.nn.conv2d(x, FILTERS, 1, "SAME"), 2, 1, "SAME")
    return tf.nn.avg_pool2d(x, 2, 2, "SAME")


OF_IMAGES = {
    "convolution": lambda x: tf.nn.conv2d(x, FILTERS, 1, "SAME"),
    "pools": lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME") + tf.nn.avg_pool2d(x, 2, 2, "SAME"),
    "gradients of images": lambda x: v1.gradients(tf.square(pooled(x)), x)[0],
    "gradients of filters": lambda x: tf.raw_ops.Conv2DBackpropFilter(
        input=x,
        filter_sizes=(3, 3, 2, 2),
        out_backprop=x,
        strides=(1, 1, 1, 1),
        padding="SAME",
    ),
    "larger images": lambda x: tf.image.resize(x, (9, 9)),
}
CASES = [(name, SHAPE, op) for name, op in OPS.items()]
CASES += [(name, IMAGES, op) for name, op in OF_IMAGES.items()]


def graph_of(op, shape):
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, shape, "x")
        y = tf.identity(op(x), "y")
    return graph, y.name


def cut(graph, shape, wanted, parts=PARTS, *, own_statistics=False):
    batch = {"x:0": shape}
    return cut_graph(
        graph.as_graph_def(),
        shapes_in(graph),
        batch,
        parts,
        wanted,
        own_statistics=own_statistics,
    )


def run(graph_def, tensor, shape=(), given=None):
    values = np.random.default_rng(1).random(shape).astype("float32") if given is None else given
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        with v1.Session(graph=graph, config=plain_config()) as session:
            for op in graph.get_operations():
                if op.type == "AssignVariableOp":
                    session.run(op)
            return session.run(tensor, {"x:0": values})


@pytest.mark.parametrize(("name", "shape", "op"), CASES, ids=[name for name, *_ in CASES])
def test_parts_of_an_op_give_the_result_of_the_whole_op(name, shape, op):
    graph, wanted = graph_of(op, shape)
    found = cut(graph, shape, [wanted])
    copies = Counter(origin.op for origin in found.origin.values() if origin.is_copy)
    assert set(copies.values()) == {PARTS}
    assert of_samples(graph) - {*copies} <= {"x", "y"}
    whole = run(graph.as_graph_def(), wanted, shape)
    parted = run(found.graph_def, found.renamed[wanted], shape)
    assert parted.dtype == whole.dtype
    np.testing.assert_allclose(parted, whole, rtol=1e-5, atol=1e-5)


def of_samples(graph):
    """Find the ops that depend on the batch's numbers."""
    found = {"x"}
    for op in graph.get_operations():
        if op.type not in ("Shape", "ShapeN", "Size") and any(
            t.op.name in found for t in op.inputs
        ):
            found.add(op.name)
    return found


def test_an_op_without_rule_stays_whole_and_its_rows_are_cut_again():
    graph, wanted = graph_of(
        lambda x: tf.sort(x[:, 0, 0])[:, tf.newaxis] * tf.square(x[:, 0]), SHAPE
    )
    found = cut(graph, SHAPE, [wanted])
    types = Counter(node.op for node in found.graph_def.node)
    assert types["TopKV2"] == 1
    assert types["Mul"] == PARTS
    whole = run(graph.as_graph_def(), wanted, SHAPE)
    np.testing.assert_allclose(run(found.graph_def, found.renamed[wanted], SHAPE), whole)


def test_sums_are_added_up_part_by_part():
    graph, wanted = graph_of(lambda x: tf.reduce_sum(x, 0), SHAPE)
    found = cut(graph, SHAPE, [wanted])
    adds = [node for node in found.graph_def.node if node.op == "AddV2"]
    assert len(adds) == PARTS - 1
    assert all(adds[i].input[0].startswith(adds[i - 1].name) for i in range(1, PARTS - 1))


def test_a_batch_of_another_size_is_not_computed_wrongly():
    graph, wanted = graph_of(lambda x: tf.reduce_mean(x, 0), (8, 4))
    found = cut(graph, (8, 4), [wanted])
    for node in found.graph_def.node:
        if node.name == "x":
            node.attr["shape"].shape.CopyFrom(tf.TensorShape((None, 4)).as_proto())
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[4,4\]"):
        run(found.graph_def, found.renamed[wanted], (4, 4))


@pytest.mark.parametrize(("parts", "hint"), [(3, "choose one of 2, 4, 8"), (16, "8 samples")])
def test_micro_batches_that_do_not_divide_the_batch_are_refused_in_one_line(parts, hint):
    graph, wanted = graph_of(tf.square, SHAPE)
    with pytest.raises(PipelineError, match=hint) as caught:
        cut(graph, SHAPE, [wanted], parts)
    assert "\n" not in str(caught.value)


def normalised(over):
    def op(x):
        weights = v1.get_variable("w", (4, 4), use_resource=True)
        y = tf.reshape(tf.reshape(x, (48, 4)) @ weights, SHAPE)
        return tf.reduce_sum(tf.square(y - tf.reduce_mean(y, over, keepdims=True, name="mean")), 1)

    return op


def test_an_op_that_mixes_samples_is_named():
    graph, wanted = graph_of(normalised(0), SHAPE)
    found = cut(graph, SHAPE, [wanted])
    assert found.mixing == ("mean",)
    with pytest.raises(PipelineError, match="depend on each other in 'mean'"):
        check_pipeline(found)
    graph, wanted = graph_of(normalised(2), SHAPE)
    check_pipeline(cut(graph, SHAPE, [wanted]))


def normalised_by_ops(y, scale, offset):
    mean = tf.reduce_mean(y, (0, 1), keepdims=True)
    variance = tf.reduce_mean(tf.square(y), (0, 1), keepdims=True) - tf.square(mean)
    return tf.nn.batch_normalization(y, mean, variance, offset, scale, 1e-3), mean, variance


def normalised_by_one_op(y, scale, offset):
    y, mean, variance = v1.nn.fused_batch_norm(y[:, tf.newaxis], scale, offset)
    return y[:, 0], mean, variance


def normalised_by_rows(y, scale, offset):
    rows = tf.reshape(y, (-1, 4))
    mean, variance = tf.nn.moments(rows, (0,))
    rows = tf.nn.batch_normalization(rows, mean, variance, offset, scale, 1e-3)
    return tf.reshape(rows, tf.shape(y)), mean, variance


def normalised_time_first(y, scale, offset):
    y, mean, variance = normalised_by_ops(tf.transpose(y, (1, 0, 2)), scale, offset)
    return tf.transpose(y, (1, 0, 2)), mean, variance


def normalised_with_masks(y, scale, offset):
    """How many are not masked depends on the batch alone, but differs between micro-batches."""
    kept = tf.cast(y.graph.get_tensor_by_name("x:0")[:, :, :1] > 0.5, tf.float32)
    over = {"axis": (0, 1), "keepdims": True}
    mean = tf.reduce_sum(y * kept, **over) / (tf.reduce_sum(kept, **over) + 1e-6)
    number = tf.math.count_nonzero(kept, **over, dtype=tf.float32)
    variance = tf.reduce_sum(tf.square(y - mean) * kept, **over) / number
    return tf.nn.batch_normalization(y, mean, variance, offset, scale, 1e-3), mean, variance


NORMALISATIONS = {
    "by single ops": normalised_by_ops,
    "by one op": normalised_by_one_op,
    "of rows": normalised_by_rows,
    "time first": normalised_time_first,
    "with masks": normalised_with_masks,
}


def trained_with_batch_normalisation(x, normalise=normalised_by_ops):
    """Return the loss, all gradients, and the statistics that a moving average would take."""

    def variable(name, *shape):
        start = np.random.default_rng(len(name)).random(shape).astype("float32")
        return v1.get_variable(name, initializer=start, use_resource=True)

    weights, statistics, y = [], [], x
    for layer in range(2):
        weights += [variable(f"weights{layer}", 4, 4), variable(f"g{layer}", 4)]
        weights.append(variable(f"b{layer}", 4))
        y = tf.reshape(tf.reshape(y, (-1, 4)) @ weights[-3], (-1, *SHAPE[1:]))
        y, mean, variance = normalise(y, weights[-2], weights[-1])
        y = tf.nn.tanh(y)
        statistics += [mean, variance]
    loss = tf.reduce_mean(tf.square(y - tf.reduce_sum(x, 2, keepdims=True)))
    loss += tf.reduce_mean(tf.square(mean)) * tf.reduce_sum(weights[-1])
    found = [loss, *statistics, *v1.gradients(loss, weights)]
    return tf.concat([tf.reshape(each, [-1]) for each in found], 0)


@pytest.mark.parametrize(("way", "parts"), [*zip(NORMALISATIONS, (4, 2, 4, 2, 4), strict=True)])
def test_micro_batches_may_take_their_own_statistics(way, parts):
    """The result is then the mean of what each micro-batch gives as a batch of its own."""

    def train(x):
        return trained_with_batch_normalisation(x, NORMALISATIONS[way])

    graph, wanted = graph_of(train, SHAPE)
    assert cut(graph, SHAPE, [wanted], parts).mixing
    given, batch = graph.as_graph_def(), {"x:0": SHAPE}
    found = cut_graph(given, shapes_in(graph), batch, parts, [wanted], own_statistics=True)
    assert given == graph.as_graph_def()  # it was cut several times
    check_pipeline(found)
    assert found.own
    values = np.random.default_rng(1).random(SHAPE).astype("float32")
    alone, of_one = graph_of(train, (SHAPE[0] // parts, *SHAPE[1:]))
    each = [run(alone.as_graph_def(), of_one, given=part) for part in np.split(values, parts)]
    own = run(found.graph_def, found.renamed[wanted], given=values)
    np.testing.assert_allclose(own, np.mean(each, axis=0), rtol=1e-4, atol=1e-5)
    whole = run(graph.as_graph_def(), wanted, given=values)
    assert not np.allclose(own, whole, rtol=1e-4, atol=1e-5)


def test_own_statistics_are_only_means_and_sums():
    """Each sample is compared with all others, so there is nothing for a micro-batch alone."""

    def compare(x):
        y = tf.reshape(x, (8, 24)) @ v1.get_variable("w", (24, 3), use_resource=True)
        return tf.nn.softmax(tf.matmul(y, y, transpose_b=True, name="pairs"))

    graph, wanted = graph_of(compare, SHAPE)
    with pytest.raises(PipelineError, match="'pairs'"):
        check_pipeline(cut(graph, SHAPE, [wanted], own_statistics=True))


def test_a_loop_is_named_as_what_takes_the_whole_batch():
    def recur(x):
        y = tf.reshape(x, (8, 24)) @ v1.get_variable("w", (24, 3), use_resource=True)
        return tf.square(tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * y), (0, y))[1])

    graph, wanted = graph_of(recur, SHAPE)
    for own in (False, True):
        with pytest.raises(PipelineError, match=r"a loop, .* \('while'\).* unroll it") as caught:
            check_pipeline(cut(graph, SHAPE, [wanted], own_statistics=own))
        assert "own-statistics" not in str(caught.value)


def test_what_only_depends_on_the_batch_may_mix_samples():
    """A mean over all labels, for instance, is ready before the pipeline begins."""
    graph, wanted = graph_of(lambda x: x - tf.reduce_mean(x, 0), SHAPE)
    check_pipeline(cut(graph, SHAPE, [wanted]))
