"""The ``.enplace`` file: a zip of JSON and npz.

It holds a profile, and for a project also the cluster, constraints and plans.
"""

from __future__ import annotations

import io
import math
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from enplace.errors import EnplaceError, FileError, ProfileError
from enplace.files.fields import check_format, is_object, shown, take
from enplace.files.json_text import MAX_MEMORY_BYTES, parse_json
from enplace.files.reading import (
    MAX_ARCHIVE_BYTES,
    MAX_FILE_BYTES,
    ZIP_MAGIC,
    gather,
    most_unpacked_bytes,
    naming,
    read_bytes,
)
from enplace.names.guessed_passes import with_guessed_passes
from enplace.readers.cluster_json import cluster_from_json
from enplace.readers.constraints import rows_by_number
from enplace.readers.measurement import measurement_from_json
from enplace.readers.registry import Content, reader
from enplace.readers.split_list import splits_from_json
from enplace.text import size
from enplace.values.cluster import Cluster
from enplace.values.constraints import NONE, Constraints
from enplace.values.plan import Plan
from enplace.values.plan_facts import facts_in_file
from enplace.values.profile import OP_COLUMNS, Profile
from enplace.values.splits import Split, split_profile

NAME, VERSION = "enplace", 1

MAX_MEMBERS = 10_000
MAX_PLANS = MAX_MEMBERS // 2
MOST_SPLIT_EDGES, MOST_SPLIT_GROWTH = 5_000_000, 100
"""Most ops and edges of all graphs that the plans of a project split, or how many times those of
the profile."""
_ENTRY = b"PK\x01\x02"
"""Begins the entry of a member in the list at a zip's end."""

_HEAD_BYTES = 256
"""More than the header of an array has."""

