"""Write the ``facts`` of plan files, projects and messages: a placer's report on its plan."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from enplace.readers.plan_facts import VALUE_KEYS
from enplace.values.plan import Plan


def facts_to_json(plan: Plan) -> dict[str, Any]:
    """Return everything that a placer reported about a plan, as plain data."""
    facts = dict(plan.details)
    if plan.objective in VALUE_KEYS:
        facts |= {VALUE_KEYS[plan.objective]: plan.value_us, "proven": plan.proven}
    for key in ("bound_us", "solve_seconds", "seed"):
        if getattr(plan, key) is not None:
            facts[key] = getattr(plan, key)
    if plan.nothing_fits:
        facts["nothing_fits"] = True
    if plan.subgraph is not None:
        facts["subgraph"] = plan.subgraph.tolist()
    if plan.recompute:
        facts["recompute"] = list(plan.recompute)
    if plan.pace_us:
        facts["pace_us"] = plan.pace_us
    for key, rule in (("load", plan.load_rule), ("rivals", plan.rivals)):
        if rule is not None:
            facts[key] = asdict(rule)
    return facts | ({"note": plan.note} if plan.note else {})
