"""Messages between processes: a JSON head and numpy arrays, never pickle.

A message is the lengths of its two parts (8 bytes each, little endian), the head, and an npz. The
studio speaks so with its solver, and whoever needs TensorFlow with the process that has it.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, fields
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from enplace.disk import dump_json
from enplace.errors import EnplaceError
from enplace.readers.clusters import cluster_from_json
from enplace.readers.measurement import measurement_from_json
from enplace.readers.plan_facts import facts_from_json
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import Profile
from enplace.values.splits import Split
from enplace.writers.clusters import cluster_to_json
from enplace.writers.measurement import measurement_to_json
from enplace.writers.plan_facts import facts_to_json

_LENGTHS = struct.Struct("<QQ")
_MAX_BYTES = 1 << 40
"""No part of a message is longer; eight letters of a text, read as a length, always are."""

Arrays = Mapping[str, NDArray[Any]]


class WireError(EnplaceError):
    """The other process sent something that is no message."""


@dataclass(frozen=True)
class Message:
    """What ``do`` says, with its details and arrays."""

    do: str
    details: dict[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)


def encode(message: Message) -> bytes:
    """The bytes of a message."""
    # A lone surrogate, as in a path that is no UTF-8, becomes the escape that JSON has for it.
    head = dump_json({"do": message.do, **message.details}).encode(errors="backslashreplace")
    packed = io.BytesIO()
    if message.arrays:
        np.savez(packed, **message.arrays)  # type: ignore[arg-type]
    blob = packed.getvalue()
    return _LENGTHS.pack(len(head), len(blob)) + head + blob


def take(buffer: bytearray) -> Message | None:
    """Take the first whole message out of a buffer; None while it is not all there.

    Raises
    ------
    WireError
        If the buffer begins with anything but a message.
    """
    if len(buffer) < _LENGTHS.size:
        return None
    n_head, n_blob = _lengths(buffer)
    end = _LENGTHS.size + n_head + n_blob
    if len(buffer) < end:
        return None
    head = bytes(buffer[_LENGTHS.size : _LENGTHS.size + n_head])
    blob = bytes(buffer[_LENGTHS.size + n_head : end])
    del buffer[:end]
    return _decode(head, blob)


def read(stream: BinaryIO) -> Message | None:
    """Wait for the next message of a stream; None at its end, also if that cuts one short.

    Raises
    ------
    WireError
        If something else comes.
    """
    lengths = stream.read(_LENGTHS.size)
    if len(lengths) < _LENGTHS.size:
        return None
    n_head, n_blob = _lengths(lengths)
    head, blob = stream.read(n_head), stream.read(n_blob)
    return _decode(head, blob) if len(blob) == n_blob and len(head) == n_head else None


def _lengths(start: bytes | bytearray) -> tuple[int, int]:
    n_head, n_blob = _LENGTHS.unpack_from(start)
    if max(n_head, n_blob) > _MAX_BYTES:
        raise WireError(f"not a message but {bytes(start[:40])!r}")
    return n_head, n_blob


def _decode(head: bytes, blob: bytes) -> Message:
    try:
        details = json.loads(head)
    except ValueError:
        raise WireError(f"not a message but {head[:40]!r}") from None
    arrays: dict[str, NDArray[Any]] = {}
    if blob:
        with np.load(io.BytesIO(blob), allow_pickle=False) as packed:
            arrays = dict(packed)
    return Message(details.pop("do"), details, arrays)


def profile_message(profile: Profile, do: str = "profile") -> Message:
    """A message that carries a profile, with all that was measured.

    That is more than numbers to show: it says which ops are backward and how ops can be split.
    """
    values = {f.name: getattr(profile, f.name) for f in fields(profile)}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    details = {n: v for n, v in values.items() if n not in arrays}
    details["measured"] = measurement_to_json(profile.measured)
    return Message(do, details, arrays)


def profile_from(message: Message) -> Profile:
    """The profile of such a message."""
    texts = {n: tuple(v) if isinstance(v, list) else v for n, v in message.details.items()}
    texts["measured"] = measurement_from_json(message.details["measured"])
    return Profile(**texts, **message.arrays)  # type: ignore[arg-type]


def problem_to_json(problem: Problem) -> dict[str, Any]:
    """All of a problem but its profile."""
    return {
        "cluster": cluster_to_json(problem.cluster),
        "pins": list(problem.pins.items()),
        "together": problem.together,
        "forbidden": sorted(problem.forbidden),
        "splits": list(map(astuple, problem.splits)),
    }


def problem_from(profile: Profile, data: Mapping[str, Any]) -> Problem:
    """The problem of such a description."""
    return Problem(
        profile,
        cluster_from_json(data["cluster"]),
        dict(data["pins"]),
        tuple(map(tuple, data["together"])),
        frozenset((op, device) for op, device in data["forbidden"]),
        tuple(Split(*split) for split in data.get("splits", ())),
    )


def plan_message(do: str, plan: Plan, details: Mapping[str, Any]) -> Message:
    """A message that carries a plan."""
    head = {"method": plan.method, "policy": plan.policy, "links": plan.links}
    parts = {"splits": list(map(astuple, plan.splits)), "replicas": plan.replicas}
    arrays = {"device": plan.device, "position": plan.position}
    told = {**details, "plan": {**head, "facts": facts_to_json(plan)}, **parts}
    return Message(do, told, arrays)


def plan_from(message: Message) -> Plan:
    """The plan that a message carries."""
    device, position = message.arrays["device"], message.arrays["position"]
    splits = tuple(Split(*split) for split in message.details["splits"])
    replicas = tuple(tuple(group) for group in message.details["replicas"])
    head = dict(message.details["plan"])
    reported = facts_from_json(head.pop("facts"))
    return Plan(device, position, **head, **reported, splits=splits, replicas=replicas)
