"""Messages between the studio and its solver process: a JSON head and numpy arrays, never pickle.

A message is the lengths of its two parts (8 bytes each, little endian), the head, and an npz.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from enplace.clusters import cluster_from_json, cluster_to_json
from enplace.plan import Plan
from enplace.problem import Problem
from enplace.profile import Profile

_LENGTHS = struct.Struct("<QQ")

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Message:
    """What ``do`` says, with its details and arrays."""

    do: str
    details: dict[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)


def encode(message: Message) -> bytes:
    """The bytes of a message."""
    head = json.dumps({"do": message.do, **message.details}).encode()
    packed = io.BytesIO()
    if message.arrays:
        np.savez(packed, **message.arrays)  # type: ignore[arg-type]
    blob = packed.getvalue()
    return _LENGTHS.pack(len(head), len(blob)) + head + blob


def take(buffer: bytearray) -> Message | None:
    """Take the first whole message out of a buffer; None while it is not all there."""
    if len(buffer) < _LENGTHS.size:
        return None
    n_head, n_blob = _LENGTHS.unpack_from(buffer)
    end = _LENGTHS.size + n_head + n_blob
    if len(buffer) < end:
        return None
    head = bytes(buffer[_LENGTHS.size : _LENGTHS.size + n_head])
    blob = bytes(buffer[_LENGTHS.size + n_head : end])
    del buffer[:end]
    return _decode(head, blob)


def read(stream: BinaryIO) -> Message | None:
    """Wait for the next message of a stream; None at its end."""
    lengths = stream.read(_LENGTHS.size)
    if len(lengths) < _LENGTHS.size:
        return None
    n_head, n_blob = _LENGTHS.unpack(lengths)
    return _decode(stream.read(n_head), stream.read(n_blob))


def _decode(head: bytes, blob: bytes) -> Message:
    details = json.loads(head)
    arrays: dict[str, NDArray[Any]] = {}
    if blob:
        with np.load(io.BytesIO(blob), allow_pickle=False) as packed:
            arrays = dict(packed)
    return Message(details.pop("do"), details, arrays)


def profile_message(profile: Profile) -> Message:
    """The profile that the next problems are about."""
    values = {f.name: getattr(profile, f.name) for f in fields(profile)}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    texts = {n: v for n, v in values.items() if n not in arrays and n != "measured"}
    return Message("profile", texts, arrays)


def profile_from(message: Message) -> Profile:
    """The profile of such a message."""
    texts = {n: v if n == "name" else tuple(v) for n, v in message.details.items()}
    return Profile(**texts, **message.arrays)  # type: ignore[arg-type]


def problem_to_json(problem: Problem) -> dict[str, Any]:
    """All of a problem but its profile."""
    return {
        "cluster": cluster_to_json(problem.cluster),
        "pins": list(problem.pins.items()),
        "together": problem.together,
        "forbidden": sorted(problem.forbidden),
    }


def problem_from(profile: Profile, data: Mapping[str, Any]) -> Problem:
    """The problem of such a description."""
    return Problem(
        profile,
        cluster_from_json(data["cluster"]),
        dict(data["pins"]),
        tuple(map(tuple, data["together"])),
        frozenset((op, device) for op, device in data["forbidden"]),
    )


def plan_message(do: str, plan: Plan, details: Mapping[str, Any]) -> Message:
    """A message that carries a plan."""
    head = {"method": plan.method, "policy": plan.policy, "links": plan.links}
    facts = {key: _plain(value) for key, value in plan.facts.items()}
    arrays = {"device": plan.device, "position": plan.position}
    return Message(do, {**details, "plan": {**head, "facts": facts}}, arrays)


def plan_from(message: Message) -> Plan:
    """The plan that a message carries."""
    device, position = message.arrays["device"], message.arrays["position"]
    return Plan(device, position, **message.details["plan"])


def _plain(value: Any) -> Any:
    """A numpy scalar or array as JSON knows it."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value
