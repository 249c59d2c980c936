"""Find what would make a model fit: a plan for each change, what it takes, and what it costs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from enplace.errors import CancelledError, DoesNotFitError, EnplaceError
from enplace.files.outputs import PLAN, check_folder, make_room
from enplace.files.writing import write_atomically
from enplace.machine import simulate
from enplace.machine.op_passes import optimiser_ops
from enplace.machine.pipelines.pipeline import most_bytes
from enplace.mends.changes import Change, as_it_is, list_ladders
from enplace.placing.options import PlaceOptions
from enplace.placing.run import place
from enplace.readers.archive import Project
from enplace.text import capital, ms, percent, seconds, size, table
from enplace.values.cluster import Cluster
from enplace.values.problem import Problem
from enplace.values.result import Result
from enplace.writers import write_plan
from enplace.writers.archive import write_project

ROW_S = 5.0
"""Usual seconds for each change."""

PLAN_SUFFIX = ".plan.json"

ABOUT_BATCHES = (
    "Times and memory of other batches are scaled from the profile; profile the model with the one "
    "that you choose."
)


@dataclass(frozen=True, eq=False)
class Row:
    """A change, and whether a plan was found with which it fits.

    Attributes
    ----------
    problem : Problem or None
        The changed problem; None if the variables alone are too large.
    result : Result or None
        None if there is no problem, or the search failed.
    fits : bool
    is_proven : bool
        Whether it is proven that no plan fits.
    verdict : str
        What a person reads: ``fits``, ``no, proven``, ``not found in 5.0 s``.
    batch_us : float
        The time for as many samples as a step of the model has; NaN if nothing fits.
    peak_bytes : int array, shape (n_devices,), or None
        With all samples in flight.
    """

    change: Change
    problem: Problem | None
    result: Result | None
    fits: bool
    is_proven: bool
    verdict: str
    batch_us: float = np.nan
    peak_bytes: Any = None

    @property
    def step_us(self) -> float:
        """The time of one step of the change; of a pipeline, the time per sample."""
        return self.batch_us * self.change.share * self.change.steps

    @cached_property
    def fullest(self) -> int:
        """The device that it fills most."""
        return int(np.argmax(self.peak_bytes / self.cluster.capacity_bytes))

    @property
    def cluster(self) -> Cluster:
        """The cluster of the plan."""
        assert self.result is not None
        return self.result.schedule.problem.cluster

    @property
    def about_fullest(self) -> str:
        """The fullest device and its memory, in words; empty without a plan."""
        if self.result is None:
            return ""
        device, peak = self.cluster.devices[self.fullest], float(self.peak_bytes[self.fullest])
        return f"{device.label}: {size(peak)} of {size(device.capacity_bytes)}"


@dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """What would make a model fit.

    Attributes
    ----------
    profile, cluster, objective : str
        What was asked.
    rows : tuple of Row
        As it is, then what fits, the fastest first, then what does not (:func:`fastest_first`).
    batch_size : int or None
        Samples of a step.
    """

    profile: str
    cluster: str
    objective: str
    rows: tuple[Row, ...]
    batch_size: int | None = None

    @property
    def fits(self) -> bool:
        """Whether it fits as it is."""
        return bool(self.rows) and self.rows[0].fits

    @property
    def best_us(self) -> float:
        """The least time of a batch among the rows that fit; NaN if none does."""
        return min((row.batch_us for row in self.rows if row.fits), default=np.nan)

    @property
    def headline(self) -> str:
        """Say whether it fits as it is."""
        if not self.rows:
            return "Stopped before anything was tried."
        row = self.rows[0]
        if row.fits:
            free = size(row.cluster.capacity_bytes[row.fullest] - row.peak_bytes[row.fullest])
            name = row.cluster.devices[row.fullest].label
            return f"It fits as it is: {name}, the fullest, has {free} free."
        found = sum(each.fits for each in self.rows)
        known = (
            "Proven: it does not fit as it is" if row.is_proven else "As it is, no plan was found"
        )
        if len(self.rows) == 1:
            return f"{known}."
        return f"{known}. {found or 'None'} of the changes below {'fit' if found > 1 else 'fits'}."

    @property
    def notes(self) -> list[str]:
        """What is assumed, in sentences."""
        shown = [row.change for row in self.rows]
        scaled = [ABOUT_BATCHES] if any(change.share < 1 for change in shown) else []
        return [*dict.fromkeys(filter(None, (change.about for change in shown))), *scaled]

    def cells(self) -> list[list[str]]:
        """Return the table below its heading: a row of texts for each row."""
        heading = ["", *HEADING]
        if not self.batch_size:
            heading[4] = "per batch"
        return [heading, *(self._cells(n, row) for n, row in enumerate(self.rows, 1))]

    def _cells(self, number: int, row: Row) -> list[str]:
        times = ["", "", ""]
        if row.fits:
            price = self._price(row)
            times = [
                ms(row.step_us),
                ms(row.batch_us / (self.batch_size or 1)),
                percent(price, signed=True) if price else "best",
            ]
        return [f"{number}", row.change.title, row.verdict, *times, row.about_fullest]

    def _price(self, row: Row) -> float:
        """Return what a row that fits takes longer than the best one, as a share of its time."""
        return row.batch_us / self.best_us - 1 if self.best_us else 0.0

    def __str__(self) -> str:
        head = f"{self.profile} on {self.cluster}: what would make it fit?"
        parts = [head, self.headline, table(self.cells(), "rllrrrl"), *self.notes]
        return "\n\n".join(parts)

    __repr__ = __str__

    @property
    def document(self) -> dict[str, Any]:
        """All figures as plain data; times in µs."""
        return {
            "profile": self.profile,
            "cluster": self.cluster,
            "objective": self.objective,
            "batch_size": self.batch_size,
            "fits": self.fits,
            "rows": [self._row_document(number, row) for number, row in enumerate(self.rows, 1)],
            "notes": self.notes,
        }

    def _row_document(self, number: int, row: Row) -> dict[str, Any]:
        figures: dict[str, Any] = dict.fromkeys(
            ("step_time_us", "batch_time_us", "sample_time_us", "price")
        )
        if row.fits:
            figures = {
                "step_time_us": row.step_us,
                "batch_time_us": row.batch_us,
                "sample_time_us": row.batch_us / self.batch_size if self.batch_size else None,
                "price": self._price(row),
            }
        full: dict[str, Any] = dict.fromkeys(("fullest_device", "peak_bytes", "capacity_bytes"))
        if row.result is not None:
            full = {
                "fullest_device": row.cluster.devices[row.fullest].name,
                "peak_bytes": int(row.peak_bytes[row.fullest]),
                "capacity_bytes": int(row.cluster.capacity_bytes[row.fullest]),
            }
        return {
            "row": number,
            "name": row.change.key,
            "title": row.change.title,
            "feasible": row.fits,
            "proven": row.is_proven,
            "verdict": row.verdict,
            "objective": row.change.objective,
            "batch_share": row.change.share,
            "steps": row.change.steps,
            **figures,
            **full,
        }

    def row(self, number: int) -> Row:
        """Return a row by its number, from 1.

        Raises
        ------
        EnplaceError
            If there is no such row, or it has no plan.
        """
        if not 1 <= number <= len(self.rows):
            raise EnplaceError(f"there is no row {number}; use 1 to {len(self.rows)}")
        row = self.rows[number - 1]
        if row.result is None:
            raise EnplaceError(f"row {number} ('{row.change.title}') has no plan: {row.verdict}")
        return row

    def save_row(self, number: int, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the plan of a row as ``plan.json``.

        Parameters
        ----------
        force : bool
            Replace a file even if it is of another kind.

        Raises
        ------
        EnplaceError
            If there is no such plan, or the file cannot be written or is of another kind.
        """
        result = self.row(number).result
        assert result is not None
        make_room(path, PLAN, force=force)
        write_plan(path, result)

    def save(self, folder: str | os.PathLike[str]) -> list[str]:
        """Write each plan that fits to a new folder, and the project of it that the studio opens.

        Returns
        -------
        list of str
            The names of the files, two for each row.

        Raises
        ------
        EnplaceError
            If something cannot be written.
        """
        check_folder(os.fspath(folder))
        base = Path(folder)
        base.mkdir(exist_ok=True)
        written = []
        for number, row in enumerate(self.rows, 1):
            if row.result is not None and row.fits:
                stem = f"{number}-{row.change.key}"
                write_plan(base / f"{stem}{PLAN_SUFFIX}", row.result)
                write_project(base / f"{stem}.enplace", project_of(row))
                written += [f"{stem}{PLAN_SUFFIX}", f"{stem}.enplace"]
        write_atomically(base / "fit.txt", f"{self}\n")
        return written


