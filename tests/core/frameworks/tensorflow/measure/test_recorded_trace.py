"""A saved trace becomes a profile, with or without the graph in it."""

import gzip

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from google.protobuf.internal.encoder import _VarintBytes
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.step_stats_pb2 import NodeExecStats

from enplace.errors import EnplaceError, FileError
from enplace.frameworks.source import source_of
from enplace.frameworks.tensorflow.measure.recorded_trace import profile_of_trace
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


def test_what_an_op_on_a_gpu_computes_in_the_memory_of_the_host_costs_time_but_no_copy(tmp_path):
    metadata = tf1.RunMetadata()
    rows = metadata.step_stats.dev_stats.add(device="/device:GPU:0").node_stats
    for name, allocator in (("a", "gpu_host_bfc"), ("b", "GPU_0_bfc")):
        rows.add(node_name=name, timeline_label=f"{name} = Add()", op_end_rel_nanos=5000)
        tensor = rows[-1].output.add(slot=0).tensor_description
        tensor.dtype = tf.float32.as_datatype_enum
        tensor.shape.dim.add(size=4)
        tensor.allocation_description.allocator_name = allocator
    rows.add(node_name="c", timeline_label="c = Add(a, b)")
    kernels = metadata.step_stats.dev_stats.add(device="/device:GPU:0/stream:all").node_stats
    kernels.add(node_name="b:Add", op_end_rel_nanos=3000)
    (tmp_path / "gpu.pb").write_bytes(metadata.SerializeToString())
    profile = profile_of_trace(str(tmp_path / "gpu.pb"))
    assert profile.time_us[:, 0].tolist() == [5.0, 3.0, 0.0]
    assert edges_of(profile) == {("a", 0, "c", 0), ("b", 0, "c", 16)}


def test_a_damaged_trace_is_refused_in_one_line(record, tmp_path):
    whole = record("rows.pb", partitions=False).read_bytes()
    (tmp_path / "cut.pb").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LoadError, match=r"cut\.pb: the recorded trace is damaged"):
        profile_of_trace(str(tmp_path / "cut.pb"))
    (tmp_path / "empty.pbtxt").write_text("step_stats { }")
    with pytest.raises(LoadError, match="its rows name no ops"):
        profile_of_trace(str(tmp_path / "empty.pbtxt"))


def write_trace(path, rows=(), nodes=()):
    """Write a trace with these rows on a CPU, and a partition with these nodes."""
    metadata = tf1.RunMetadata()
    metadata.step_stats.dev_stats.add(device="/device:CPU:0").node_stats.extend(rows)
    if nodes:
        metadata.partition_graphs.add().node.extend(nodes)
    path.write_bytes(metadata.SerializeToString())
    return str(path)


def row(label="a = Add()", **fields):
    return NodeExecStats(node_name="a", timeline_label=label, **fields)


def output(dtype, *lengths):
    description = {"dtype": dtype, "shape": {"dim": [{"size": each} for each in lengths]}}
    return {"output": [{"slot": 0, "tensor_description": description}]}


@pytest.mark.parametrize(
    ("rows", "nodes", "message"),
    [
        ([row("a = Add(a:x)")], [], "input 'a:x' names no output"),
        ([row(f"a = Add(a:{'9' * 30})")], [], "names no output"),
        ([row(**output(9999, 2))], [], "a tensor has type 9999, .* update TensorFlow"),
        ([row(**output(1, 1 << 40, 1 << 40))], [], "has shape .* which is impossible"),
        ([row(**output(1, -5))], [], "has shape .* which is impossible"),
        ([row(**output(1, *[1 << 40] * 3000))], [], "has shape .* which is impossible"),
        ([row(all_end_rel_micros=-7)], [], "its step takes -7 µs, which is impossible"),
        ([row(all_end_rel_micros=1 << 62)], [], "its step takes .* which is impossible"),
        ([], [NodeDef(name="b", op="Relu", input=["gone"])], "op 'gone' is used, but not in it"),
        (
            [],
            [
                NodeDef(name="a/_1", op="Identity", input=["a/_2"]),
                NodeDef(name="a/_2", op="Identity", input=["a/_1"]),
                NodeDef(name="b", op="Relu", input=["a/_1"]),
            ],
            "transfer 'a/_1' leads back to itself",
        ),
    ],
)
def test_an_impossible_trace_is_refused_in_one_line(tmp_path, rows, nodes, message):
    path = write_trace(tmp_path / "odd.pb", rows, nodes)
    with pytest.raises(LoadError, match=rf"odd\.pb: .*{message}") as refused:
        profile_of_trace(path)
    assert str(refused.value).isprintable()


