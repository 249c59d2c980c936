"""Files of the studio: opening, projects, recent files, and recovery after a crash."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from PySide6.QtCore import QLockFile, QObject, QSettings, QThreadPool, QTimer

from enplace.errors import EnplaceError, PlanError
from enplace.machine import simulate
from enplace.names.groups import group_ops
from enplace.readers import Project, read_profile, read_project, readers
from enplace.readers.clusters import cluster_from, presets
from enplace.values.cluster import Cluster
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import Profile
from enplace.values.splits import Split, split_profile
from enplace.writers import write_project
from enplace_studio.document import Document
from enplace_studio.kept_runs import run_from_json, run_to_json
from enplace_studio.project import OpenProject, PlanEntry, start_project

log = logging.getLogger(__name__)

RECENT_LIMIT = 10
AUTOSAVE_MS = 1000


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
    """

    project: OpenProject
    path: Path | None = None
    view: dict[str, Any] = field(default_factory=dict)


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
            return _open_project(project, path)
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
    for word in ("from-file", "local"):
        try:
            carried = cluster_from(word, profile)
        except EnplaceError:
            continue
        if carried.n_devices > 1:
            return carried
    return next(iter(presets().values()))


def _open_project(project: Project, path: Path) -> Opened:
    assert project.cluster is not None
    view = dict(project.view)
    shell = view.pop("studio", {})
    compute, links = _scales(shell.get("scale"))
    problem = Problem(
        split_profile(project.profile, project.splits),
        project.cluster.scaled(compute, links),
        project.pins,
        project.together,
        project.forbidden,
        project.splits,
    )
    model = Problem(project.profile, problem.cluster) if project.splits else problem
    entries = [
        entry_for(problem if plan.splits == project.splits else model, name, plan)
        for name, plan in project.plans
    ]
    entries = _with_details(entries, shell.get("plans"))
    at = shell.get("current")
    current = entries[at] if isinstance(at, int) and 0 <= at < len(entries) else None
    graphs: dict[tuple[Split, ...], Problem] = {(): model} if project.splits else {}
    grouping = group_ops(problem.profile)
    opened = OpenProject(
        problem, project.cluster, grouping, compute, links, tuple(entries), current, graphs
    )
    return Opened(opened, path, view)


def _scales(value: Any) -> tuple[float, float]:
    """Read the scales saved in a project; 1 if they are damaged."""
    if (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(v, int | float) for v in value)
    ):
        return float(value[0]), float(value[1])
    return 1.0, 1.0


def _with_details(entries: list[PlanEntry], details: Any) -> list[PlanEntry]:
    """Restore the notes, runs and origins of rows; an origin always precedes its edit."""
    done: list[PlanEntry] = []
    known = (
        details
        if isinstance(details, list) and len(details) == len(entries)
        else [{}] * len(entries)
    )
    for entry, detail in zip(entries, known, strict=True):
        detail = detail if isinstance(detail, dict) else {}
        at = detail.get("origin")
        origin = done[at] if isinstance(at, int) and 0 <= at < len(done) else None
        run = (
            run_from_json(detail["run"], entry.schedule.problem, entry.plan)
            if "run" in detail
            else None
        )
        done.append(replace(entry, note=str(detail.get("note", "")), origin=origin, run=run))
    return done


def entry_for(problem: Problem, name: str, plan: Plan, note: str = "") -> PlanEntry:
    """Make the row of a plan; if it breaks the current constraints, simulate without them.

    Raises
    ------
    PlanError
        If the plan does not belong to the profile and the cluster.
    """
    try:
        return PlanEntry(name, plan, simulate(problem, plan), note)
    except PlanError:
        free = Problem(problem.profile, problem.cluster, splits=problem.splits)
        return PlanEntry(name, plan, simulate(free, plan), note)


def to_project(opened: OpenProject, view: Mapping[str, Any]) -> Project:
    """Convert the open project to the form that a file stores."""
    numbers = {entry: number for number, entry in enumerate(opened.plans)}
    shell = {
        "scale": [opened.compute_scale, opened.link_scale],
        "current": numbers.get(opened.current) if opened.current else None,
        "plans": [_details(entry, numbers) for entry in opened.plans],
    }
    return Project(
        opened.model.profile,
        opened.cluster,
        opened.problem.pins,
        opened.problem.together,
        opened.problem.forbidden,
        tuple((entry.name, entry.plan) for entry in opened.plans),
        {**view, "studio": shell},
        opened.problem.splits,
    )


def _details(entry: PlanEntry, numbers: Mapping[PlanEntry, int]) -> dict[str, Any]:
    """Collect the facts of a row that are not in its plan."""
    details = {"note": entry.note, "origin": numbers.get(entry.origin) if entry.origin else None}
    return details | ({"run": run_to_json(entry.run)} if entry.run else {})


class RecentFiles:
    """Recently opened files, newest first, kept in the settings."""

    def __init__(self, settings: QSettings) -> None:
        self._settings = settings

    def paths(self) -> list[Path]:
        """Return the recent files that still exist."""
        value = self._settings.value("recent")
        names = [value] if isinstance(value, str) else value if isinstance(value, list) else []
        return [path for path in map(Path, names) if path.exists()]

    def add(self, path: Path) -> None:
        path = path.resolve()
        newest = [path, *(known for known in self.paths() if known != path)][:RECENT_LIMIT]
        self._settings.setValue("recent", [str(p) for p in newest])


class Recovery(QObject):
    """Keeps a copy of unsaved work on disk, and finds copies that a crash left behind.

    Each running studio holds a lock next to its copy; a copy without a lock is from a crash.
    """

    def __init__(self, document: Document, folder: Path) -> None:
        super().__init__(document)
        folder.mkdir(parents=True, exist_ok=True)
        self._document, self._folder = document, folder
        self._file = folder / f"{os.getpid()}-{id(self):x}.enplace"
        self._lock = _lock_of(self._file)
        self._lock.tryLock(0)
        self._pool = QThreadPool(self)
        self._pool.setMaxThreadCount(1)
        self._timer = QTimer(self, interval=AUTOSAVE_MS, singleShot=True)
        self._timer.timeout.connect(self.write)
        for signal in (document.problem_changed, document.plans_changed, document.file_changed):
            signal.connect(self._timer.start)

    def write(self) -> None:
        """Write the copy in the background, or remove it if everything is saved."""
        opened = self._document.project
        if opened is None or not self._document.modified:
            self._pool.start(self._remove)
        else:
            project = to_project(opened, self._document.view)
            self._pool.start(lambda: self._write(project))

    def _write(self, project: Project) -> None:
        try:
            write_project(self._file, project)
        except EnplaceError as error:
            log.warning("autosave: %s", error)

    def _remove(self) -> None:
        self._file.unlink(missing_ok=True)

    def leftovers(self) -> list[Path]:
        """Return the copies that a crash left behind, newest first."""
        copies = [path for path in self._folder.glob("*.enplace") if path != self._file]
        left = [path for path in copies if _is_abandoned(path)]
        return sorted(left, key=lambda path: path.stat().st_mtime, reverse=True)

    def close(self) -> None:
        """Remove the copy: the work is saved or discarded."""
        self._timer.stop()
        self._pool.waitForDone()
        self._remove()
        self._lock.unlock()


def _lock_of(path: Path) -> QLockFile:
    lock = QLockFile(f"{path}.lock")
    lock.setStaleLockTime(0)  # valid as long as its process lives, however old
    return lock


def _is_abandoned(path: Path) -> bool:
    lock = _lock_of(path)
    free = lock.tryLock(0)
    if free:
        lock.unlock()
    return free
