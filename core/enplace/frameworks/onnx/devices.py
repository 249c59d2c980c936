"""ONNX's multi-device information: the device of each node, read as a plan and written as one.

From version 11 of the format on, a model may describe configurations of devices, and a node may
say, for one of these, on which devices its tensors are, and of which stage of a pipeline it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onnx import (
    DeviceConfigurationProto,
    ModelProto,
    NodeDeviceConfigurationProto,
    NodeProto,
    ShardingSpecProto,
)

from enplace.files.fields import shown
from enplace.text import count

IR_VERSION = 11
"""The first version of the format with this information."""

NAME = "enplace"
"""The configuration that an export adds."""

_MOST_DEVICES = 10_000

_GPU = re.compile(r"(?:.*[^a-z])?(?:gpu|cuda)[:_ ]?(\d{1,4})", re.IGNORECASE)
_CPU = re.compile(r"(?:.*[^a-z])?cpu(?:[:_ ]?\d{1,4})?", re.IGNORECASE)
"""Names of devices; those of several hosts, such as ``/job:worker/...``, stay as they are."""


@dataclass(frozen=True)
class FilePlan:
    """A plan that a model's file holds.

    Attributes
    ----------
    devices : tuple of (str or None)
        The device of each node; None for a node that the file does not assign.
    note : str
        What people should know of it.
    """

    devices: tuple[str | None, ...]
    note: str


def find_plan(
    configurations: Sequence[DeviceConfigurationProto], nodes: Sequence[NodeProto]
) -> FilePlan | None:
    """Return the plan of the configuration that most nodes belong to; None if there is none."""
    used = Counter(each.configuration_id for n in nodes for each in n.device_configurations)
    if not used:
        return None
    name = max(used, key=lambda each: used[each])
    described = [each for each in configurations if each.name == name]
    own = [
        next((each for each in node.device_configurations if each.configuration_id == name), None)
        for node in nodes
    ]
    found = [None if each is None else _device_numbers(each) for each in own]
    stages = _stage_devices(own, found)
    numbers = [
        (each[0] if each else stages.get(said.pipeline_stage) if said is not None else None)
        for said, each in zip(own, found, strict=True)
    ]
    names = _device_names(described[0] if described else None, numbers)
    devices = tuple(None if number is None else names[number] for number in numbers)
    if not any(devices):
        return None
    n_spread = sum(len(each or ()) > 1 for each in found)
    return FilePlan(devices, _describe(name, devices, n_spread, len(used)))


def _describe(name: str, devices: Sequence[str | None], n_spread: int, n_plans: int) -> str:
    n_devices, n_free = len({*devices} - {None}), devices.count(None)
    parts = [f"The file holds a plan, {shown(name)}, for {count(n_devices, 'device')}"]
    if n_plans > 1:
        parts.append(f"one of {n_plans}")
    if n_spread:
        verb = "counts" if n_spread == 1 else "count"
        parts.append(f"{count(n_spread, 'op')} on several devices {verb} as on the first of them")
    if n_free:
        verb = "joins its" if n_free == 1 else "join their"
        parts.append(f"{count(n_free, 'op')} without a device {verb} neighbours")
    return f"{'; '.join(parts)}. To use it, import the model with --plan plan.json --cluster C."


def _device_numbers(said: NodeDeviceConfigurationProto) -> list[int]:
    """Return the devices of all tensors that a node's configuration names, each once."""
    found = dict[int, None]()
    for spec in said.sharding_spec:
        groups = {entry.key: list(entry.value) for entry in spec.index_to_device_group_map}
        for device in spec.device:
            found |= dict.fromkeys(groups.get(device, [device]))
    return [device for device in found if 0 <= device < _MOST_DEVICES]


def _stage_devices(
    own: Iterable[NodeDeviceConfigurationProto | None], found: Iterable[list[int] | None]
) -> dict[int, int]:
    """Return the device of each stage: that of its nodes that name one, or the stage's number."""
    stages = dict[int, int]()
    for said, devices in zip(own, found, strict=True):
        if said is not None and said.HasField("pipeline_stage"):
            stage = said.pipeline_stage
            if devices:
                stages.setdefault(stage, devices[0])
    own_numbers = {
        said.pipeline_stage: said.pipeline_stage
        for said in own
        if said is not None
        and said.HasField("pipeline_stage")
        and 0 <= said.pipeline_stage < _MOST_DEVICES
    }
    return own_numbers | stages


def _device_names(
    described: DeviceConfigurationProto | None, numbers: Iterable[int | None]
) -> dict[int, str]:
    """Return the names of devices in clusters: as the file says, if it does, or ``GPU:1``."""
    said = list(described.device) if described is not None else []
    used = sorted({number for number in numbers if number is not None})
    named = {n: _cluster_name(said[n]) for n in used if n < len(said)}
    is_known = len(named) == len(used) and "" not in named.values()
    if is_known and len({*named.values()}) == len(used):
        return named
    return {number: f"GPU:{number}" for number in used}


def _cluster_name(name: str) -> str:
    """Return a device's name as clusters have it; empty if it is none that we know."""
    if name.startswith("/job:"):
        return name
    if gpu := _GPU.fullmatch(name):
        return f"GPU:{int(gpu[1])}"
    return "CPU:0" if _CPU.fullmatch(name) else ""


def add_plan(
    model: ModelProto, names: Sequence[str], devices: Sequence[int], stages: Sequence[int] | None
) -> None:
    """Write a plan into a model, as a configuration of its own; others stay.

    Parameters
    ----------
    names : sequence of str
        The devices of the cluster.
    devices, stages : sequence of int
        The device of each node, by its number in ``names``, and its stage if there are stages.
    """
    model.ir_version = max(model.ir_version, IR_VERSION)
    kept = [each for each in model.configuration if each.name != NAME]
    del model.configuration[:]
    used = sorted(set(devices))
    index = {device: number for number, device in enumerate(used)}
    described = DeviceConfigurationProto(name=NAME, num_devices=len(used))
    described.device.extend(names[device] for device in used)
    model.configuration.extend([*kept, described])
    for number, node in enumerate(model.graph.node):
        others = [each for each in node.device_configurations if each.configuration_id != NAME]
        own = NodeDeviceConfigurationProto(configuration_id=NAME)
        if stages is not None:
            own.pipeline_stage = stages[number]
        for name in filter(None, node.output):
            own.sharding_spec.append(
                ShardingSpecProto(tensor_name=name, device=[index[devices[number]]])
            )
        del node.device_configurations[:]
        node.device_configurations.extend([*others, own])