_USUAL = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(?P<type>[^']{1,9})', "
    rb"'fortran_order': (?P<fortran>False|True), "
    rb"'shape': \((?P<shape>\d{1,19},(?: \d{1,19})?)\), \} *\n",
    re.DOTALL,
)
"""What numpy writes before an array. Its own reader evaluates this text as Python."""

PROFILE_MEMBERS = ("enplace.json", "profile.json", "profile.npz")
PROJECT_MEMBERS = (*PROFILE_MEMBERS, "project.json", "plans.npz")

TEXTS = ("op_names", *(name for name, each in OP_COLUMNS.items() if each.type is str))
FLOATS = {name: 1 + bool(each.width) for name, each in OP_COLUMNS.items() if each.type is float}
"""Arrays that do not hold whole numbers, with their dimensions."""

HOLDS, BASE = ("hold_tensor", "hold_op"), "tensor_base"

ARRAYS = (
    *(name for name, each in OP_COLUMNS.items() if each.type is not str),
    *("tensor_op", "tensor_output", "tensor_bytes", "edge_tensor", "edge_op"),
    *HOLDS,
    BASE,
)
FLOAT, WHOLE = "<f8", ("|u1", "<i4", "<i8")
"""Types of numbers in a file; in memory all whole numbers are int64."""

_TYPES = {FLOAT, *WHOLE}


def may_lack(name: str) -> bool:
    """Whether files may lack an array, as older ones do: of defaults for all, or of holds."""
    return name in (*HOLDS, BASE) or (name in OP_COLUMNS and not OP_COLUMNS[name].always)


@dataclass(frozen=True, eq=False)
class Project:
    """A user's work: a profile, a cluster, constraints and plans.

    Attributes
    ----------
    constraints : Constraints
    plans : tuple of (name, Plan)
    splits : tuple of Split
        Ops of the profile that are split in the graph on screen; the constraints refer to that
        graph.
    view : mapping
        How the studio shows the project; plain JSON data.
    """

    profile: Profile
    cluster: Cluster | None = None
    constraints: Constraints = NONE
    plans: tuple[tuple[str, Plan], ...] = ()
    view: Mapping[str, Any] = field(default_factory=dict)
    splits: tuple[Split, ...] = ()


def read_project(path: str | os.PathLike[str]) -> Project:
    """Read a project; a file that holds only a profile gives a project without plans.

    Raises
    ------
    FileError, ProfileError
        One line with the file, the place in it and the fix.
    """
    with naming(path):
        members = _open(read_bytes(path, MAX_FILE_BYTES, MAX_ARCHIVE_BYTES))
        profile = with_guessed_passes(_profile_from(members))
        if "project.json" not in members.content:
            return Project(profile)
        return _project_from(profile, members)


@reader(
    "enplace",
    title="Enplace profiles and projects",
    suffixes=(".enplace",),
    matches=lambda content: content.data.startswith(ZIP_MAGIC),
)
def read_archive(content: Content) -> Profile:
    """Read the profile in an ``.enplace`` file.

    Raises
    ------
    FileError, ProfileError
        If the file is damaged, hostile or of a newer format.
    """
    return _profile_from(_open(content.data))


class _Members(NamedTuple):
    """The unpacked members of an archive by name, and the size of the whole file."""

    content: dict[str, bytes]
    packed_bytes: int


def _open(content: bytes) -> _Members:
    members = _Members(_unzip(content, PROJECT_MEMBERS, len(content)), len(content))
    check_members(members.content, members.packed_bytes)
    return members


def check_members(content: Mapping[str, bytes], packed_bytes: int) -> None:
    """Refuse the members of an archive if they are too large for its size; the writer asks too.

    Raises
    ------
    FileError
        One line that names no file.
    """
    _check_size(sum(map(len, content.values())), packed_bytes)
    array_bytes = sum(
        _array_bytes(head, n_bytes)
        for name, packed in content.items()
        if name.endswith(".npz")
        for head, n_bytes in _heads(name, packed, packed_bytes)
    )
    if array_bytes > MAX_MEMORY_BYTES:
        raise FileError(f"would take over {size(MAX_MEMORY_BYTES)} of memory; do not trust it")


def _heads(name: str, content: bytes, packed_bytes: int) -> list[tuple[bytes, int]]:
    """Return how each array of an npz begins, and the bytes of the whole array."""
    with naming(name), _reading(content, packed_bytes) as archive:
        infos = archive.infolist()
        return [(archive.open(info).read(_HEAD_BYTES), info.file_size) for info in infos]


def _array_bytes(head: bytes, n_bytes: int) -> int:
    """Return what an array takes while it is read: its bytes, twice, and the result."""
    found = _HEADER.match(head)
    kind = found["type"].decode("latin-1") if found else ""
    width = np.dtype(kind).itemsize if kind in _TYPES else 1
    return 2 * n_bytes + n_bytes // width * np.dtype(np.int64).itemsize


def _profile_from(members: _Members) -> Profile:
    header = is_object(_json(members, "enplace.json"), "enplace.json")
    check_format({"format": header.get("format", "")}, NAME, VERSION)
    data = is_object(_json(members, "profile.json"), "profile.json")
    there = [key for key in TEXTS if key in data or not may_lack(key)]
    texts = {key: take(data, key, list, "profile.json") for key in there}
    for key, values in texts.items():
        if not all(isinstance(value, str) for value in values):
            raise FileError(f"profile.json.{key}: must hold texts only; export the profile again")
    arrays = _arrays(members, "profile.npz", ARRAYS)
    block = take(data, "measured", dict, "profile.json", {})
    measured = measurement_from_json(block, "profile.json.measured")
    columns: dict[str, Any] = {key: tuple(values) for key, values in texts.items()} | arrays
    try:
        return Profile(
            name=take(data, "name", str, "profile.json"),
            measured=measured,
            **columns,
        )
    except (ValueError, IndexError, TypeError):
        raise ProfileError(
            "profile.npz: arrays of wrong shapes; export the profile again"
        ) from None


def _project_from(profile: Profile, members: _Members) -> Project:
    where = "project.json"
    data = is_object(_json(members, where), where)
    cluster = data.get("cluster")
    plans = take(data, "plans", list, where, [])
    if len(plans) > MAX_PLANS:
        raise FileError(f"{where}.plans: holds {len(plans)} plans, unlike any real project")
    arrays = _arrays(
        members,
        "plans.npz",
        [f"{key}_{i}" for i in range(len(plans)) for key in ("device", "position")],
    )
    splits = splits_from_json(data, where)
    shown_graph = split_profile(profile, splits)
    split_plans = _splits_of_plans(profile, plans)
    return Project(
        profile=profile,
        cluster=None if cluster is None else cluster_from_json(cluster, f"{where}.cluster"),
        constraints=Constraints.of(rows_by_number(data, where, shown_graph.n_ops)),
        plans=tuple(_plan(value, i, arrays, *split_plans[i]) for i, value in enumerate(plans)),
        view=take(data, "view", dict, where, {}),
        splits=splits,
    )


def _splits_of_plans(profile: Profile, plans: list[Any]) -> list[tuple[tuple[Split, ...], int]]:
    """Read the splits of each plan and count the ops of its graph; refuse too many in all."""
    n_ops: dict[tuple[Split, ...], int] = {(): profile.n_ops}
    left = max(MOST_SPLIT_EDGES, MOST_SPLIT_GROWTH * profile.n_edges)
    found = []
    for i, value in enumerate(plans):
        where = f"project.json.plans[{i}]"
        splits = splits_from_json(is_object(value, where), where)
        if splits not in n_ops:
            graph = split_profile(profile, splits)
            n_ops[splits] = graph.n_ops
            left -= graph.n_edges + graph.n_ops
            if left < 0:
                raise FileError(f"{where}: the plans split more ops than any real project's")
        found.append((splits, n_ops[splits]))
    return found


def _plan(
    data: dict[str, Any],
    i: int,
    arrays: Mapping[str, Any],
    splits: tuple[Split, ...],
    n_ops: int,
) -> tuple[str, Plan]:
    where = f"project.json.plans[{i}]"
    device, position = arrays[f"device_{i}"], arrays[f"position_{i}"]
    if device.shape != (n_ops,):
        raise FileError(f"plans.npz: plan {i} does not place {n_ops} ops; save it again")
    try:
        plan = Plan(
            device,
            position,
            method=take(data, "method", str, where),
            policy=take(data, "policy", str, where),
            links=take(data, "links", str, where),
            splits=splits,
            **facts_in_file(take(data, "facts", dict, where, {})),
        )
    except EnplaceError as error:
        raise FileError(f"{where}: {error}") from None
    return take(data, "name", str, where), plan


def _unzip(content: bytes, known: tuple[str, ...], packed_bytes: int) -> dict[str, bytes]:
    """Unpack a zip that may be hostile: in memory only, with sizes checked beforehand.

    Parameters
    ----------
    packed_bytes : int
        The size of the file, which may hold this zip in another one.

    Raises
    ------
    FileError
        If it is not a zip, damaged, a zip bomb, or holds an unknown member.
    """
    with _reading(content, packed_bytes) as archive:
        infos = archive.infolist()
        names: set[str] = set()
        for info in infos:
            if info.filename not in known or info.filename in names:
                found = shown(info.filename)
                raise FileError(f"holds {found}, which does not belong here; export it again")
            names.add(info.filename)
        return {info.filename: _member_of(archive, info) for info in infos}


@contextmanager
def _reading(content: bytes, packed_bytes: int) -> Iterator[zipfile.ZipFile]:
    """Open a zip once its sizes are checked; what cannot be read in it is a fault of the file."""
    if content.count(_ENTRY) > MAX_MEMBERS:
        raise FileError(f"holds more than {MAX_MEMBERS} members; do not trust it")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _check_infos(archive.infolist(), packed_bytes)
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError):
        raise FileError("a damaged or cut-off .enplace file; copy or export it again") from None


