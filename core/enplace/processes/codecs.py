"""Profiles, problems and plans as messages, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, fields
from typing import Any

import numpy as np

from enplace.processes.wire import Message
from enplace.readers.cluster_json import cluster_from_json
from enplace.readers.measurement import measurement_from_json
from enplace.values.constraints import Constraints, frozen
from enplace.values.plan import Plan
from enplace.values.plan_facts import facts_from_json, facts_to_json
from enplace.values.problem import Problem
from enplace.values.profile import Profile
from enplace.values.splits import Split
from enplace.writers.clusters import cluster_to_json
from enplace.writers.measurement import measurement_to_json


def profile_message(profile: Profile, do: str = "profile") -> Message:
    """Write a profile as a message, with everything that was measured.

    The receiver needs the measurement: it says which ops are backward and how ops can be split.
    """
    values = {f.name: getattr(profile, f.name) for f in fields(profile)}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    details = {n: v for n, v in values.items() if n not in arrays}
    details["measured"] = measurement_to_json(profile.measured)
    return Message(do, details, arrays)


def profile_from(message: Message) -> Profile:
    """Read what :func:`profile_message` wrote."""
    texts = {n: tuple(v) if isinstance(v, list) else v for n, v in message.details.items()}
    texts["measured"] = measurement_from_json(message.details["measured"])
    return Profile(**texts, **message.arrays)  # type: ignore[arg-type]


def problem_to_json(problem: Problem) -> dict[str, Any]:
    """Write a problem without its profile, which is sent as it was measured, as plain data."""
    return {
        "cluster": cluster_to_json(problem.cluster),
        "constraints": {kind.key: rows for kind, rows in problem.constraints.items()},
        "splits": list(map(astuple, problem.splits)),
    }


def problem_from(profile: Profile, data: Mapping[str, Any]) -> Problem:
    """Read what :func:`problem_to_json` wrote."""
    return Problem(
        profile,
        cluster_from_json(data["cluster"]),
        Constraints.of({key: map(frozen, rows) for key, rows in data["constraints"].items()}),
        tuple(Split(*frozen(split)) for split in data.get("splits", ())),
    )


def plan_message(do: str, plan: Plan, details: Mapping[str, Any]) -> Message:
    """Write a plan as a message, with further details."""
    head = {"method": plan.method, "policy": plan.policy, "links": plan.links}
    parts = {"splits": list(map(astuple, plan.splits)), "replicas": plan.replicas}
    arrays = {"device": plan.device, "position": plan.position}
    everything = {**details, "plan": {**head, "facts": facts_to_json(plan)}, **parts}
    return Message(do, everything, arrays)


def plan_from(message: Message) -> Plan:
    """Read the plan that a message carries."""
    device, position = message.arrays["device"], message.arrays["position"]
    splits = tuple(Split(*frozen(split)) for split in message.details["splits"])
    replicas = tuple(tuple(group) for group in message.details["replicas"])
    head = dict(message.details["plan"])
    reported = facts_from_json(head.pop("facts"))
    return Plan(device, position, **head, **reported, splits=splits, replicas=replicas)
