"""TensorFlow 1 graphs become a step with the same results as a session, bit for bit."""

import numpy as np
import pytest
import tensorflow as tf

from enplace.errors import FileError
from enplace.frameworks.source import source_of
from enplace.frameworks.tensorflow.devices import parse_devices
from enplace.frameworks.tensorflow.measure.profile import graph_profile
from enplace.frameworks.tensorflow.open import tf1
from enplace.frameworks.tensorflow.open.load import load
from enplace.frameworks.tensorflow.step import LoadError, OpenStep

v1 = tf.compat.v1
N_STEPS = 5


def small_training_graph(resource=False, x=None):
    """Return a small training graph, its training op and its loss."""
    x = v1.placeholder(tf.float32, (None, 4), "x") if x is None else x
    init = v1.initializers.truncated_normal(seed=3)
    weight = v1.get_variable("weight", (4, 2), initializer=init, use_resource=resource)
    hidden = tf.nn.dropout(x @ weight, 0.3, seed=5)
    loss = tf.reduce_mean(hidden**2, name="loss")
    train = v1.train.AdamOptimizer(0.1).minimize(loss)
    return train, loss


def expected_losses(graph, train, loss, feeds=()):
    with v1.Session(graph=graph) as session:
        session.run([op for op in graph.get_operations() if op.type == "MakeIterator"])
        with graph.as_default():
            session.run(v1.global_variables_initializer())
        return [
            session.run([loss, train], {"x:0": feeds[i]} if feeds else None)[0]
            for i in range(N_STEPS)
        ]


def step_losses(step):
    with OpenStep(step) as alone:
        return [alone.run()[0] for _ in range(N_STEPS)]


def export(graph, path):
    with graph.as_default():
        if path.suffix == ".meta":
            v1.train.export_meta_graph(str(path))
        else:
            tf.io.write_graph(graph, str(path.parent), path.name, as_text=path.suffix == ".pbtxt")
    return source_of(str(path))


@pytest.mark.parametrize("resource", [False, True], ids=["ref", "resource"])
@pytest.mark.parametrize("suffix", [".meta", ".pb", ".pbtxt"])
def test_a_training_graph_is_loaded(tmp_path, suffix, resource):
    with tf.Graph().as_default() as graph:
        train, loss = small_training_graph(resource)
        v1.global_variables_initializer()
        v1.train.Saver()
    step = load(export(graph, tmp_path / f"model{suffix}"))
    feeds = [batch[0] for batch in step.batches]
    np.testing.assert_array_equal(step_losses(step), expected_losses(graph, train, loss, feeds))
    assert step.losses == ("loss:0",)
    assert step.targets == (train.name,)
    assert step.trainable == {"weight"}


@pytest.mark.parametrize("start", [v1.data.make_one_shot_iterator, None], ids=["one-shot", "own"])
def test_a_dataset_in_the_graph_provides_the_batches(tmp_path, start):
    with tf.Graph().as_default() as graph:
        values = np.arange(48, dtype=np.float32).reshape(6, 2, 4)
        dataset = tf.data.Dataset.from_tensor_slices(values)
        iterator = (start or v1.data.make_initializable_iterator)(dataset)
        train, loss = small_training_graph(x=iterator.get_next())
        if start is None:
            assert iterator.initializer is not None
    step = load(export(graph, tmp_path / "model.meta"))
    assert len(step.batches) == 6
    np.testing.assert_array_equal(step_losses(step), expected_losses(graph, train, loss))


def test_variables_start_from_the_checkpoint(tmp_path):
    prefix = str(tmp_path / "model")
    with tf.Graph().as_default() as graph, v1.Session() as session:
        train, _ = small_training_graph()
        session.run(v1.global_variables_initializer())
        session.run(train, {"x:0": np.ones((2, 4))})
        saved = session.run("weight:0")
        v1.train.Saver().save(session, prefix)
        assert graph is session.graph
    step = load(source_of(f"{prefix}.meta"))
    np.testing.assert_array_equal(step.variables["weight"], saved)


