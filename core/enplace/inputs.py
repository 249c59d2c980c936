"""Turn what a person names into a problem, a plan and methods, for the command and for Python.

Nothing heavy is imported before a function needs it.
"""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from enplace.errors import (
    EnplaceError,
    EnplaceWarning,
    FileError,
    PinConflictError,
    PlanError,
    ProblemError,
)
from enplace.text import count, instead

if TYPE_CHECKING:
    from enplace.option import Value
    from enplace.readers.clusters import ClusterChoice
    from enplace.values.cluster import Cluster
    from enplace.values.constraints import Kind, Row
    from enplace.values.plan import Plan
    from enplace.values.problem import Problem
    from enplace.values.profile import Profile
    from enplace.values.result import Result

SHOWN = 3

PathLike = str | os.PathLike[str]
Pair = tuple[Any, Any]
"""What one text has before and after ``=``."""


class OtherGraphError(PlanError):
    """A plan that was made for another graph; ``details`` lists the ops for ``--json``."""

    def __init__(self, message: str, missing: list[str], new: list[str]) -> None:
        super().__init__(message)
        self.details: dict[str, Any] = {"missing_ops": missing, "new_ops": new}


def find_profile(profile: Profile | PathLike) -> Profile:
    """Read a profile, unless it is one already.

    Raises
    ------
    EnplaceError
        If the file cannot be used.
    """
    from enplace.readers import read_profile
    from enplace.values.profile import Profile

    if isinstance(profile, Profile):
        return profile
    try:
        return read_profile(profile)
    except FileError:
        what, how = "a model", _how_to_profile(profile)
        if not how and not os.path.lexists(profile) and os.fspath(profile) in _sample_names():
            what, how = "a bundled sample", f"enplace import {profile} -o {profile}.enplace"
        if how:
            raise FileError(f"{profile}: is {what}; make its profile first: {how}") from None
        raise


def _sample_names() -> list[str]:
    from enplace.readers.samples import samples

    return [sample.name for sample in samples()]


def make_problem(
    profile: Profile | PathLike,
    cluster: ClusterChoice,
    scale_compute: float = 1.0,
    scale_links: float = 1.0,
    constraints: PathLike | None = None,
    grain: str = "",
    whole: Iterable[str] = (),
    reserve: str = "",
    dashes: str = "",
    objective: str = "",
    **given: Any,
) -> Problem:
    """Build the problem of a profile, a cluster and constraints.

    Parameters
    ----------
    constraints : path, optional
        A file of constraints.
    grain : str
        What stays whole, as the model's framework knows it, such as ``module``; nothing if it is
        ``op``. By default, what the framework keeps whole for the objective, unless ``whole`` is
        given or another constraint divides it.
    whole : iterable of str
        Regexes; ops with the same match of one stay together.
    reserve : str
        Memory of each GPU that no plan may use, as for
        :meth:`~enplace.values.cluster.Cluster.reserving`.
    dashes : str
        What to put before ``pin`` and so on in a message: ``--`` on the command line.
    objective : str
        What the plan shall be good for.
    **given : iterables
        Constraints by the keyword of their kind: ``pins``, ``colocate``... They are as for
        ``--pin`` and so on: regexes of op names, and names of devices.

    Raises
    ------
    EnplaceError
        If a file, a name or a constraint cannot be used.
    """
    from enplace.frameworks.registry import at_usual_grain, keep_whole
    from enplace.names.whole import find_layers
    from enplace.readers.clusters import cluster_from
    from enplace.values.constraints import KINDS, Constraints, Pin
    from enplace.values.device_scopes import scope_pins
    from enplace.values.problem import Problem

    profile = find_profile(profile)
    machine = cluster_from(cluster, profile).scaled(scale_compute, scale_links).reserving(reserve)
    rows = {
        key: _read_rows(kind, given.get(kind.keyword, ()), profile, machine, f"{dashes}{key}")
        for key, kind in KINDS.items()
    }
    pinned = {op for op, _ in rows[Pin.key]}
    rows[Pin.key] += scope_pins(profile, machine, pinned)
    for pattern in whole:
        layers = find_layers(pattern, profile, f"{dashes}whole")
        rows["colocate"] += [tuple(ops) for ops in layers.values() if len(ops) > 1]
    problem = Problem(profile, machine, Constraints.of(rows))
    if constraints is not None:
        problem = _with_constraints(problem, constraints)
    if grain:
        return keep_whole(problem, grain)
    return problem if whole else at_usual_grain(problem, objective)