def test_a_transfer_that_sends_nothing_is_left_out(tmp_path):
    nodes = [NodeDef(name="send", op="_Send"), NodeDef(name="b", op="Relu")]
    assert profile_of_trace(write_trace(tmp_path / "odd.pb", nodes=nodes)).op_names == ("b",)


def test_a_label_of_many_brackets_takes_no_longer_than_reading_it(tmp_path):
    path = write_trace(tmp_path / "odd.pb", [row("[]" * 500_000), row("[x] a = Add()"), row()])
    assert profile_of_trace(path).op_names == ("a",)


def test_a_chain_of_transfers_takes_no_longer_than_reading_it(tmp_path):
    n = 20_000
    chain = [NodeDef(name=f"a/_{i}", op="Identity", input=[f"a/_{i + 1}"]) for i in range(n)]
    users = [NodeDef(name=f"b{i}", op="Relu", input=["a/_0"]) for i in range(n)]
    origin = NodeDef(name=f"a/_{n}", op="Const")
    path = write_trace(tmp_path / "odd.pb", nodes=[*chain, *users, origin])
    profile = profile_of_trace(path)
    assert profile.n_edges == n
    assert set(profile.edge_source.tolist()) == {profile.index[f"a/_{n}"]}


def test_a_deeply_nested_text_is_damaged(tmp_path):
    deep = "attr { key: 'f' value { func { " * 2000
    text = f"step_stats {{ }} partition_graphs {{ node {{ {deep}"
    (tmp_path / "deep.pbtxt").write_text(text)
    with pytest.raises(LoadError, match="is damaged"):
        profile_of_trace(str(tmp_path / "deep.pbtxt"))


@pytest.mark.parametrize(
    ("number", "field"),
    [
        (2_000_000, b"\x12\x02,,"),
        (3_600_000, b"\x12\x00"),
        (3_600_000, b"\x12\x04\x0a\x02ab"),
        (510_000, b"\x12\x00"),
    ],
)
def test_a_small_file_that_fills_the_memory_is_refused(tmp_path, number, field):
    rows = b"\x0a\x0d/device:CPU:0" + field * number
    for _ in range(2):
        rows = b"\x0a" + _VarintBytes(len(rows)) + rows
    (tmp_path / "bomb.pb").write_bytes(gzip.compress(rows, 1))
    with pytest.raises(EnplaceError, match="far more than any real"):
        profile_of_trace(str(tmp_path / "bomb.pb"))


def test_a_text_of_many_messages_is_refused_before_it_is_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr(text_format, "Parse", lambda *_: pytest.fail("parsed"))
    (tmp_path / "bomb.pbtxt").write_text("step_stats {" + "dev_stats {}" * 1_800_000 + "}")
    with pytest.raises(EnplaceError, match="far more than any real"):
        profile_of_trace(str(tmp_path / "bomb.pbtxt"))


def test_a_trace_may_not_be_larger_than_any_real_one(tmp_path):
    with open(tmp_path / "large.pb", "wb") as file:
        file.truncate((128 << 20) + 1)
    with pytest.raises(FileError, match="larger than 128 MiB"):
        profile_of_trace(str(tmp_path / "large.pb"))
