"""Queries such as ``type:MatMul scope:decoder time>1ms device:0 critical``, which find ops. No Qt.

A query is a list of terms; an op must satisfy all of them. A minus before a term excludes what it
finds. Quotes keep spaces together: ``scope:"layer 1"``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from enplace.errors import EnplaceError, ProblemError
from enplace.machine import critical_path
from enplace.names.rules import find_device
from enplace.values.device_names import device_label
from enplace.values.problem import BoolArray
from enplace.values.profile import FloatArray, Profile
from enplace.values.schedule import Schedule
from enplace_studio.project import OpenProject

FIELDS = ("name", "scope", "type", "device")
TIMES_US = {"us": 1.0, "ms": 1e3, "s": 1e6}
SIZES = {"b": 1.0, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}
MOST_OFFERED = 12
"""Most scopes, types or devices that one completion offers."""

_TERM = re.compile(r'(?:[^\s"]|"[^"]*"?)+')
_COMPARISON = re.compile(r"(?P<key>[a-z]+)(?P<sign>>=|<=|>|<)(?P<number>[0-9.]+)(?P<unit>[a-z]*)")


class QueryError(EnplaceError):
    """A query has a term that cannot be understood."""


def find_ops(project: OpenProject, query: str) -> BoolArray:
    """Find the ops that satisfy a query; shape (n_ops,). An empty query finds none.

    Raises
    ------
    QueryError
        With the first term that cannot be understood, and what to write.
    """
    terms = _TERM.findall(query)
    found = np.full(project.problem.profile.n_ops, bool(terms))
    for term in terms:
        excluded = term.startswith("-") and len(term) > 1
        hits = _find(project, term[excluded:])
        found &= ~hits if excluded else hits
    return found


def _find(project: OpenProject, term: str) -> BoolArray:
    text = term.replace('"', "")
    if text in FLAGS:
        return FLAGS[text](project)
    if comparison := _COMPARISON.fullmatch(text.lower()):
        return _compare(project, comparison)
    key, colon, value = text.partition(":")
    if colon and key in FIELDS:
        return _find_in_field(project, key, value)
    return _find_anywhere(project, text.lower())


def _find_in_field(project: OpenProject, field: str, value: str) -> BoolArray:
    if not value:
        raise QueryError(f"{field}: needs a value, for example {_example(project, field)}")
    profile = project.problem.profile
    if field == "device":
        return _find_on_device(project, value)
    texts, wanted = _lower_case(profile, field), value.lower()
    if field == "type" and wanted in texts:
        return _where(texts, lambda text: text == wanted)
    return _where(texts, lambda text: wanted in text)


def _find_on_device(project: OpenProject, name: str) -> BoolArray:
    try:
        device = find_device(name, project.problem.cluster, "device")
    except ProblemError as error:
        raise QueryError(str(error)) from None
    return _schedule(project, "device").plan.device == device


def _find_anywhere(project: OpenProject, wanted: str) -> BoolArray:
    """Find the ops whose name, scope, type, group or device contains a word."""
    profile, grouping, current = project.problem.profile, project.grouping, project.current
    found = _where(_lower_case(profile, "name"), lambda text: wanted in text)
    for field in ("scope", "type"):
        found |= _where(_lower_case(profile, field), lambda text: wanted in text)
    groups = [number for number, name in enumerate(grouping.names) if wanted in name.lower()]
    found |= np.isin(grouping.group, groups)
    if current is not None:
        devices = [
            number
            for number, device in enumerate(project.problem.cluster.devices)
            if wanted in f"{device.name} {device_label(device.name)}".lower()
        ]
        found |= np.isin(current.plan.device, devices)
    return found


@lru_cache(maxsize=8)
def _lower_case(profile: Profile, field: str) -> tuple[str, ...]:
    texts = {"name": profile.op_names, "scope": profile.scopes, "type": profile.op_types}[field]
    return tuple(text.lower() for text in texts)


def _where(texts: Sequence[str], holds: Callable[[str], bool]) -> BoolArray:
    return np.fromiter(map(holds, texts), bool, len(texts))


def _schedule(project: OpenProject, term: str) -> Schedule:
    if project.current is None:
        raise QueryError(f"{term}: there is no plan yet; press Solve first")
    return project.current.schedule


# Comparisons


def _compare(project: OpenProject, term: re.Match[str]) -> BoolArray:
    key = term["key"]
    units = TIMES_US if key == "time" else SIZES
    if key not in VALUES:
        raise QueryError(f"{key}: cannot be compared; use one of {', '.join(VALUES)}")
    unit = term["unit"] or ("ms" if units is TIMES_US else "mib")
    try:
        limit = float(term["number"]) * units[unit]
    except (KeyError, ValueError):
        example = "1ms" if units is TIMES_US else "10MiB"
        raise QueryError(f"{term[0]}: write a number and a unit, as in {key}>{example}") from None
    value = VALUES[key](project)
    compare = {">": np.greater, ">=": np.greater_equal, "<": np.less, "<=": np.less_equal}
    found: BoolArray = compare[term["sign"]](value, limit)
    return found


def _time_us(project: OpenProject) -> FloatArray:
    """Return each op's time on the device of the current plan, or else on the fastest one."""
    problem, current = project.problem, project.current
    if current is None:
        least_us: FloatArray = problem.time_us.min(axis=1)
        return least_us
    return problem.time_us[np.arange(problem.profile.n_ops), current.plan.device]


