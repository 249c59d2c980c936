"""Read the ``facts`` of plan files, projects and messages: a placer's report on its plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from enplace.text import UNPRINTABLE, finite, one_line
from enplace.values.load_rule import PIPELINES, TRANSFERS, LoadRule
from enplace.values.problem import LATENCY, STEP_TIME, THROUGHPUT
from enplace.values.profile import IntArray
from enplace.values.rivals import ALL, CONTIGUOUS, STAGED, Rivals

VALUE_KEYS = {LATENCY: "latency_us", THROUGHPUT: "time_per_sample_us"}
"""Key of a plan's value, by objective; a plan for the step time has none."""

_FIELDS = (
    *("bound_us", "proven", "rivals", "load", "subgraph", "nothing_fits", "note"),
    *("solve_seconds", "seed", "recompute", "pace_us"),
)
_MOST_SUBGRAPHS = 1 << 31

PROVEN_BY_AUTHOR = "Proven best, says its file."

_YEAR_S = 3.2e7

_OLD_RIVALS = ("contiguous", "subgraphs", "pieces")
"""Details from which older files left it to the reader to infer the rivals."""


def facts_from_json(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Read the fields of a :class:`~enplace.values.plan.Plan`; leave out unreadable ones."""
    objective = next((o for o, key in VALUE_KEYS.items() if key in facts), STEP_TIME)
    note, seed = facts.get("note"), facts.get("seed")
    known = {*VALUE_KEYS.values(), *_FIELDS, *_OLD_RIVALS}
    return {
        "objective": objective,
        "value_us": finite(facts.get(VALUE_KEYS.get(objective, ""))),
        "bound_us": finite(facts.get("bound_us")),
        "proven": facts.get("proven") is True,
        "rivals": _rivals(facts),
        "load_rule": _load_rule(facts.get("load")),
        "subgraph": _subgraph(facts.get("subgraph")),
        "recompute": _devices(facts.get("recompute")),
        "pace_us": _pace_us(facts.get("pace_us")),
        "nothing_fits": facts.get("nothing_fits") is True,
        "note": one_line(note) if isinstance(note, str) else "",
        "solve_seconds": _duration(facts.get("solve_seconds")),
        "seed": seed if type(seed) is int else None,
        "details": {
            key: value
            for key, value in facts.items()
            if key not in known and not UNPRINTABLE.search(f"{key}{value}")
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
    if found["proven"]:
        found["note"] = " ".join(filter(None, (found["note"], PROVEN_BY_AUTHOR)))
    return found | {"bound_us": None, "proven": False, "rivals": None}


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
