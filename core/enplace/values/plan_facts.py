"""The ``facts`` of plan files, projects and messages: a placer's report on its plan."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from enplace.text import UNPRINTABLE, finite, one_line
from enplace.values.load_rule import PIPELINES, TRANSFERS, LoadRule
from enplace.values.plan import Claim, Plan
from enplace.values.problem import LATENCY, STEP_TIME, THROUGHPUT
from enplace.values.profile import IntArray
from enplace.values.rivals import ALL, CONTIGUOUS, STAGED, Rivals

VALUE_KEYS = {LATENCY: "latency_us", THROUGHPUT: "time_per_sample_us"}
"""Key of a plan's value, by objective; a plan for the step time has none."""

_MOST_SUBGRAPHS = 1 << 31

_YEAR_S = 3.2e7

_DIGEST = re.compile("[0-9a-f]{16}")

_OLD_RIVALS = ("contiguous", "subgraphs", "pieces")
"""Details from which older files left it to the reader to infer the rivals."""


def facts_to_json(plan: Plan) -> dict[str, Any]:
    """Return everything that a placer reported about a plan, as plain data."""
    facts = dict(plan.details)
    if plan.objective in VALUE_KEYS:
        facts |= {VALUE_KEYS[plan.objective]: plan.value_us, "proven": plan.proven}
    if plan.subgraph is not None:
        facts["subgraph"] = plan.subgraph.tolist()
    for key, rule in (("load", plan.load_rule), ("rivals", plan.rivals)):
        if rule is not None:
            facts[key] = asdict(rule)
    for key in _READ:
        value = getattr(plan, key)
        if value != _UNKNOWN[key]:
            facts[key] = list(value) if isinstance(value, tuple) else value
    return facts


def facts_from_json(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Read the fields of a :class:`~enplace.values.plan.Plan`; leave out unreadable ones."""
    objective = next((o for o, key in VALUE_KEYS.items() if key in facts), STEP_TIME)
    return {
        "objective": objective,
        "value_us": finite(facts.get(VALUE_KEYS.get(objective, ""))),
        "proven": facts.get("proven") is True,
        "rivals": _rivals(facts),
        "load_rule": _load_rule(facts.get("load")),
        "subgraph": _subgraph(facts.get("subgraph")),
        **{key: read(facts.get(key)) for key, read in _READ.items()},
        "details": {
            key: value
            for key, value in facts.items()
            if key not in _KNOWN and not UNPRINTABLE.search(f"{key}{value}")
        },
    }


def _duration(value: object) -> float | None:
    """Read the seconds of a run; none takes a year."""
    found = finite(value)
    return found if found is not None and 0 <= found < _YEAR_S else None


def _pace_us(value: object) -> float:
    found = finite(value)
    return found if found is not None and 0 <= found < _YEAR_S * 1e6 else 0.0


def facts_in_file(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Read the same from a file, which proves nothing: it may be a stranger's, or out of date."""
    found = facts_from_json(facts)
    proven = found["proven"] and found["value_us"] is not None
    bound_us = found["bound_us"] or (found["value_us"] if proven else 0.0)
    claim = Claim(bound_us, proven) if bound_us > 0 else None
    return found | {"bound_us": None, "proven": False, "rivals": None, "claim": claim}


def _devices(numbers: Any) -> tuple[int, ...]:
    known = isinstance(numbers, list) and all(type(each) is int for each in numbers)
    return tuple(numbers) if known else ()


def _subgraph(numbers: Any) -> IntArray | None:
    if not isinstance(numbers, list):
        return None
    known = all(type(number) is int and 0 <= number < _MOST_SUBGRAPHS for number in numbers)
    return np.array(numbers, dtype=np.int64) if known else None


def _rivals(facts: Mapping[str, Any]) -> Rivals | None:
    if "rivals" in facts:
        return _written_rivals(facts["rivals"])
    if "contiguous" in facts:
        return ALL if facts["contiguous"] is False else CONTIGUOUS
    if subgraphs := _positive(facts.get("subgraphs", facts.get("pieces"))):
        return Rivals(subgraphs)
    return STAGED if "ideals" in facts and facts.get("bound_us") is not None else None


def _written_rivals(written: Any) -> Rivals | None:
    try:
        rivals = Rivals(**written)
    except TypeError:
        return None
    known = rivals.subgraphs is None or _positive(rivals.subgraphs)
    return rivals if known and type(rivals.staged) is bool else None


def _positive(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


def _load_rule(load: Any) -> LoadRule | None:
    try:
        rule = LoadRule(**load)
    except TypeError:
        return None
    known = rule.transfers in TRANSFERS and rule.pipeline in PIPELINES
    return rule if known and _positive(rule.microbatches) else None


_READ: dict[str, Callable[[Any], Any]] = {
    "bound_us": finite,
    "nothing_fits": lambda value: value is True,
    "solve_seconds": _duration,
    "seed": lambda value: value if type(value) is int else None,
    "recompute": _devices,
    "pace_us": _pace_us,
    "noted_us": finite,
    "noted_for": lambda value: value if isinstance(value, str) and _DIGEST.fullmatch(value) else "",
    "note": lambda value: one_line(value) if isinstance(value, str) else "",
}
"""Reader of each fact whose key is the name of its field, and that is written as it is."""

_UNKNOWN = {each.name: each.default for each in fields(Plan) if each.name in _READ}
_KNOWN = {"proven", "rivals", "load", "subgraph", *VALUE_KEYS.values(), *_READ, *_OLD_RIVALS}