def _member_of(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    with archive.open(info) as member:
        return gather(member, info.file_size)


def _check_infos(infos: list[zipfile.ZipInfo], packed: int) -> None:
    if any(info.flag_bits & 1 for info in infos):
        raise FileError("is encrypted; save it without a password")
    if any(info.compress_type not in _USUAL for info in infos):
        raise FileError("is packed in an unusual way; export it again")
    _check_size(sum(info.file_size for info in infos), packed)


def _check_size(total: int, packed: int) -> None:
    if total > most_unpacked_bytes(packed):
        raise FileError(
            f"unpacks from {packed} to {total} bytes, far beyond any real profile; do not trust it"
        )


def _json(members: _Members, name: str) -> Any:
    text = _member(members, name)
    with naming(name):
        return parse_json(text)


def _member(members: _Members, name: str) -> bytes:
    if name not in members.content:
        raise FileError(f"'{name}' is missing from the archive; export the file again")
    return members.content[name]


def _arrays(members: _Members, name: str, wanted: Sequence[str]) -> dict[str, Any]:
    packed = _member(members, name)
    with naming(name):
        content = _unzip(packed, tuple(f"{key}.npy" for key in wanted), members.packed_bytes)
    there = [key for key in wanted if f"{key}.npy" in content or not may_lack(key)]
    for key in there:
        if f"{key}.npy" not in content:
            raise FileError(f"{name}: '{key}.npy' is missing; export the file again")
    return {
        key: _array(content[f"{key}.npy"], FLOATS.get(key, 0), f"{name}: {key}.npy")
        for key in there
    }


def _array(content: bytes, float_dimensions: int, where: str) -> Any:
    """Read an array after checking that its header matches the bytes that follow.

    Parameters
    ----------
    float_dimensions : int
        Its dimensions; 0 for a list of whole numbers, which is returned as int64.
    """
    head = _HEADER.match(content)
    if head is None:
        raise FileError(f"{where} is not an array; export the file again")
    shape = tuple(int(length) for length in head["shape"].split(b",") if length)
    body, found = content[head.end() :], head["type"].decode("latin-1")
    known = found in ((FLOAT,) if float_dimensions else WHOLE)
    if not (
        known
        and len(shape) == (float_dimensions or 1)
        and len(body) == math.prod(shape) * np.dtype(found).itemsize
    ):
        raise FileError(f"{where} has a wrong type or size; export the file again")
    array = np.frombuffer(body, dtype=found)
    if head["fortran"] == b"True":
        array = array.reshape(shape[::-1]).T
    return array.reshape(shape).astype(FLOAT if float_dimensions else np.int64)
