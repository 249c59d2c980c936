"""Turn what the user typed into a problem and a plan."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from enplace.errors import (
    EnplaceError,
    EnplaceWarning,
    FileError,
    PinConflictError,
    PlanError,
    ProblemError,
    file_error,
)
from enplace.text import count, instead

if TYPE_CHECKING:
    from enplace.placing.options import Value
    from enplace.values.cluster import Cluster
    from enplace.values.plan import Plan
    from enplace.values.problem import Problem
    from enplace.values.profile import Profile

SHOWN = 3


class OtherGraphError(PlanError):
    """A plan that was made for another graph; ``details`` lists the ops for ``--json``."""

    def __init__(self, message: str, missing: list[str], new: list[str]) -> None:
        super().__init__(message)
        self.details: dict[str, Any] = {"missing_ops": missing, "new_ops": new}


def read_problem(
    profile_file: str,
    cluster: str,
    scale_compute: float,
    scale_links: float,
    pins: Sequence[str] = (),
    colocate: Sequence[str] = (),
    forbid: Sequence[str] = (),
    before: Sequence[str] = (),
    constraints: str | None = None,
) -> Problem:
    """Read a profile and build the problem.

    Raises
    ------
    EnplaceError
        If a file, a name or a constraint cannot be used.
    """
    from enplace.names.rules import find_matching
    from enplace.readers import read_profile
    from enplace.readers.clusters import cluster_from
    from enplace.values.problem import Problem, order_problem

    profile = read_profile(profile_file)
    machine = cluster_from(cluster, profile).scaled(scale_compute, scale_links)
    problem = Problem(
        profile,
        machine,
        pins=_pins(pins, profile, machine),
        together=tuple(tuple(find_matching(text, profile, "--colocate")) for text in colocate),
        forbidden=frozenset(
            pair for text in forbid for pair in _pairs(text, profile, machine, "--forbid")
        ),
    )
    pairs = [pair for text in before for pair in _orders(text, profile)]
    problem = order_problem(problem, pairs)
    return problem if constraints is None else _with_constraints(problem, constraints)


def _with_constraints(problem: Problem, path: str) -> Problem:
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
    profile_file: str,
    plan_file: str,
    cluster: str | None,
    scale_compute: float = 1.0,
    scale_links: float = 1.0,
    complete: bool | None = None,
) -> tuple[Problem, Plan]:
    """Read a profile and a plan for it; without a cluster, the one the plan was made for.

    ``complete`` is None for commands without this option.

    Raises
    ------
    OtherGraphError
        If plan and profile do not have the same ops, unless ``complete``.
    EnplaceError
        If a file or a name cannot be used.
    """
    from enplace.disk import naming
    from enplace.readers import complete_plan, read_plan, read_plan_cluster, read_profile
    from enplace.readers.clusters import cluster_from
    from enplace.values.problem import Problem, order_problem

    profile = read_profile(profile_file)
    machine = cluster_from(cluster, profile) if cluster else read_plan_cluster(plan_file)
    problem = Problem(profile, machine.scaled(scale_compute, scale_links))
    found = read_plan(plan_file, problem)
    if (found.missing or found.unknown) and not complete:
        fix = "make a new plan"
        if complete is not None:
            fix = "add --complete to keep what fits and place the rest next to its neighbours"
        reason = f"{_describe_other(plan_file, found.missing, found.unknown)}; {fix}"
        raise OtherGraphError(reason, found.missing, found.unknown)
    if not (found.same_graph or found.missing or found.unknown):
        warnings.warn(
            f"{plan_file}: the graph's edges have changed since this plan was made; its order "
            f"may no longer suit them",
            EnplaceWarning,
            stacklevel=2,
        )
    with naming(plan_file):
        problem = order_problem(replace(found.problem, pins=found.pins), found.before)
        return problem, complete_plan(problem, found)


def read_start(problem: Problem, plan_file: str, method: str) -> Plan:
    """Read a plan for a method to improve; ops missing in it are placed next to their neighbours.

    Raises
    ------
    EnplaceError
        If the method cannot start from a plan, the file cannot be used, or it holds less than half
        of the profile's ops.
    """
    from enplace.disk import naming
    from enplace.placing.registry import WARM_START, methods_with
    from enplace.readers import complete_plan, read_plan
    from enplace.values.problem import split_problem

    able = methods_with(WARM_START)
    if method not in able:
        raise EnplaceError(
            f"method '{method}' cannot start from a plan; for the shortest step, use "
            f"{' or '.join(able)}"
        )
    found = read_plan(plan_file, problem)
    missing, n_ops = len(found.missing), problem.profile.n_ops
    reason = _describe_other(plan_file, found.missing, found.unknown)
    if missing > n_ops / 2:
        raise OtherGraphError(f"{reason}; start from a plan for it", found.missing, found.unknown)
    if missing:
        warnings.warn(
            f"{reason}; ops missing in it start next to neighbours", EnplaceWarning, stacklevel=2
        )
    with naming(plan_file):
        return complete_plan(split_problem(problem, found.plan.splits), found)


def without_split_groups(problem: Problem, plan: Plan) -> Problem:
    """Remove the colocation groups of a problem, with a warning, if the plan splits one.

    A measured placement may break a rule that another run's profile has; it can be simulated.
    """
    from enplace.values.plan import find_separated
    from enplace.values.problem import with_profile

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
    return with_profile(problem, loose)


def _describe_other(plan_file: str, missing: list[str], new: list[str]) -> str:
    parts = []
    if missing:
        parts.append(
            f"it does not place {count(len(missing), 'op')} of the profile ({_few(missing)})"
        )
    if new:
        parts.append(f"it places {count(len(new), 'op')} not in the profile ({_few(new)})")
    return f"{plan_file}: made for another graph: {' and '.join(parts)}"


def _few(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def check_outputs(outputs: Sequence[str | None], *inputs: str | None) -> None:
    """Refuse, before the work, a file that cannot be written, is an input, or is named twice.

    Raises
    ------
    FileError
        With the file and the fix.
    """
    given = [output for output in outputs if output is not None]
    for number, output in enumerate(given):
        _check_output(output, [i for i in inputs if i is not None])
        again = os.path.realpath(output) in map(os.path.realpath, given[:number])
        if again and (os.path.isfile(output) or not os.path.exists(output)):
            raise FileError(f"{output}: is named for two outputs; write them to two files")


def _check_output(output: str, inputs: Sequence[str]) -> None:
    if output in ("", "-"):
        raise FileError(f"'{output}' is not a file; name one, or /dev/stdout for the terminal")
    folder = os.path.dirname(output) or "."
    if not os.path.isdir(folder):
        raise FileError(f"{output}: there is no folder '{folder}'; create it first")
    if os.path.isdir(output):
        raise FileError(f"{output}: is a folder; name a file in it")
    if not os.access(folder, os.W_OK):
        raise FileError(f"{output}: cannot write there; choose a folder you may write to")
    try:
        os.stat(output)
    except FileNotFoundError:
        return
    except OSError as error:
        raise file_error(error) from None
    if any(os.path.exists(i) and os.path.samefile(output, i) for i in inputs):
        raise FileError(f"{output}: is also an input; write to another file")


def _pins(texts: Sequence[str], profile: Profile, cluster: Cluster) -> dict[int, int]:
    pins: dict[int, int] = {}
    for text in texts:
        for op, device in _pairs(text, profile, cluster, "--pin"):
            if pins.setdefault(op, device) != device:
                names = [cluster.devices[d].name for d in (pins[op], device)]
                raise PinConflictError(
                    f"--pin {text!r}: op '{profile.op_names[op]}' is already pinned to {names[0]}; "
                    f"it cannot be on {names[1]} too; drop one of the pins"
                )
    return pins


def _pairs(text: str, profile: Profile, cluster: Cluster, option: str) -> list[tuple[int, int]]:
    """Return the ops and the device of ``REGEX=DEVICE``."""
    from enplace.names.rules import find_device, find_matching

    pattern, equals, device = text.rpartition("=")
    if not equals or not pattern or not device:
        raise ProblemError(f"{option} {text!r}: write REGEX=DEVICE, for example 'decoder/.*=GPU:1'")
    number = find_device(device, cluster, option)
    return [(op, number) for op in find_matching(pattern, profile, option)]


def _orders(text: str, profile: Profile) -> list[tuple[int, int]]:
    """Return the pairs of ops that ``REGEX=REGEX`` orders."""
    from enplace.names.rules import find_matching
    from enplace.values.profile import find_pairs

    first, equals, then = text.rpartition("=")
    if not equals or not first or not then:
        raise ProblemError(f"--before {text!r}: write REGEX=REGEX, for example 'layer_0=layer_1'")
    ends = [find_matching(pattern, profile, "--before") for pattern in (first, then)]
    return find_pairs(profile, *ends)


def method_names(text: str | None, objective: str) -> list[str]:
    """Split ``a,b,c`` into methods; by default all that are installed and serve the objective.

    Raises
    ------
    EnplaceError
        If there is no such method, or it serves another objective.
    """
    from enplace.placers import placers

    known = placers(objective)
    if text is None:
        return [name for name, placer in known.items() if placer.installed]
    names = list(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
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