def test_colocation_is_kept_and_devices_are_dropped(tmp_path):
    with tf.Graph().as_default() as graph, tf.device("/device:GPU:7"):
        small_training_graph()
    step = load(export(graph, tmp_path / "model.meta"))
    classes = {node.name: node.attr["_class"].list.s for node in step.graph_def.node}
    assert b"loc:@weight" in classes["weight/Adam"]
    assert not any(node.device for node in step.graph_def.node)


def test_an_inference_graph_is_loaded(tmp_path):
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, (None, 4), "x")
        tf.nn.softmax(x @ tf.ones((4, 2)), name="probabilities")
    step = load(export(graph, tmp_path / "frozen.pb"))
    assert (step.outputs, step.targets, step.losses) == (("probabilities:0",), (), ())
    assert step_losses(step)[0].shape == (32, 2)


def graph_with_a_v1_loop():
    v1.disable_control_flow_v2()
    try:
        x = v1.placeholder(tf.float32, (4,), "x")
        v1.while_loop(lambda y: tf.reduce_sum(y) < 9.0, lambda y: y + 1.0, [x])
    finally:
        v1.enable_control_flow_v2()


def graph_without_initial_value():
    x = v1.placeholder(tf.float32, (4,), "x")
    variable = tf.raw_ops.VariableV2(shape=(4,), dtype=tf.float32, name="weight")
    tf.add(x, variable, name="sum")


def graph_of_strings():
    tf.strings.length(v1.placeholder(tf.string, (4,), "x"))


def graph_of_unknown_shape():
    tf.abs(v1.placeholder(tf.float32, None, "x"))


def graph_with_a_queue():
    tf.abs(v1.FIFOQueue(3, tf.float32).dequeue()) * v1.placeholder(tf.float32, (4,), "x")


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (graph_with_a_v1_loop, "a loop of TensorFlow 1; call .*enable_control_flow_v2"),
        (graph_without_initial_value, "'weight' has no initial value; put the checkpoint next to"),
        (graph_of_strings, "input 'x' takes string values, for which there is no sample"),
        (graph_of_unknown_shape, "'x' does not state its shape"),
        (graph_with_a_queue, "is part of a queue; feed the batches with tf.data"),
    ],
)
def test_graphs_that_cannot_run_alone_are_explained(tmp_path, make, complaint):
    with tf.Graph().as_default() as graph:
        make()
    with pytest.raises(LoadError, match=complaint) as caught:
        load(export(graph, tmp_path / "graph.pb"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["graph.pb", "graph.pbtxt", "graph.meta"])
@pytest.mark.parametrize("content", [b"hello\n", b"\xff\xfe\x00", b"\x0a\x05\x0a\x03abc"])
def test_a_file_that_is_not_a_graph_is_refused(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(LoadError, match=name):
        load(source_of(str(path)))


def test_a_file_larger_than_any_graph_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tf1, "_MAX_FILE_BYTES", 1 << 20)
    path = tmp_path / "model.pb"
    path.write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(FileError, match=r"model\.pb: larger than 1 MiB"):
        load(source_of(str(path)))


def test_shapes_noted_in_the_file_do_not_matter(tmp_path):
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, (None, 4), "x")
        tf.nn.softmax(x @ tf.ones((4, 2)), name="probabilities")
    graph_def = graph.as_graph_def(add_shapes=True)
    noted = graph_def.node[-1].attr["_output_shapes"].list.shape[0]
    noted.dim[0].size = 7  # the batch has another size
    path = tmp_path / "frozen.pb"
    path.write_bytes(graph_def.SerializeToString())
    profile = graph_profile(load(source_of(str(path))), parse_devices("cpu:1"))
    assert "probabilities" in profile.op_names


def test_a_graph_that_breaks_the_importer_is_refused_in_one_line(tmp_path):
    with tf.Graph().as_default() as graph:
        v1.placeholder(tf.float32, (None, 4), "x")
    graph_def = graph.as_graph_def()
    graph_def.node[0].attr["_class"].i = 1
    path = tmp_path / "odd.pb"
    path.write_bytes(graph_def.SerializeToString())
    with pytest.raises(LoadError, match=r"odd\.pb: TensorFlow cannot import it: "):
        load(source_of(str(path)))
