"""The target that the ONNX library reads; only a child that fuzzes it imports this."""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto
from tests import onnx_models
from tests.fuzz.messages import mutate_messages
from tests.fuzz.targets import Target, use

from enplace.frameworks.onnx.graph import read_graph
from enplace.frameworks.onnx.profile import estimated_profile
from enplace.frameworks.roofline import GPUS
from enplace.processes.codecs import profile_from, profile_message

SMALL = (
    "control_flow", "dynamo", "functions", "fused", "keras2onnx", "quantised", "skl2onnx",
    "tf2onnx",
)  # fmt: skip


def onnx_model() -> Target:
    """Small models of several exporters, with loops, functions and quantised types."""
    models = [onnx_models.ALL[name]() for name in SMALL]
    seeds = [each.SerializeToString(deterministic=True) for each in models]
    return Target(seeds, _read, mutate_messages(ModelProto))


def _read(path: Path) -> None:
    profile = estimated_profile("model", read_graph(str(path)), GPUS["h200"])
    use(profile_from(profile_message(profile)))
