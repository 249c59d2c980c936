"""Queries such as ``type:MatMul scope:decoder time>1ms device:0 critical``, which find ops. No Qt.

A query is a list of terms; an op must satisfy all of them. A minus before a term excludes what it
finds. Quotes keep spaces together: ``scope:"layer 1"``. A scope may also be written as the graph
prints it, with or without quotes: ``scope:lstm 0 / t 4–7``. ``up:TERM`` finds what leads to the ops
that a term finds; the words of :data:`enplace_studio.model.relations.RELATIONS` work alike.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from enplace.errors import EnplaceError, ProblemError
from enplace.machine import critical_path
from enplace.names.groups import Grouping
from enplace.names.rules import find_device
from enplace.names.titles import make_path, title
from enplace.values.arrays import marked
from enplace.values.pins import FREE
from enplace.values.problem import BoolArray
from enplace.values.profile import FloatArray, Profile
from enplace.values.schedule import Schedule
from enplace_studio.model.open_project import OpenProject
from enplace_studio.model.relations import RELATIONS, Relation

_RELATED = {relation.word: relation for relation in RELATIONS if relation.word}
FIELDS = ("name", "scope", "type", "device")
TIMES_US = {"us": 1.0, "ms": 1e3, "s": 1e6}
SIZES = {"b": 1.0, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}
_MOST_WORDS = 12
"""Most words of a printed scope."""
MOST_OFFERED = 12
"""Most scopes, types or devices that one completion offers."""

_TERM = re.compile(r'(?:[^\s"]|"[^"]*"?)+')
_COMPARISON = re.compile(r"(?P<key>[a-z]+)(?P<sign>>=|<=|>|<)(?P<value>.*)")
_AMOUNT = re.compile(r"(?P<number>[0-9.]+)(?P<unit>[a-z]*)")
_SCOPE = "scope:"


class QueryError(EnplaceError):
    """A query has a term that cannot be understood."""


def find_ops(project: OpenProject, query: str) -> BoolArray:
    """Find the ops that satisfy a query; shape (n_ops,). An empty query finds none.

    Raises
    ------
    QueryError
        With the first term that cannot be understood, and what to write.
    """
    terms = _terms(project, query)
    found = np.full(project.problem.profile.n_ops, bool(terms))
    for term in terms:
        excluded = term.startswith("-") and len(term) > 1
        hits = _find(project, term[excluded:])
        found &= ~hits if excluded else hits
    return found


def _terms(project: OpenProject, query: str) -> list[str]:
    """Split a query into terms; the words of a printed scope are one term without quotes too."""
    terms, at = _TERM.findall(query), 0
    printed = printed_scopes(project.grouping) if _SCOPE in query.lower() else {}
    while at < len(terms):
        head, colon, first = terms[at].rpartition(_SCOPE)
        if colon and '"' not in first:
            for end in range(min(len(terms), at + _MOST_WORDS), at + 1, -1):
                name = " ".join([first, *terms[at + 1 : end]])
                if name.lower() in printed:
                    terms[at:end] = [f'{head}{colon}"{name}"']
                    break
        at += 1
    return terms


@lru_cache(maxsize=4)
def printed_scopes(grouping: Grouping) -> dict[str, str]:
    """Return the names that the graph prints, by their lower case: rows, groups and labels."""
    names = (*dict.fromkeys(grouping.rows), *grouping.names, *grouping.labels)
    return {name.lower(): name for name in reversed(names) if name}


def _find_printed(grouping: Grouping, name: str) -> BoolArray:
    """Find the ops of the groups with a printed name, or in a row with it."""
    called = zip(grouping.rows, grouping.names, grouping.labels, strict=True)
    lower = ([text.lower() for text in texts] for texts in called)
    groups = [number for number, texts in enumerate(lower) if name in texts]
    return np.isin(grouping.group, groups)


def _find(project: OpenProject, term: str) -> BoolArray:
    word, colon, rest = term.partition(":")
    if colon and (relation := _RELATED.get(word)):
        return _find_related(project, relation, rest)
    text = term.replace('"', "")
    if text in FLAGS:
        return FLAGS[text](project)
    comparison = _COMPARISON.fullmatch(text.lower())
    if comparison and comparison["key"] in VALUES:
        return _compare(project, comparison)
    if comparison and _AMOUNT.fullmatch(comparison["value"]):
        names = ", ".join(VALUES)
        raise QueryError(f"{comparison['key']}: cannot be compared; use one of {names}")
    key, colon, value = text.partition(":")
    if colon and key in FIELDS:
        return _find_in_field(project, key, value)
    return _find_anywhere(project, text.lower())


def _find_related(project: OpenProject, relation: Relation, term: str) -> BoolArray:
    """Find the ops related to those that a term finds."""
    if not term:
        example = f"{relation.word}:{_example(project, 'type')}"
        raise QueryError(f"{relation.word}: needs a term, for example {example}")
    ops = np.flatnonzero(_find(project, term))
    return relation.find(project.problem.measured_profile, ops)


def _find_in_field(project: OpenProject, field: str, value: str) -> BoolArray:
    if not value:
        raise QueryError(f"{field}: needs a value, for example {_example(project, field)}")
    profile = project.problem.profile
    if field == "device":
        return _find_on_device(project, value)
    texts, wanted = _lower_case(profile, field), value.lower()
    if field == "scope" and wanted in printed_scopes(project.grouping):
        return _find_printed(project.grouping, wanted)
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
            if wanted in f"{device.name} {device.label}".lower()
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
    key, value = term["key"], VALUES[term["key"]](project)
    compare = {">": np.greater, ">=": np.greater_equal, "<": np.less, "<=": np.less_equal}
    found: BoolArray = compare[term["sign"]](value, _limit(key, term["value"]))
    return found


def _limit(key: str, text: str) -> float:
    """Read what a value is compared with.

    Raises
    ------
    QueryError
        If it is no number with a unit.
    """
    units = TIMES_US if key == "time" else SIZES
    what, example = ("time", "1ms") if key == "time" else ("size", "10MiB")
    amount = _AMOUNT.fullmatch(text)
    try:
        if amount is None:
            raise ValueError
        unit = amount["unit"] or ("ms" if units is TIMES_US else "mib")
        return float(amount["number"]) * units[unit]
    except (KeyError, ValueError):
        given = f"“{text}” is not a {what}" if text else f"needs a {what}"
        raise QueryError(f"{key}: {given}; write for example {key}>{example}") from None


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
    return project.problem.pinned_to != FREE


def _crossing(project: OpenProject) -> BoolArray:
    """Find the ops at either end of an edge between two devices."""
    profile, device = project.problem.profile, _schedule(project, "crossing").plan.device
    crosses = device[profile.edge_source] != device[profile.edge_op]
    found = marked(profile.n_ops, profile.edge_source[crosses])
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
    begun = _begun_scope(project, query)
    last = begun or next(reversed(_TERM.findall(query)), "")
    if query.endswith(" ") and not begun:
        last = ""
    head = query[: len(query) - len(last)]
    minus = "-" if last.startswith("-") else ""
    term = last.removeprefix("-")
    return [head + minus + each for each in _ways_on(project, term) if each.lower() != term.lower()]


def _begun_scope(project: OpenProject, query: str) -> str:
    """Return the end of a query that begins a printed scope of several words; else nothing."""
    _, colon, name = query.lower().rpartition(_SCOPE)
    if not colon or '"' in name or " " not in name:
        return ""
    goes_on = any(each.startswith(name) for each in printed_scopes(project.grouping))
    return _SCOPE + name if goes_on else ""


def _ways_on(project: OpenProject, term: str) -> list[str]:
    key, colon, value = term.partition(":")
    if colon and key.lower() in _RELATED:
        return [f"{key.lower()}:{each}" for each in _ways_on(project, value)]
    if colon and key.lower() in FIELDS:
        return _values_with(project, key.lower(), value.replace('"', "").lower())
    words = [*(f"{field}:" for field in FIELDS), *(f"{each}>" for each in VALUES), *FLAGS]
    words += [f"{word}:" for word in _RELATED]
    return [word for word in words if word.startswith(term.lower())]


def _values_with(project: OpenProject, field: str, value: str) -> list[str]:
    """List the terms of a field whose value begins with a text, then those that contain it."""
    offered = _values_of(project, field)
    near = [each for each in offered if each.lower().startswith(value)]
    near += [each for each in offered if value in each.lower() and each not in near]
    return [f"{field}:{_quoted(each)}" for each in near[:MOST_OFFERED]]


def _values_of(project: OpenProject, field: str) -> list[str]:
    """List what a field may be, the most frequent first."""
    profile = project.problem.profile
    if field == "device":
        return [device.name for device in project.problem.cluster.devices]
    if field == "type":
        return [text for text, _ in Counter(profile.op_types).most_common() if text]
    grouping = project.grouping
    printed = [*dict.fromkeys(row for row in grouping.rows if row), *grouping.names]
    known = set(printed)
    scopes = Counter(scope.rpartition("/")[0] or scope for scope in profile.scopes)
    others = (scope for scope, _ in scopes.most_common() if scope)
    others = (scope for scope in others if title(make_path(scope)) not in known)
    return list(dict.fromkeys([*printed, *others]))


def _quoted(text: str) -> str:
    return f'"{text}"' if " " in text else text


def _example(project: OpenProject, field: str) -> str:
    first = next(iter(_values_of(project, field)), "x")
    return f"{field}:{_quoted(first)}"
