"""Read the ``facts`` of plan files, projects and messages: a placer's report on its plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enplace.text import finite
from enplace.values.load_rule import PIPELINES, TRANSFERS, LoadRule
from enplace.values.problem import LATENCY, STEP_TIME, THROUGHPUT

VALUE_KEYS = {LATENCY: "latency_us", THROUGHPUT: "time_per_sample_us"}
"""Key of a plan's value, by objective; a plan for the step time has none."""

_OLD_KEYS = {"pieces": "subgraphs"}
"""Keys of details in older files, with the key of today."""

_FIELDS = ("bound_us", "proven", "load", "nothing_fits", "note", "solve_seconds", "seed")


def facts_from_json(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Read the fields of a :class:`~enplace.values.plan.Plan`; leave out unreadable ones."""
    objective = next((o for o, key in VALUE_KEYS.items() if key in facts), STEP_TIME)
    note, seed = facts.get("note"), facts.get("seed")
    known = {*VALUE_KEYS.values(), *_FIELDS}
    return {
        "objective": objective,
        "value_us": finite(facts.get(VALUE_KEYS.get(objective, ""))),
        "bound_us": finite(facts.get("bound_us")),
        "proven": facts.get("proven") is True,
        "load_rule": _load_rule(facts.get("load")),
        "nothing_fits": facts.get("nothing_fits") is True,
        "note": note if isinstance(note, str) else "",
        "solve_seconds": finite(facts.get("solve_seconds")),
        "seed": seed if type(seed) is int else None,
        "details": {_OLD_KEYS.get(k, k): value for k, value in facts.items() if k not in known},
    }


def _load_rule(load: Any) -> LoadRule | None:
    try:
        rule = LoadRule(**load)
    except TypeError:
        return None
    return rule if rule.transfers in TRANSFERS and rule.pipeline in PIPELINES else None
