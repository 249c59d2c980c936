"""Files of the studio: opening, projects, recent files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PySide6.QtCore import QSettings

from enplace.bounds import Proofs, rivals_of, with_claim
from enplace.errors import EnplaceError, FileError, PlanError, ProblemError
from enplace.machine import simulate
from enplace.machine.check_claims import check_claims
from enplace.names.groups import open_groups
from enplace.readers import Project, read_profile, read_project, readers
from enplace.readers.cluster_json import cluster_from_json
from enplace.readers.clusters import cluster_from, presets
from enplace.readers.constraints import rows_by_name, rows_by_number
from enplace.text import finite, one_line
from enplace.values.cluster import Cluster
from enplace.values.constraints import Colocate, Constraints, Lock
from enplace.values.plan import Plan
from enplace.values.problem import Problem, split_problem
from enplace.values.profile import KINDS, Profile
from enplace.values.splits import Split, split_profile
from enplace.writers.clusters import cluster_to_json
from enplace.writers.constraints import rows_to_json
from enplace_studio.files.kept_runs import run_from_json, run_to_json
from enplace_studio.model.edits import choosing
from enplace_studio.model.notes import notes_from_json, notes_to_json
from enplace_studio.model.open_project import (
    Constraint,
    FileVersion,
    OpenProject,
    PlanEntry,
    start_project,
)

RECENT_LIMIT = 10
SHELL = "studio"
"""The part of a project's view that belongs to no view."""


def file_filter() -> str:
    """Make the filter of an Open dialog: all readable files, each format, all files."""
    found = readers().values()
    every = dict.fromkeys(suffix for reader in found for suffix in reader.suffixes)
    choices = [("Profiles and projects", every), *((r.title, r.suffixes) for r in found)]
    texts = [
        f"{title} ({' '.join(f'*{suffix}' for suffix in suffixes)})" for title, suffixes in choices
    ]
    return ";;".join([*texts, "All files (*)"])


@dataclass(frozen=True, eq=False)
class Opened:
    """The contents of a file.

    Attributes
    ----------
    path : Path or None
        Where "Save" writes; None if the file is not a project.
    view : mapping
        The saved state of the views.
    is_copy : bool
        Whether it is unsaved work that a crash left.
    seen : FileVersion or None
        The version of its file that the author of a copy saw.
    """

    project: OpenProject
    path: Path | None = None
    view: dict[str, Any] = field(default_factory=dict)
    is_copy: bool = False
    seen: FileVersion | None = None


def open_file(path: Path, cluster: Cluster | None = None) -> Opened:
    """Read a project or any profile.

    Parameters
    ----------
    cluster : Cluster, optional
        Used if the file names none. Default: the cluster of the measurement, or a preset.

    Raises
    ------
    EnplaceError
        One line with the file, the place in it and the fix.
    """
    if path.suffix == ".enplace":
        project = read_project(path)
        if project.cluster is not None:
            return _open_project(project, project.cluster, path)
        profile = project.profile
    else:
        profile = read_profile(path)
    return open_profile(profile, cluster)


def open_profile(profile: Profile, cluster: Cluster | None = None) -> Opened:
    """Open a profile without plans; ``cluster`` works as in :func:`open_file`.

    Raises
    ------
    ProblemError
        If the profile cannot run on the cluster.
    """
    return Opened(start_project(profile, cluster or _usual_cluster(profile)))


def _usual_cluster(profile: Profile) -> Cluster:
    """Return the cluster of the profile, or a preset where it has but one GPU."""
    on_gpu = np.isfinite(profile.time_us[:, KINDS.index("gpu")]).any()
    for word in ("from-file", "local"):
        try:
            carried = cluster_from(word, profile)
        except EnplaceError:
            continue
        if carried.n_devices > 1 or not on_gpu:
            return carried
    gpu = profile.measured.estimated.lower()
    known = presets()
    likely = [each for name, each in known.items() if gpu and name.startswith(gpu)]
    need_bytes = int(profile.persistent_bytes.sum())
    roomy = [each for each in likely if int(each.capacity_bytes[each.gpus].sum()) >= need_bytes]
    return next(iter([*roomy, *likely, *known.values()]))