def make_roomy_problem(
    profile: Profile | PathLike,
    cluster: ClusterChoice,
    scale_compute: float = 1.0,
    scale_links: float = 1.0,
    reserve: str = "",
    **given: Any,
) -> tuple[Problem, Cluster]:
    """Build a problem as :func:`make_problem` does, but with boundless memory; return the cluster.

    A problem whose variables are too large for its cluster cannot be built.

    Raises
    ------
    EnplaceError
        If a file, a name or a constraint cannot be used.
    """
    from enplace.readers.clusters import cluster_from
    from enplace.values.cluster_variants import boundless

    profile = find_profile(profile)
    machine = cluster_from(cluster, profile).scaled(scale_compute, scale_links).reserving(reserve)
    return make_problem(profile, boundless(machine), **given), machine


def _how_to_profile(path: PathLike) -> str:
    """Return the command that makes the profile of a model; empty if it is none."""
    from enplace.frameworks.registry import suffixes
    from enplace.frameworks.source import source_of

    path = os.fspath(path)
    if not os.path.isfile(path) or os.path.splitext(path)[1].lower() not in suffixes():
        return ""
    try:
        name = "import" if source_of(path).is_recorded else "profile"
    except EnplaceError:
        return ""
    return f"enplace {name} {shlex.quote(path)} -o P.enplace"


def _with_constraints(problem: Problem, path: PathLike) -> Problem:
    """Add the constraints of a file; warn of what it names and the problem does not have."""
    from enplace.readers import read_constraints

    found = read_constraints(path, problem)
    if found.unknown:
        warnings.warn(
            f"{path}: {count(len(found.unknown), 'name')} not in this profile or cluster "
            f"({_few(list(found.unknown))}); constraints with them are left out",
            EnplaceWarning,
            stacklevel=3,
        )
    return found.problem


def read_problem_and_plan(
    profile: Profile | PathLike,
    plan_file: PathLike,
    cluster: ClusterChoice | None,
    scale_compute: float = 1.0,
    scale_links: float = 1.0,
    complete: bool | None = None,
    complete_by: str = "--complete",
    reserve: str = "",
) -> tuple[Problem, Plan]:
    """Read a profile and a plan for it; without a cluster, the one the plan was made for.

    Parameters
    ----------
    complete : bool or None
        Whether to place ops missing in the plan; None if the caller does not offer it.
    complete_by : str
        How the caller's user asks for it.
    reserve : str
        As for :func:`make_problem`.

    Raises
    ------
    OtherGraphError
        If plan and profile do not have the same ops, unless ``complete``.
    EnplaceError
        If a file or a name cannot be used.
    """
    from enplace.files.reading import naming
    from enplace.readers import complete_plan, constrain, read_plan, read_plan_cluster
    from enplace.readers.clusters import cluster_from
    from enplace.values.problem import Problem

    profile = find_profile(profile)
    try:
        machine = cluster_from(cluster, profile) if cluster else read_plan_cluster(plan_file)
        problem = Problem(profile, machine.scaled(scale_compute, scale_links).reserving(reserve))
        found = read_plan(plan_file, problem)
    except FileError:
        if how := _how_to_profile(plan_file):
            raise FileError(
                f"{plan_file}: is a model; if it holds a plan, write that first: {how} "
                f"--plan plan.json --cluster C"
            ) from None
        raise
    if (found.missing or found.unknown) and not complete:
        fix = "make a new plan"
        if complete is not None:
            fix = f"add {complete_by} to keep what fits and place the rest next to its neighbours"
        reason = f"{_describe_other(plan_file, found.missing, found.unknown)}; {fix}"
        raise OtherGraphError(reason, found.missing, found.unknown)
    if not (found.same_graph or found.missing or found.unknown):
        warnings.warn(
            f"{plan_file}: the graph's edges or types have changed since this plan was made; its "
            f"order may no longer suit them",
            EnplaceWarning,
            stacklevel=2,
        )
    with naming(plan_file):
        problem = constrain(found.problem, found.constraints).problem
        return problem, complete_plan(problem, found)


def read_start(problem: Problem, plan_file: PathLike, method: str) -> Plan:
    """Read a plan for a method to improve; ops missing in it are placed next to their neighbours.

    Raises
    ------
    EnplaceError
        If the method cannot start from a plan, the file cannot be used, or it holds less than half
        of the profile's ops.
    """
    from enplace.files.reading import naming
    from enplace.readers import complete_plan, read_plan
    from enplace.values.problem import split_problem

    check_warm_start(method)
    found = read_plan(plan_file, problem)
    _check_ops(
        f"{plan_file}",
        found.missing,
        found.unknown if found.missing else [],
        problem.profile.n_ops,
        "start from a plan for it",
        "ops missing in it start next to neighbours",
    )
    with naming(plan_file):
        start = complete_plan(split_problem(problem, found.plan.splits), found)
        return replace(start, claim=None)  # what becomes of it is no longer the file's


