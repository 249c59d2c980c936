"""The target that the ONNX library reads; only a child that fuzzes it imports this."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random

from onnx import ModelProto
from tests import onnx_models
from tests.fuzz.messages import mutate_messages
from tests.fuzz.multiply import COUNTS, LENGTHS, MOST_BYTES
from tests.fuzz.targets import Target, use

from enplace.errors import EnplaceError
from enplace.frameworks.onnx.exporting import Export
from enplace.frameworks.onnx.graph import read_graph
from enplace.frameworks.onnx.profile import estimated_profile
from enplace.frameworks.roofline import GPUS
from enplace.processes.codecs import profile_from, profile_message

SMALL = (
    "control_flow", "dynamo", "flattened", "functions", "fused", "keras2onnx", "language_model",
    "merged_decoder", "quantised", "skl2onnx", "tf2onnx",
)  # fmt: skip


def onnx_model() -> Target:
    """Small models of several exporters, with loops, functions and quantised types."""
    models = [onnx_models.ALL[name]() for name in SMALL]
    seeds = [each.SerializeToString(deterministic=True) for each in models]
    return Target(seeds, _read, mutate_messages(ModelProto))


def long_onnx_model() -> Target:
    """Functions with a large node, called many times."""

    def multiply(content: bytes, draw: Random) -> bytes:
        model = ModelProto.FromString(content)
        for function in model.functions:
            function.node[0].doc_string = "a" * draw.choice(LENGTHS)
            function.node[-1].input.extend(["x"] * draw.choice(LENGTHS))
        call = model.graph.node[0]
        call.name = "n" * draw.choice(LENGTHS)
        model.graph.node.extend([call] * min(draw.choice(COUNTS), MOST_BYTES // call.ByteSize()))
        return model.SerializeToString(deterministic=True)

    seed = onnx_models.functions().SerializeToString(deterministic=True)
    return Target([seed], _read, multiply)


def _read(path: Path) -> None:
    graph = read_graph(str(path))
    profile = estimated_profile("model", graph, GPUS["h200"])
    use(profile_from(profile_message(profile)))
    devices = [op * 3 // profile.n_ops for op in range(profile.n_ops)]
    plan = (dict(graph.sizes), profile.op_names, devices, ("GPU:0", "GPU:1", "GPU:2"))
    with tempfile.TemporaryDirectory() as folder, suppress(EnplaceError):
        Export(str(path), "", *plan).write_model(Path(folder, "m.onnx"))
        Export(str(path), "", *plan).write_stages(Path(folder), Path(folder))
