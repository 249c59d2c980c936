"""A saved trace becomes a profile, with or without the graph in it."""

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format

from enplace.frameworks.source import source_of
from enplace.frameworks.tensorflow.recorded_trace import profile_of_trace
from enplace.frameworks.tensorflow.step import LoadError
from enplace.values.profile import CONTROL

tf1 = tf.compat.v1

EDGES = {
    ("x", 0, "layer/a", 32 * 64 * 4),
    ("layer/w", 0, "layer/a/ReadVariableOp", 0),
    ("layer/a/ReadVariableOp", 0, "layer/a", 64 * 64 * 4),
    ("layer/a", 0, "layer/halves", 32 * 64 * 4),
    ("layer/halves/split_dim", 0, "layer/halves", 4),
    ("layer/halves", 0, "right", 32 * 32 * 4),
    ("left", 0, "loss", 32 * 32 * 4),
}


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """Traces of a step on two devices, saved to files."""
    graph, folder = tf.Graph(), tmp_path_factory.mktemp("traces")
    with graph.as_default():
        x = tf1.placeholder(tf.float32, [32, 64], name="x")
        with tf1.variable_scope("layer"):
            w = tf1.get_variable("w", [64, 64], use_resource=True)
            halves = tf.split(tf.matmul(x, w, name="a"), 2, axis=1, name="halves")
        with tf.device("/cpu:1"):
            left = tf.nn.relu(halves[1], name="left")
            loss = tf.reduce_sum(left, name="loss")
        with tf.control_dependencies([loss]):
            right = tf.nn.tanh(halves[0], name="right")
        begin = tf1.global_variables_initializer()
    config = tf1.ConfigProto(device_count={"CPU": 2})
    config.graph_options.rewrite_options.disable_meta_optimizer = True

    def save(name, partitions, text=False):
        with tf1.Session(graph=graph, config=config) as session:
            session.run(begin)
            metadata = tf1.RunMetadata()
            options = tf1.RunOptions(
                trace_level=tf1.RunOptions.FULL_TRACE, output_partition_graphs=partitions
            )
            session.run([loss, right], {x: np.ones((32, 64))}, options, metadata)
        path = folder / name
        if text:
            path.write_text(text_format.MessageToString(metadata))
        else:
            path.write_bytes(metadata.SerializeToString())
        return path

    return save


def edges_of(profile):
    names, tensor = profile.op_names, profile.edge_tensor
    columns = profile.edge_source, profile.tensor_output[tensor], profile.edge_op
    sizes = profile.tensor_bytes[tensor].tolist()
    rows = zip(*(column.tolist() for column in columns), sizes, strict=True)
    return {(names[a], slot, names[b], size) for a, slot, b, size in rows}


def test_the_graph_is_rebuilt_from_its_partitions(record):
    profile = profile_of_trace(str(record("whole.pb", partitions=True)))
    found = edges_of(profile)
    assert found >= EDGES | {("layer/halves", 1, "left", 32 * 32 * 4)}
    assert ("loss", CONTROL, "right", 0) in found or any(
        source == "loss" and slot == CONTROL for source, slot, _, _ in found
    )
    assert not any("/_" in name for name in profile.op_names)
    assert profile.op_types[profile.index["x"]] == "Placeholder"


@pytest.mark.parametrize("text", [False, True])
def test_without_a_graph_the_row_labels_give_the_edges(record, text):
    path = record("rows.pbtxt" if text else "rows.pb", partitions=False, text=text)
    assert source_of(str(path)).kind == "trace"
    profile = profile_of_trace(str(path))
    assert edges_of(profile) >= EDGES
    assert not any("/_" in name or name.startswith("_") for name in profile.op_names)


def test_times_devices_and_variables_come_from_the_rows(record):
    profile = profile_of_trace(str(record("rows.pb", partitions=False)))
    at = profile.index
    assert profile.measured.op_devices["layer/a"] == "CPU:0"
    assert profile.measured.op_devices["left"] == "CPU:1"
    assert profile.time_us[at["layer/a"], 1] > 0
    assert np.isnan(profile.time_us[at["layer/a"], 0])
    assert profile.persistent_bytes[at["layer/w"]] == 64 * 64 * 4
    assert profile.persistent_bytes.sum() == 64 * 64 * 4
    tied = [profile.colocation[at[name]] for name in ("layer/w", "layer/a/ReadVariableOp")]
    assert tied[0] == tied[1] != ""
    assert profile.measured.step_time_us >= profile.time_us[at["layer/a"], 1] * 0.5


def test_a_damaged_trace_is_refused_in_one_line(record, tmp_path):
    whole = record("rows.pb", partitions=False).read_bytes()
    (tmp_path / "cut.pb").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LoadError, match=r"cut\.pb: the recorded trace is damaged"):
        profile_of_trace(str(tmp_path / "cut.pb"))
    (tmp_path / "empty.pbtxt").write_text("step_stats { }")
    with pytest.raises(LoadError, match="its rows name no ops"):
        profile_of_trace(str(tmp_path / "empty.pbtxt"))