def _check_ops(
    plan: str, missing: list[str], new: list[str], n_ops: int, mend: str, effect: str
) -> None:
    """Refuse a plan for another graph; warn if it is one for most ops of this graph."""
    reason = _describe_other(plan, missing, new)
    if len(missing) > n_ops / 2:
        raise OtherGraphError(f"{reason}; {mend}", missing, new)
    if missing or new:
        warnings.warn(f"{reason}; {effect}", EnplaceWarning, stacklevel=3)


def check_warm_start(method: str) -> None:
    """Refuse a method that cannot begin from a plan.

    Raises
    ------
    EnplaceError
        With the methods that can.
    """
    from enplace.placing.registry import WARM_START, methods_with

    able = methods_with(WARM_START)
    if method not in able:
        raise EnplaceError(
            f"method '{method}' cannot start from a plan; for the shortest step, use "
            f"{' or '.join(able)}"
        )


def without_split_groups(problem: Problem, plan: Plan) -> Problem:
    """Remove the colocation groups of a problem, with a warning, if the plan splits one.

    A measured placement may break a rule that another run's profile has; it can be simulated.
    """
    from enplace.values.plan import find_separated

    names = [problem.profile.op_names[op] for op in find_separated(problem, plan).nonzero()[0]]
    if not names:
        return problem
    warnings.warn(
        f"the plan separates {count(len(names), 'op')} from ops they are colocated with "
        f"({_few(names)}); it is simulated as it stands, but it cannot run that way",
        EnplaceWarning,
        stacklevel=2,
    )
    loose = replace(problem.measured_profile, colocation=("",) * problem.profile.n_ops)
    return replace(problem, measured_profile=loose)


def _describe_other(plan: PathLike, missing: list[str], new: list[str]) -> str:
    parts = []
    if missing:
        parts.append(
            f"it does not place {count(len(missing), 'op')} of the profile ({_few(missing)})"
        )
    if new:
        parts.append(f"it places {count(len(new), 'op')} not in the profile ({_few(new)})")
    return f"{plan}: made for another graph: {' and '.join(parts)}"