def _open_project(project: Project, cluster: Cluster, path: Path) -> Opened:
    view = dict(project.view)
    shell = view.pop(SHELL, {})
    shell = shell if isinstance(shell, dict) else {}
    compute, links = _scales(shell.get("scale"))
    problem = Problem(
        split_profile(project.profile, project.splits),
        cluster.scaled(compute, links),
        project.constraints,
        project.splits,
    )
    model = Problem(project.profile, problem.cluster) if project.splits else problem
    details = _details_of(project.plans, shell.get("plans"))
    entries: list[PlanEntry] = []
    for (name, plan), detail in zip(project.plans, details, strict=True):
        own = problem if plan.splits == project.splits else model
        entries.append(_entry_from(own, name, plan, detail, entries, (compute, links)))
    at = shell.get("current")
    current = entries[at] if isinstance(at, int) and 0 <= at < len(entries) else None
    current = None if current is None or current.cluster is not None else current
    graphs: dict[tuple[Split, ...], Problem] = {(): model} if project.splits else {}
    named = shell.get("open_groups")
    names = (
        tuple(each for each in named if isinstance(each, str)) if isinstance(named, list) else ()
    )
    grouping = open_groups(problem.profile, names)
    off, locks = _constraints_from(shell.get("off")), _constraints_from(shell.get("locks"))
    locks = tuple(each for each in locks if each.kind == "lock")  # older ones are pins alone
    opened = OpenProject(
        problem, cluster, grouping, compute, links, tuple(entries), current, graphs, off, locks
    )
    opened = replace(opened, notes=notes_from_json(shell.get("notes")))
    if entries and not shell:  # the studio, which would say what it shows, has not written it
        current = entries[0]
    if current is not None:  # whose graph may be another, in a file that a script wrote
        opened = choosing(opened, current)
    return Opened(opened, path, view)


def _constraints_from(value: Any) -> tuple[Constraint, ...]:
    """Read constraints that are switched off, or locks; damaged ones are left out."""
    found = []
    for each in value if isinstance(value, list) else []:
        with suppress(ValueError, TypeError, KeyError, FileError):
            key, rows = each
            found.append(Constraint(key, tuple(_row(key, row) for row in rows)))
    return tuple(each for each in found if each.rows)


def _row(key: str, row: Any) -> Any:
    if key == Lock.key:  # one row with the device and its ops
        return rows_by_name({Colocate.key: [row]})[Colocate.key][0]
    return rows_by_name({key: [row]})[key][0]


def _constraints_to(name: str, constraints: tuple[Constraint, ...]) -> dict[str, Any]:
    rows = [
        [each.kind, each.rows if each.kind == Lock.key else rows_to_json(each.kind, each.rows)]
        for each in constraints
    ]
    return {name: rows} if rows else {}


def open_copy(path: Path) -> Opened:
    """Read the copy of unsaved work that a crash left; it remembers its file.

    Raises
    ------
    EnplaceError
        If it is damaged.
    """
    shell = read_project(path).view.get(SHELL)
    shell = shell if isinstance(shell, dict) else {}
    file, seen = shell.get("file"), shell.get("seen")
    numbers = seen if isinstance(seen, list) and [*map(type, seen)] == [int] * 3 else None
    return replace(
        open_file(path),
        path=Path(file) if isinstance(file, str) and os.path.isabs(file) else None,
        is_copy=True,
        seen=(numbers[0], numbers[1], numbers[2]) if numbers else None,
    )


def _scales(value: Any) -> tuple[float, float]:
    """Read the scales saved in a project; 1 if they are damaged."""
    found = [finite(each) for each in value] if isinstance(value, list) else []
    compute, links = found if len(found) == 2 else (None, None)
    return (1.0, 1.0) if compute is None or links is None else (compute, links)


def _details_of(plans: Sequence[tuple[str, Plan]], value: Any) -> list[dict[str, Any]]:
    """Return what a project says about each row besides its plan; nothing if it is damaged."""
    if not isinstance(value, list) or len(value) != len(plans):
        return [{} for _ in plans]
    return [detail if isinstance(detail, dict) else {} for detail in value]


def _entry_from(
    problem: Problem,
    name: str,
    plan: Plan,
    detail: dict[str, Any],
    before: Sequence[PlanEntry],
    scale: tuple[float, float],
) -> PlanEntry:
    """Restore a row with its cluster, note, run and origin, which is one of the rows before it."""
    cluster = None
    if "cluster" in detail:
        cluster = cluster_from_json(detail["cluster"], "the cluster of a plan")
        problem = Problem(problem.measured_profile, cluster.scaled(*scale), splits=problem.splits)
    problem = _made_under(problem, plan, detail.get("constraints"))
    if plan.claim is not None:  # of this problem, unless an older file holds a what-if
        problem = split_problem(problem, plan.splits)
        said_of = problem if scale == (1.0, 1.0) else None
        plan = replace(plan, claim=replace(plan.claim, problem=said_of))
    entry = entry_for(problem, name, plan, one_line(str(detail.get("note", ""))))
    at = detail.get("origin")
    return replace(
        entry,
        origin=before[at] if isinstance(at, int) and 0 <= at < len(before) else None,
        run=run_from_json(detail["run"], problem, plan) if "run" in detail else None,
        cluster=cluster,
        starred=detail.get("starred") is True,
        remark=one_line(str(detail.get("remark", ""))),
        made_from=one_line(str(detail.get("made_from", ""))),
    )