def _out_bytes(project: OpenProject) -> FloatArray:
    profile = project.problem.profile
    sent = np.bincount(profile.tensor_op, profile.tensor_bytes, minlength=profile.n_ops)
    return sent.astype(np.float64)


VALUES: dict[str, Callable[[OpenProject], FloatArray]] = {
    "time": _time_us,
    "weights": lambda project: project.problem.profile.persistent_bytes.astype(np.float64),
    "out": _out_bytes,
}
"""What can be compared: the time of an op, its weights, and its outputs."""


# Flags


def _critical(project: OpenProject) -> BoolArray:
    found = np.zeros(project.problem.profile.n_ops, dtype=bool)
    path = critical_path(_schedule(project, "critical"))
    found[path.number[~path.is_transfer]] = True
    return found


def _pinned(project: OpenProject) -> BoolArray:
    found = np.zeros(project.problem.profile.n_ops, dtype=bool)
    found[list(project.problem.pins)] = True
    return found


def _crossing(project: OpenProject) -> BoolArray:
    """Find the ops at either end of an edge between two devices."""
    profile, device = project.problem.profile, _schedule(project, "crossing").plan.device
    crosses = device[profile.edge_source] != device[profile.edge_op]
    found = np.zeros(profile.n_ops, dtype=bool)
    found[profile.edge_source[crosses]] = True
    found[profile.edge_op[crosses]] = True
    return found


FLAGS: dict[str, Callable[[OpenProject], BoolArray]] = {
    "critical": _critical,
    "pinned": _pinned,
    "crossing": _crossing,
}
"""Words with a meaning of their own: on the critical path, pinned, at an edge across devices."""


# Completion


def completions(project: OpenProject, query: str) -> list[str]:
    """List whole queries that go on from an unfinished one; best first."""
    last = next(reversed(_TERM.findall(query)), "") if not query.endswith(" ") else ""
    head = query[: len(query) - len(last)]
    minus = "-" if last.startswith("-") else ""
    term = last.removeprefix("-").lower()
    return [head + minus + each for each in _ways_on(project, term) if each.lower() != term]


def _ways_on(project: OpenProject, term: str) -> list[str]:
    key, colon, value = term.partition(":")
    if colon and key in FIELDS:
        offered = _values_of(project, key)
        near = [each for each in offered if each.lower().startswith(value)]
        near += [each for each in offered if value in each.lower() and each not in near]
        return [f"{key}:{_quoted(each)}" for each in near[:MOST_OFFERED]]
    words = [*(f"{field}:" for field in FIELDS), *(f"{each}>" for each in VALUES), *FLAGS]
    return [word for word in words if word.startswith(term)]


def _values_of(project: OpenProject, field: str) -> list[str]:
    """List what a field may be, the most frequent first."""
    profile = project.problem.profile
    if field == "device":
        return [device.name for device in project.problem.cluster.devices]
    if field == "type":
        return [text for text, _ in Counter(profile.op_types).most_common() if text]
    scopes = Counter(scope.rpartition("/")[0] or scope for scope in profile.scopes)
    return [scope for scope, _ in scopes.most_common() if scope]


def _quoted(text: str) -> str:
    return f'"{text}"' if " " in text else text


def _example(project: OpenProject, field: str) -> str:
    first = next(iter(_values_of(project, field)), "x")
    return f"{field}:{_quoted(first)}"