def _few(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def _read_rows(
    kind: Kind,
    given: Iterable[str | Pair],
    profile: Profile,
    cluster: Cluster,
    option: str,
) -> list[Row]:
    """Read constraints as a person names them: a text for each role, or all with ``=``."""
    from enplace.values.constraints import OP
    from enplace.values.profile import find_pairs

    rows: dict[Row, None] = {}
    first: dict[int, int] = {}
    for each in given:
        texts = _halves(each, kind, option) if len(kind.roles) == 2 else [each]
        found = [
            _read_part(role, text, profile, cluster, option)
            for role, text in zip(kind.roles, texts, strict=True)
        ]
        if kind.roles == (OP, OP):
            new = find_pairs(profile, *found)
        else:
            new = [tuple(found[0])] if kind.many else list(map(kind.row, product(*found)))
        for op, device in new if kind.unique else ():
            if first.setdefault(op, device) != device:
                names = [cluster.devices[d].name for d in (first[op], device)]
                raise PinConflictError(
                    f"{option} {_shown(each)!r}: op '{profile.op_names[op]}' is already pinned to "
                    f"{names[0]}; it cannot be on {names[1]} too; drop one of the pins"
                )
        rows |= dict.fromkeys(new)
    return list(rows)


def _read_part(
    role: str, text: Any, profile: Profile, cluster: Cluster, option: str
) -> Sequence[Any]:
    """Return what a text may stand for: ops for a regex, a device for its name..."""
    from enplace.names.rules import find_device, find_matching
    from enplace.values.constraints import DEVICE, OP, PLACEMENT

    if role == OP:
        return find_matching(text, profile, option)
    if role == DEVICE:
        return [find_device(text, cluster, option)]
    if role == PLACEMENT:
        return [_read_placement(text, profile, cluster)]
    if not str(text).isdecimal():
        raise ProblemError(f"{option}: {text!r} is no number of ops; write 0 or more")
    return [int(text)]


def _read_placement(
    plan: Result | PathLike, profile: Profile, cluster: Cluster
) -> tuple[tuple[int, int], ...]:
    """Return the devices of each op that a plan, or its file, places: those of all its parts."""
    from enplace.readers import read_plan
    from enplace.values.problem import Problem
    from enplace.values.result import Result
    from enplace.values.splits import ends_of, whole_names

    name, new = "the plan", list[str]()
    if isinstance(plan, Result):
        problem, device = plan.schedule.problem, plan.plan.device
    else:
        found = read_plan(plan, Problem(profile, cluster))
        problem, device, name, new = found.problem, found.plan.device, f"{plan}", found.unknown
    ops, splits = problem.profile.op_names, problem.splits
    parts = {part for split in splits for part in ends_of(split)}
    placed = zip(ops, whole_names(ops, splits), device.tolist(), strict=True)
    homes = [
        (whole, problem.cluster.devices[at].name)
        for op, whole, at in placed
        if at >= 0 and (op == whole or op in parts)  # what joins parts is no op of the profile
    ]
    placing = dict(homes)
    if gone := list(dict.fromkeys(at for _, at in homes if at not in cluster.index)):
        raise PlanError(
            f"{name}: cluster '{cluster.name}' has no {_few(gone)}; name a plan for this cluster"
        )
    _check_ops(
        name,
        [op for op in profile.op_names if op not in placing],
        [*new, *(op for op in placing if op not in profile.index)],
        profile.n_ops,
        "name a plan for it",
        "only ops of both graphs stay close to it",
    )
    known = ((profile.index[op], cluster.index[at]) for op, at in homes if op in profile.index)
    return tuple(dict.fromkeys(known))


def _halves(pair: str | Pair, kind: Kind, option: str) -> tuple[Any, Any]:
    """Take a pair apart."""
    first, equals, then = pair.rpartition("=") if isinstance(pair, str) else (pair[0], "=", pair[1])
    if not equals or not first or not then:
        form = f"{kind.metavar}, for example '{kind.example}'"
        raise ProblemError(f"{option} {_shown(pair)!r}: write {form}")
    return first, then


def _shown(pair: str | Pair) -> str:
    return pair if isinstance(pair, str) else "=".join(map(str, pair))


def choose_method(method: str | None, objective: str, values: dict[str, Value]) -> str:
    """Return the method to place with: by default, the usual one for the objective and options.

    An option that only chooses the method is taken out of ``values``.

    Raises
    ------
    EnplaceError
        If there is no such method, or it serves another objective.
    """
    from enplace.placers.enplace.with_recompute import METHOD as RECOMPUTING
    from enplace.placers.enplace.with_recompute import OFFLOADING
    from enplace.placers.expert import FAMILY, RULES
    from enplace.placing.options import OFFLOAD, RECOMPUTE
    from enplace.values.problem import STEP_TIME

    if method is None:
        method = "expert" if {FAMILY.name, RULES.name} & values.keys() else usual_method(objective)
        if objective == STEP_TIME and RECOMPUTE.parse(values.get(RECOMPUTE.name, False)):
            del values[RECOMPUTE.name]  # for a step it is a method, not an option of one
            method = RECOMPUTING
        elif objective == STEP_TIME and OFFLOAD.parse(values.get(OFFLOAD.name, False)):
            del values[OFFLOAD.name]
            method = OFFLOADING
    return method_names([method], objective)[0]


def usual_method(objective: str) -> str:
    """Return the method for an objective if none is named.

    Raises
    ------
    EnplaceError
        If there is no such objective.
    """
    from enplace.placers import DEFAULT_METHODS

    if objective not in DEFAULT_METHODS:
        raise EnplaceError(
            f"there is no objective '{objective}'; {instead(objective, DEFAULT_METHODS)}"
        )
    return DEFAULT_METHODS[objective]


def method_names(wanted: str | Iterable[str] | None, objective: str) -> list[str]:
    """Check names of methods, or ``a,b,c``; by default, all that are installed for the objective.

    Raises
    ------
    EnplaceError
        If there is no such method, or it serves another objective.
    """
    from enplace.placers import placers

    usual_method(objective)
    known = placers(objective)
    if wanted is None:
        return [name for name, placer in known.items() if placer.installed]
    texts = wanted.split(",") if isinstance(wanted, str) else wanted
    names = list(dict.fromkeys(filter(None, map(str.strip, texts))))
    for name in names:
        if name in placers() and name not in known:
            raise EnplaceError(
                f"method '{name}' does not serve objective '{objective}'; "
                f"use one of {', '.join(known)}"
            )
        if name not in known:
            raise EnplaceError(f"there is no method '{name}'; {instead(name, known)}")
    if not names:
        raise EnplaceError(f"name at least one method of {', '.join(known)}")
    return names


def values_of_methods(
    names: Sequence[str], values: Mapping[str, Value]
) -> dict[str, dict[str, Value]]:
    """Return the values of each method's options.

    Raises
    ------
    EnplaceError
        If none of the methods has an option, or it cannot have the given value.
    """
    from enplace.placing.registry import find_placer, methods_with_option

    for option, value in values.items():
        having = [name for name in methods_with_option(option) if name in names]
        if not having:
            known = methods_with_option(option)
            fix = f"add {' or '.join(known)}" if known else "'enplace methods --json' lists them"
            raise EnplaceError(f"option '{option}': none of these methods has it; {fix}")
        find_placer(having[0]).option(option).parse(value)
    return {
        name: {key: values[key] for key in values if name in methods_with_option(key)}
        for name in names
    }
