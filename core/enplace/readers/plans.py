"""The plan file ``plan.json`` that teammates exchange.

Ops are listed once, in the order of the plan, one line each with its device. Moving an op changes
one line, and a device's order is that of its lines. The file also keeps the order across devices,
which decides which transfer gets a channel first.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from enplace.errors import EnplaceError, FileError
from enplace.files.fields import check_format, each_object, is_object, number, shown, take, whole
from enplace.files.json_text import parse_json
from enplace.files.reading import naming, read_bytes
from enplace.machine.check_claims import check_claims
from enplace.readers.cluster_json import cluster_from_json
from enplace.readers.constraints import constrain, rows_by_name
from enplace.readers.measurement import measurement_from_json
from enplace.readers.split_list import splits_from_json
from enplace.values.arrays import inverse
from enplace.values.cluster import Cluster
from enplace.values.constraints import Before, Constraints, Pin, Row
from enplace.values.plan import Claim, Plan, follow_graph
from enplace.values.plan_facts import facts_in_file
from enplace.values.problem import Problem, split_problem
from enplace.values.profile import KINDS, IntArray, Profile, make_profile

NAME, VERSION = "enplace-plan", 1
NOWHERE = -1


@dataclass(frozen=True, eq=False)
class PlanFile:
    """A plan from a file, perhaps made for another version of the graph.

    Attributes
    ----------
    problem : Problem
        The problem that the plan was read for, with the plan's splits applied.
    plan : Plan
        Ops that the file does not place have device -1 and come last; see :func:`complete_plan`.
    missing, unknown : list of str
        Ops of the profile that the file does not place, and ops of the file that are not in the
        profile.
    constraints : mapping of str to lists of rows
        What the plan was made under, by kind, with names for numbers; see
        :func:`~enplace.readers.constraints.constrain`.
    same_graph : bool
        Whether the fingerprints agree, or the file has none, as when a person wrote it.
    """

    problem: Problem
    plan: Plan
    missing: list[str]
    unknown: list[str]
    constraints: Mapping[str, list[Row]]
    same_graph: bool


@dataclass(frozen=True, eq=False)
class LonePlan:
    """A plan read without the profile that it was made for.

    Attributes
    ----------
    problem : Problem
        The plan's ops, split ones as their parts, without edges other than the order that a person
        wants, and with a microsecond each; and the plan's cluster. Of the measurement, it has the
        shapes of the batches and the framework.
    plan : Plan
    constraints : mapping of str to lists of rows
        As in :class:`PlanFile`.
    step_time_us : float
        The file's own prediction; NaN if it has none, or only that of a part of the batch.
    peak_bytes : mapping of str to int
        The predicted peak of each device by name; empty if the file has none.
    estimated : str
        The GPU that op times are estimated for; empty if the file does not say so.
    op_sizes : mapping of str to int
        As :func:`~enplace.values.op_sizes.op_sizes` returns them; empty if the file has none.
    """

    problem: Problem
    plan: Plan
    constraints: Mapping[str, list[Row]]
    step_time_us: float
    peak_bytes: Mapping[str, int]
    estimated: str
    op_sizes: Mapping[str, int]


def read_plan(path: str | os.PathLike[str], problem: Problem) -> PlanFile:
    """Read ``plan.json`` for a problem; devices are matched by name, ops by name.

    Raises
    ------
    FileError
        If the file is damaged, is not a plan, names an op twice or an unknown device.
    SplitError
        If it splits ops that are not in the graph or cannot be split that way.
    """
    with naming(path):
        data = _load(path)
        problem = split_problem(problem, splits_from_json(data))
        profile, index = problem.profile, problem.cluster.index
        where = _placements(data, index, problem.cluster.name)
        unknown = [name for name in where if name not in profile.index]
        missing = [name for name in profile.op_names if name not in where]
        device = np.array([where.get(name, NOWHERE) for name in profile.op_names], dtype=np.int64)
        listed = [profile.index[name] for name in where if name in profile.index]
        order = [*listed, *(profile.index[name] for name in missing)]
        facts = facts_in_file(take(data, "facts", dict, "", {}))
        if missing or unknown:
            facts["subgraph"] = None
        stages = _numbers(data, "stage")
        if not missing and stages:
            facts["subgraph"] = np.array([stages.get(name, 0) for name in profile.op_names])
        plan = Plan(
            device,
            inverse(np.array(order, dtype=np.int64)),
            method=take(data, "method", str, "", "plan"),
            policy=take(data, "policy", str, "", "priority"),
            links=take(data, "links", str, "", "fifo"),
            replicas=_replicas(data, index, problem.cluster.name),
            splits=problem.splits,
            **facts,
        )
        fingerprint = take(data, "profile", dict, "", {}).get("fingerprint")
        demands = _constraints(data, index, problem.cluster.name)
        own = problem.measured_profile.fingerprint
        if plan.claim is not None and fingerprint == own and not (missing or unknown):
            plan = replace(plan, claim=_of_its_problem(plan.claim, problem, data, demands))
        same = fingerprint in (None, own)
        return PlanFile(problem, plan, missing, unknown, demands, same)


def read_plan_cluster(path: str | os.PathLike[str]) -> Cluster:
    """Read the cluster that a plan was made for.

    Raises
    ------
    FileError, ClusterError
        If the file is damaged or not a plan.
    """
    with naming(path):
        return cluster_from_json(take(_load(path), "cluster", dict, ""), "cluster")


def read_plan_framework(path: str | os.PathLike[str]) -> str:
    """Read the name of the framework whose model a plan places; empty if the plan has none.

    Raises
    ------
    FileError
        If the file is damaged or not a plan.
    """
    with naming(path):
        graph = take(_load(path), "profile", dict, "", {})
        return take(graph, "framework", str, "profile", "")


def read_plan_alone(path: str | os.PathLike[str]) -> LonePlan:
    """Read a plan without the profile that it was made for.

    Raises
    ------
    FileError, ClusterError
        If the file is damaged or not a plan.
    """
    with naming(path):
        data = _load(path)
        cluster = cluster_from_json(take(data, "cluster", dict, ""), "cluster")
        names = list(_placements(data, cluster.index, cluster.name))
        graph, predicted = (take(data, key, dict, "", {}) for key in ("profile", "predicted"))
        profile = _bare_profile(take(graph, "name", str, "profile", ""), names)
        measured = {key: graph[key] for key in ("batch_shapes", "framework") if key in graph}
        if "cut_batch" in graph:
            measured["source"] = {"cut_batch": whole(graph, "cut_batch", "profile", low=2)}
        profile = replace(profile, measured=measurement_from_json(measured, "profile"))
        known = "step_time_us" in predicted and "cut_batch" not in graph
        predicted_us = number(predicted, "step_time_us", "predicted") if known else math.nan
        peaks = take(predicted, "peak_bytes", dict, "predicted", {})
        peak_bytes = {device: whole(peaks, device, "predicted.peak_bytes") for device in peaks}
        estimated = take(predicted, "estimated", str, "predicted", "")
        problem = Problem(profile, cluster, splits=splits_from_json(data))
        sizes = _numbers(data, "bytes")
    found = read_plan(path, problem)
    with naming(path):
        orders = {Before.key: found.constraints.get(Before.key, [])}
        problem = constrain(problem, orders).problem
    facts = predicted_us, peak_bytes, estimated, sizes
    return LonePlan(problem, found.plan, found.constraints, *facts)


def _bare_profile(name: str, op_names: list[str]) -> Profile:
    return make_profile(name, op_names=op_names, time_us=np.ones((len(op_names), len(KINDS))))


def _load(path: str | os.PathLike[str]) -> dict[str, Any]:
    data = is_object(parse_json(read_bytes(path)), "")
    if "format" not in data:
        raise FileError(f"not a plan: 'format' is missing; it should be \"{NAME}/{VERSION}\"")
    check_format(data, NAME, VERSION)
    return data


def _placements(data: dict[str, Any], index: Mapping[str, int], cluster: str) -> dict[str, int]:
    """Read the device number of each op, by name, in the order of the file."""
    found: dict[str, int] = {}
    for entry, place in each_object(data, "ops", ""):
        op = take(entry, "op", str, place)
        if op in found:
            raise FileError(f"{place}: op {shown(op)} is placed twice; keep one line")
        found[op] = _device(take(entry, "device", str, place), index, cluster, place)
    return found


def _numbers(data: dict[str, Any], key: str) -> dict[str, int]:
    """Read a number of those ops that have it, by name; :func:`_placements` has checked the list.

    It is the ``bytes`` of an op, or the ``stage`` of its device that it is in.
    """
    entries = enumerate(data["ops"])
    return {entry["op"]: whole(entry, key, f"ops[{i}]") for i, entry in entries if key in entry}


def _device(name: str, index: Mapping[str, int], cluster: str, place: str) -> int:
    if name not in index:
        raise FileError(
            f"{place}: cluster '{cluster}' has no device {shown(name)}; "
            f"choose the cluster that the plan was made for"
        )
    return index[name]


def _constraints(
    data: dict[str, Any], index: Mapping[str, int], cluster: str
) -> dict[str, list[Row]]:
    """Return the constraints by kind; pins, which are written by op, as rows like the others."""
    pins = take(data, "pins", dict, "", {})
    for op in pins:
        _device(take(pins, op, str, "pins"), index, cluster, "pins")
    return rows_by_name({**data, Pin.key: list(map(list, pins.items()))})


def _of_its_problem(
    claim: Claim, problem: Problem, data: dict[str, Any], demands: Mapping[str, list[Row]]
) -> Claim | None:
    """Return what a file claims, of the cluster and the constraints in it; None if they are unfit.

    Parameters
    ----------
    problem : Problem
        The same graph, perhaps on another cluster.
    """
    with suppress(EnplaceError):
        cluster = cluster_from_json(take(data, "cluster", dict, ""), "cluster")
        made = constrain(replace(problem, cluster=cluster, constraints=Constraints()), demands)
        if not (made.unknown or made.overruled):
            return replace(claim, problem=made.problem)
    return None


def _replicas(
    data: dict[str, Any], index: Mapping[str, int], cluster: str
) -> tuple[tuple[int, ...], ...]:
    groups = take(data, "replicas", list, "", [])
    found = []
    for i, group in enumerate(groups):
        place = f"replicas[{i}]"
        if not (isinstance(group, list) and len(group) > 1):
            raise FileError(f"{place}: must be a list of at least two devices")
        found.append(tuple(_device(str(name), index, cluster, place) for name in group))
    return tuple(found)


def complete_plan(problem: Problem, planfile: PlanFile) -> Plan:
    """Place the ops that are missing in a plan file next to their neighbours; keep the others.

    An op joins its colocation group, else the allowed device with which it exchanges most bytes. In
    the order it comes just after its last producer. The value of the plan is computed again.
    """
    plan = planfile.plan
    if not planfile.missing:
        return check_claims(problem, plan)
    device = plan.device.copy()
    unit_device = np.full(problem.n_units, NOWHERE, dtype=np.int64)
    placed = device != NOWHERE
    unit_device[problem.unit[placed]] = device[placed]
    for op in problem.profile.topological_order.tolist():
        if device[op] == NOWHERE:
            unit = problem.unit[op]
            if unit_device[unit] == NOWHERE:
                unit_device[unit] = _busiest_neighbour(problem, device, op)
            device[op] = unit_device[unit]
    position = _insert(problem.profile, plan, placed)
    return check_claims(problem, replace(plan, device=device, position=position))


def _busiest_neighbour(problem: Problem, device: IntArray, op: int) -> int:
    """Find the allowed device with which an op exchanges most bytes."""
    profile = problem.profile
    into = profile.edges_into(op)
    out = np.arange(
        profile.edge_ptr[profile.tensor_ptr[op]], profile.edge_ptr[profile.tensor_ptr[op + 1]]
    )
    edges = np.concatenate([into, out])
    others = device[np.concatenate([profile.edge_source[into], profile.edge_op[out]])]
    pull = np.zeros(problem.cluster.n_devices)
    known = others != NOWHERE
    # One byte more, so that a control edge counts for something.
    np.add.at(pull, others[known], profile.tensor_bytes[profile.edge_tensor[edges[known]]] + 1.0)
    return int(np.argmax(np.where(problem.unit_allowed[problem.unit[op]], pull, -1.0)))


def _insert(profile: Profile, plan: Plan, placed: np.ndarray[Any, np.dtype[np.bool_]]) -> IntArray:
    """Order every op after its producers; placed ops keep their order where they can."""
    key = np.where(placed, plan.position, NOWHERE).astype(np.float64)
    for op in profile.topological_order.tolist():
        if not placed[op]:
            producers = profile.edge_source[profile.edges_into(op)]
            key[op] = key[producers].max(initial=-1.0)
    return follow_graph(profile, key)