def _made_under(problem: Problem, plan: Plan, rows: Any) -> Problem:
    """Give a plan's problem the constraints that it was made under; damaged ones are left out."""
    if not isinstance(rows, dict):
        return problem
    problem = split_problem(problem, plan.splits)
    with suppress(FileError, ProblemError):
        found = rows_by_number(rows, "constraints", problem.profile.n_ops)
        return replace(problem, constraints=Constraints.of(found))
    return problem


def entry_for(problem: Problem, name: str, plan: Plan, note: str = "") -> PlanEntry:
    """Make the row of a plan; if it breaks the current constraints, simulate without them.

    A file may claim what is not true of its plans, see
    :func:`~enplace.machine.check_claims.check_claims`.

    Raises
    ------
    PlanError
        If the plan does not belong to the profile and the cluster.
    """
    try:
        schedule = simulate(problem, plan)
    except PlanError:
        free = Problem(problem.measured_profile, problem.cluster, splits=problem.splits)
        schedule = simulate(free, plan)
    plan = check_claims(schedule.problem, plan)
    return PlanEntry(name, plan, replace(schedule, plan=plan), note)


def to_project(
    opened: OpenProject,
    view: Mapping[str, Any],
    file: Path | None = None,
    seen: FileVersion | None = None,
    proofs: Proofs | None = None,
) -> Project:
    """Convert the open project to the form that a file stores, at its cluster's own speeds.

    Parameters
    ----------
    file : Path, optional
        The file that the project belongs to, if it is stored elsewhere.
    seen : FileVersion, optional
        The version of that file that its author saw.
    proofs : Proofs, optional
        Bounds that only a solver can repeat are kept with the plans.
    """
    proofs = proofs or Proofs()
    numbers = {entry: number for number, entry in enumerate(opened.plans)}
    shell = {
        "current": numbers.get(opened.current) if opened.current else None,
        "plans": [_details(entry, numbers, opened.problem) for entry in opened.plans],
        **({"file": str(file)} if file else {}),
        **({"seen": seen} if file and seen else {}),
        **({"notes": notes_to_json(opened.notes)} if opened.notes else {}),
        **({"open_groups": [*opened.grouping.opened]} if opened.grouping.opened else {}),
        **_constraints_to("off", opened.off),
        **_constraints_to("locks", opened.locks),
    }
    return Project(
        opened.model.measured_profile,
        opened.cluster,
        opened.problem.constraints,
        tuple((entry.name, _kept_plan(opened, entry, proofs)) for entry in opened.plans),
        {**view, SHELL: shell},
        opened.problem.splits,
    )


def _kept_plan(opened: OpenProject, entry: PlanEntry, proofs: Proofs) -> Plan:
    """Return a plan as it is without the what-if, which no file keeps."""
    made, problem = entry.own or entry.plan, entry.schedule.problem
    is_as_it_is, is_step = opened.scale == (1.0, 1.0), made.value_us is None
    if is_as_it_is or is_step:
        made = entry.plan
    if not is_as_it_is and (made.claim or not is_step):
        problem = replace(problem, cluster=entry.cluster or opened.cluster)
        made = check_claims(problem, made)
    if is_step:
        proof = proofs.known(rivals_of(entry.schedule)) if is_as_it_is else None
        made = replace(made, bound_us=proof.bound_us if proof and proof.by else None)
    return made if made.bound_us else with_claim(problem, made)


def _details(
    entry: PlanEntry, numbers: Mapping[PlanEntry, int], problem: Problem
) -> dict[str, Any]:
    """Collect the facts of a row that are not in its plan; of constraints, if they are its own."""
    is_current = entry.cluster is None and entry.plan.splits == problem.splits
    given = entry.schedule.problem.constraints
    has_own = not is_current or given != problem.constraints
    details: dict[str, Any] = {
        "note": entry.note,
        "origin": numbers.get(entry.origin) if entry.origin else None,
        **({"starred": True} if entry.starred else {}),
        **({"constraints": {kind.field: rows for kind, rows in given.items()}} if has_own else {}),
        **({"remark": entry.remark} if entry.remark else {}),
        **({"made_from": entry.made_from} if entry.made_from else {}),
    }
    if entry.cluster is not None:
        details["cluster"] = cluster_to_json(entry.cluster)
    return details | ({"run": run_to_json(entry.run)} if entry.run else {})


class RecentFiles:
    """Recently opened files, newest first, kept in the settings."""

    def __init__(self, settings: QSettings) -> None:
        self._settings = settings

    def paths(self) -> list[Path]:
        """Return the recent files that still exist."""
        value = self._settings.value("recent")
        names = [value] if isinstance(value, str) else value if isinstance(value, list) else []
        return [path for path in map(Path, names) if os.path.exists(path)]

    def add(self, path: Path) -> None:
        path = Path(os.path.realpath(path))
        newest = [path, *(known for known in self.paths() if known != path)][:RECENT_LIMIT]
        self._settings.setValue("recent", [str(p) for p in newest])
