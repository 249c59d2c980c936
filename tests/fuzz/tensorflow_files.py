"""Targets that TensorFlow reads; only a child that fuzzes one of them imports this."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from google.protobuf.internal.encoder import _VarintBytes
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.protobuf.config_pb2 import RunMetadata
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel
from tests.fuzz.messages import mutate_messages
from tests.fuzz.targets import Target, use

from enplace.frameworks.source import Source
from enplace.frameworks.tensorflow.devices import parse_devices
from enplace.frameworks.tensorflow.measure.profile import graph_profile
from enplace.frameworks.tensorflow.measure.recorded_trace import profile_of_trace
from enplace.frameworks.tensorflow.open.load import load
from enplace.processes.codecs import profile_from, profile_message

v1 = tf.compat.v1

MANY = (1_000, 100_000, 3_000_000, 10_000_000)


def trace() -> Target:
    """Recorded traces with the graph and without, in binary and text form."""
    whole, rows = _record(partitions=True), _record(partitions=False)
    seeds = [each.SerializeToString(deterministic=True) for each in (whole, rows)]
    text = text_format.MessageToString(rows).encode()
    return Target(
        [*seeds * 5, text],  # a text takes ten times as long
        lambda path: use(profile_from(profile_message(profile_of_trace(str(path))))),
        mutate_messages(RunMetadata),
    )


def long_trace() -> Target:
    """Traces with millions of messages of a few bytes."""

    def multiply(content: bytes, draw: Random) -> bytes:
        small = draw.choice((b"\x0a\x00", b"\x12\x00", b"\x12\x02,,", b"\x12\x04\x0a\x02ab"))
        rows = b"\x0a\x0d/device:CPU:0" + small * draw.choice(MANY)
        for _ in range(2):
            rows = b"\x0a" + _VarintBytes(len(rows)) + rows
        return content + rows

    return replace(trace(), mutate=multiply, seeds=trace().seeds[:2])


def meta_graph() -> Target:
    """Exported training graphs."""
    with tf.Graph().as_default() as graph:
        _training()
        meta = v1.train.export_meta_graph(graph=graph)
    text = text_format.MessageToString(meta).encode()
    binary = meta.SerializeToString(deterministic=True)
    return Target([binary, binary, text], _model("tf1"), mutate_messages(MetaGraphDef))


def graph() -> Target:
    """Bare graphs: one that trains, and one with a dataset."""
    with tf.Graph().as_default() as training:
        _training()
    with tf.Graph().as_default() as fed:
        values = np.arange(12, dtype=np.float32).reshape(3, 4)
        batches = v1.data.make_one_shot_iterator(v1.data.Dataset.from_tensors(values))
        tf.nn.softmax(batches.get_next() @ tf.ones((4, 2)), name="probabilities")
    seeds = [each.as_graph_def().SerializeToString(deterministic=True) for each in (training, fed)]
    return Target(seeds, _model("tf1"), mutate_messages(GraphDef))


def saved_model() -> Target:
    """The graph of a SavedModel; its variables stay whole."""

    class Model(tf.Module):
        def __init__(self) -> None:
            self.weight = tf.Variable(tf.ones((4, 2)))

        @tf.function(input_signature=[tf.TensorSpec((None, 4))])
        def serve(self, x: Any) -> Any:
            return {"y": tf.nn.relu(x @ self.weight)}

    model = Model()
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(model, folder, signatures=model.serve)
        files = {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(Path(folder).rglob("*"))
            if path.is_file()
        }
    name = "saved_model.pb"
    read = _model("saved-model")
    return Target(
        [files.pop(name)],
        lambda path: read(path.parent),
        mutate_messages(SavedModel),
        name,
        files,
    )


def keras_model() -> Target:
    """A Keras model with its loss and optimiser."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, activation="softmax")])
    model.compile("sgd", "mean_squared_error")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        return Target([path.read_bytes()], _model("keras"), name=path.name)


def _model(kind: str) -> Any:
    """Return a function that loads a model, as its worker does before the first step."""

    def read(path: Path) -> None:
        profile = graph_profile(load(Source(str(path), kind)), parse_devices("cpu:1"))
        use(profile_from(profile_message(profile)))

    return read


def _training() -> tuple[Any, Any]:
    x = v1.placeholder(tf.float32, (None, 4), "x")
    with v1.variable_scope("layer"):
        weight = v1.get_variable("w", (4, 2), initializer=v1.initializers.ones())
        halves = tf.split(tf.nn.dropout(x @ weight, 0.3, seed=5), 2, axis=1, name="halves")
    with tf.device("/cpu:1"):
        loss = tf.reduce_mean(halves[1] ** 2, name="loss")
    return v1.train.GradientDescentOptimizer(0.1).minimize(loss), loss


def _record(partitions: bool) -> RunMetadata:
    """Trace a step on two devices; its times and addresses are always the same."""
    metadata = RunMetadata()
    options = v1.RunOptions(
        trace_level=v1.RunOptions.FULL_TRACE, output_partition_graphs=partitions
    )
    config = v1.ConfigProto(device_count={"CPU": 2})
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default() as graph, v1.Session(graph=graph, config=config) as session:
        x = v1.placeholder(tf.float32, (3, 4), "x")
        weight = v1.get_variable("w", (4, 2), use_resource=True)
        halves = tf.split(tf.matmul(x, weight, name="layer/a"), 2, axis=1, name="layer/halves")
        with tf.device("/cpu:1"):
            left = tf.nn.relu(halves[1], name="left")
        with tf.control_dependencies([left]):
            right = tf.nn.tanh(halves[0], name="right")
        session.run(v1.global_variables_initializer())
        session.run([left, right], {x: np.ones((3, 4))}, options, metadata)
    _settle(metadata)
    return metadata


def _settle(metadata: RunMetadata) -> None:
    """Make a trace the same each time."""
    for graph in metadata.partition_graphs:
        graph.node.sort(key=lambda node: node.name)
    metadata.step_stats.dev_stats.sort(key=lambda device: device.device)
    for device in metadata.step_stats.dev_stats:
        device.node_stats.sort(key=lambda row: (row.node_name, row.timeline_label))
        for number, row in enumerate(device.node_stats):
            row.all_start_micros, row.all_end_rel_micros = 10 * number, 5
            row.op_start_rel_nanos, row.op_end_rel_nanos = 1000, 4000
            for field in ("all_start_nanos", "all_end_rel_nanos", "scheduled_micros"):
                row.ClearField(field)
            for field in ("scheduled_nanos", "thread_id", "memory", "referenced_tensor"):
                row.ClearField(field)
            for output in row.output:
                output.tensor_description.ClearField("allocation_description")