HEADING = ("change", "fits", "step", "per sample", "price", "fullest device")


def project_of(row: Row) -> Project:
    """Return what the studio opens: the changed model, its cluster and constraints, the plan."""
    assert row.problem is not None
    assert row.result is not None
    problem = row.problem
    plans = ((capital(row.change.title), row.result.plan),)
    return Project(problem.measured_profile, problem.cluster, problem.constraints, plans)


def find_fit(
    problem: Problem,
    cluster: Cluster,
    method: Callable[[str], str],
    options: PlaceOptions,
    seconds_each: float = ROW_S,
    begin: Callable[[str], None] = lambda title: None,
) -> Fit:
    """Find what would make a problem fit; if stopped, the rows so far."""
    rows = fastest_first([*list_rows(problem, cluster, method, options, seconds_each, begin)])
    profile = problem.measured_profile
    batch = profile.measured.batch_size
    return Fit(profile.name, cluster.name, options.objective, rows, batch)


def fastest_first(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Put the changes that fit behind the model as it is, by their time, and all others last."""
    changed = sorted(rows[1:], key=_time_us)
    return (*rows[:1], *changed)


def check_row(number: int, problem: Problem, cluster: Cluster, options: PlaceOptions) -> None:
    """Refuse the number of a row that there cannot be, before anything is tried.

    Raises
    ------
    EnplaceError
        If there are fewer changes to try.
    """
    most = 1 + sum(1 for ladder in list_ladders(problem, cluster, options) for _ in ladder)
    if number > most:
        raise EnplaceError(f"there is no row {number}; there are at most {most} changes to try")


def list_rows(
    problem: Problem,
    cluster: Cluster,
    method: Callable[[str], str],
    options: PlaceOptions,
    seconds_each: float = ROW_S,
    begin: Callable[[str], None] = lambda title: None,
) -> Iterator[Row]:
    """Yield a row for the problem as it is and, if that does not fit, one for each change tried.

    Of a ladder, those up to the first that fits are tried; with parts of a batch, also the next
    ones, as long as each is faster.

    Parameters
    ----------
    problem : Problem
        On any cluster with the devices of ``cluster``, such as a boundless one.
    method : callable
        Returns the method for an objective.
    options : PlaceOptions
        Its stop ends the whole search, and its clock counts the seconds of each row.
    begin : callable
        Called with the title of each change before it is tried.
    """
    over = options.stop.cancelled
    tried: list[Row] = []
    as_now = [as_it_is(problem, cluster, options)]
    for number, ladder in enumerate(chain([as_now], list_ladders(problem, cluster, options))):
        fastest_us = np.inf
        for change in ladder:
            if over():
                return
            begin(change.title)
            asked = replace(
                options,
                objective=change.objective,
                values=change.values,
                stop=options.stop.until(seconds_each),
            )
            try:
                row = _try(change, change.method or method(change.objective), asked)
            except CancelledError:
                return
            row = min([row, *_as_parts(change, row.problem, tried)], key=_time_us)
            tried.append(row)
            yield row
            if row.fits and number == 0:
                return
            if row.fits:
                if change.share == 1 or row.batch_us >= fastest_us:
                    break
                fastest_us = row.batch_us  # with more room, the next may be faster yet


def _as_parts(change: Change, problem: Problem | None, tried: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows of the parts of a change as rows of the change itself."""
    for row in tried:
        if row.change.key in change.parts and row.fits and row.result and problem:
            schedule = simulate(problem, row.result.plan)
            result = replace(row.result, schedule=schedule)
            peak = most_bytes(schedule)
            yield replace(row, change=change, problem=problem, result=result, peak_bytes=peak)


def _time_us(row: Row) -> float:
    return row.batch_us if row.fits else np.inf


def _try(change: Change, method: str, options: PlaceOptions) -> Row:
    """Look for a plan with a change."""
    problem = None
    try:
        problem = change.make()
        result = place(problem, method, options=options)
    except DoesNotFitError:
        return Row(change, None, None, False, True, "no, proven: variables")
    except CancelledError:
        raise
    except EnplaceError as error:
        return Row(change, problem, None, False, False, f"no plan: {error}")
    schedule = result.schedule
    peak = most_bytes(schedule)
    fits = bool((peak <= problem.cluster.capacity_bytes).all())
    if fits:
        return Row(change, problem, result, True, False, "fits", _batch_us(change, result), peak)
    if result.plan.nothing_fits:
        return Row(change, problem, result, False, True, "no, proven", peak_bytes=peak)
    took = seconds(result.plan.solve_seconds or 0.0)
    return Row(change, problem, result, False, False, f"not found in {took}", peak_bytes=peak)


def _batch_us(change: Change, result: Result) -> float:
    """Return the time of the samples of one step of the model."""
    if change.steps == 1:
        return result.value_us / change.share
    schedule = result.schedule
    problem, profile = schedule.problem, schedule.problem.measured_profile
    # Only the last of the steps changes the weights.
    updates = optimiser_ops(problem)[: profile.n_ops]
    time_us = np.where(updates[:, None] & np.isfinite(profile.time_us), 0.0, profile.time_us)
    before = replace(problem, measured_profile=replace(profile, time_us=time_us))
    summing_us = simulate(before, schedule.plan).makespan_us
    return (change.steps - 1) * min(summing_us, result.value_us) + result.value_us
