"""The plan file ``plan.json``, see :mod:`enplace.readers.plans`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from enplace.bounds import step_bound_us, with_claim
from enplace.files.json_text import dump_json
from enplace.files.writing import write_atomically
from enplace.machine.pipelines.v_shape import find_halves
from enplace.readers.plans import NAME, VERSION
from enplace.values.constraints import Pin
from enplace.values.op_sizes import op_sizes
from enplace.values.plan_facts import facts_to_json
from enplace.values.problem import LATENCY
from enplace.values.result import Result
from enplace.writers.clusters import cluster_text
from enplace.writers.constraints import constraints_by_name, constraints_to_json
from enplace.writers.split_list import splits_to_json


def write_plan(path: str | os.PathLike[str], result: Result) -> None:
    """Write ``plan.json``; the same result gives the same text.

    Raises
    ------
    FileError
        If the file cannot be written.
    """
    problem, plan = result.schedule.problem, result.plan
    names = [device.name for device in problem.cluster.devices]
    order = np.argsort(plan.position).tolist()
    sizes, rule = op_sizes(problem.profile), plan.load_rule
    is_v = rule is not None and rule.pipeline == "zbv"
    halves = find_halves(problem, plan) if is_v else None
    halves = np.zeros_like(plan.device) if halves is None else halves
    ops = ",\n".join(
        f'    {{"device": {dump_json(names[plan.device[op]])}, "op": {dump_json(name)}'
        f"{_number_text('stage', halves[op])}{_number_text('bytes', sizes.get(name, 0))}}}"
        for op, name in ((op, problem.profile.op_names[op]) for op in order)
    )
    head = dump_json(_head(result), indent=2)[:-2]
    cluster = cluster_text(problem.cluster).replace("\n", "\n  ")
    constraints = constraints_to_json(constraints_by_name(problem))
    constraints.pop(Pin.key, None)  # they are written by op, see _head
    rows: dict[str, Sequence[object]] = {"splits": splits_to_json(plan.splits), **constraints}
    lists = "".join(_list_text(key, each) for key, each in rows.items())
    write_atomically(path, f'{head},\n  "cluster": {cluster},\n{lists}  "ops": [\n{ops}\n  ]\n}}\n')


def _number_text(key: str, number: int) -> str:
    return f', "{key}": {number}' if number else ""


def _list_text(key: str, entries: Sequence[object]) -> str:
    """Write a list, one line for each entry; nothing for an empty list."""
    lines = ",\n".join(f"    {dump_json(entry)}" for entry in entries)
    return f'  "{key}": [\n{lines}\n  ],\n' if lines else ""


def _head(result: Result) -> dict[str, Any]:
    schedule, plan, problem = result.schedule, result.plan, result.schedule.problem
    bound_us = step_bound_us(schedule, result.step_bound_us)
    profile, devices = problem.profile, problem.cluster.devices
    pins = {profile.op_names[op]: devices[device].name for op, device in problem.pins.items()}
    measured = problem.measured_profile.measured
    shapes, estimated = profile.measured.batch_shapes, measured.estimated
    parts = measured.parts_of_batch
    replicas = [[devices[device].name for device in group] for group in plan.replicas]
    facts = facts_to_json(with_claim(problem, plan, schedule.value_us))
    if result.proven_by:  # whoever reads it cannot repeat that
        facts["bound_us"] = bound_us
    if plan.objective != LATENCY:  # ops say their stages themselves
        facts.pop("subgraph", None)
    return {
        "format": f"{NAME}/{VERSION}",
        "profile": {
            "name": profile.name,
            "fingerprint": problem.measured_profile.fingerprint,
            "ops": profile.n_ops,
            **({"batch_shapes": shapes} if shapes else {}),
            **({"cut_batch": parts} if parts > 1 else {}),
            **({"framework": measured.framework_name} if measured.framework_name else {}),
        },
        "method": plan.method,
        "policy": plan.policy,
        "links": plan.links,
        "predicted": {
            "step_time_us": schedule.makespan_us,
            **({"estimated": estimated} if estimated else {}),
            "lower_bound_us": bound_us,
            "fits": schedule.fits,
            "peak_bytes": {
                device.name: int(peak)
                for device, peak in zip(devices, schedule.peak_bytes, strict=True)
            },
        },
        "facts": dict(sorted(facts.items())),
        "pins": dict(sorted(pins.items())),
        **({"replicas": replicas} if replicas else {}),
    }
