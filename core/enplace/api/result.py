"""What methods found, with what a notebook wants of it: figures, pictures, tables and files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, TypeVar

from enplace import summary
from enplace.api.checks import checked
from enplace.api.notebook import image, preformatted
from enplace.api.plot import plot_timeline
from enplace.bounds import Proof, with_bound
from enplace.errors import EnplaceError
from enplace.extras import import_extra
from enplace.files.outputs import PLAN, Kind, check_folder, make_room
from enplace.frameworks.alternatives import find_alternatives
from enplace.frameworks.compared import result_for
from enplace.frameworks.registry import exporters, why_no_export
from enplace.inputs import PathLike
from enplace.machine.check_claims import simulate_given
from enplace.machine.pipelines.pipeline import planned_rule
from enplace.pictures.graph_svg import graph_svg
from enplace.pictures.memory_svg import memory_svg
from enplace.pictures.timeline_svg import timeline_svg
from enplace.placers.data_parallel import (
    Replicas,
    all_mirrored,
    fastest,
    mirrored,
    why_not_mirrored,
)
from enplace.placers.references import alone_schedule
from enplace.placing.next_moves import NextMove
from enplace.text import instead, ms, table
from enplace.values.problem import STEP_TIME, split_problem
from enplace.values.result import Alternative
from enplace.values.result import Result as PlainResult
from enplace.values.schedule import Schedule
from enplace.writers import write_plan
from enplace.writers.report import VALUES

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_T = TypeVar("_T")


@dataclass(frozen=True, eq=False, repr=False)
class Result(PlainResult):
    """A plan, its simulated schedule, and a proven bound.

    In a notebook it shows its figures and pictures; ``print(result)`` writes the figures as text.

    Attributes
    ----------
    schedule : Schedule
        When and where every op and transfer runs; ``schedule.to_pandas()`` makes a table.
    plan : Plan
        The device of every op and the order of ops, as arrays.
    objective : {"step-time", "throughput", "latency"}
        What the plan minimises.
    value_us : float
        The step time, the time per sample or the latency, in µs.
    bound_us : float or None
        No plan that fits has a smaller value, in µs; None if nothing is proven.
    gap : float or None
        How far the value may be above the best possible, as a share of the value.
    """

    @classmethod
    def of(cls, result: PlainResult) -> Result:
        """Add these methods to a result of the library.

        Raises
        ------
        EnplaceError
            If it is none.
        """
        if not isinstance(result, PlainResult):
            raise EnplaceError(f"result is {result!r:.60}; use a result")
        return cls(**{each.name: getattr(result, each.name) for each in fields(PlainResult)})

    @property
    def step_time_us(self) -> float:
        """The predicted time of one step, in µs."""
        return self.schedule.makespan_us

    @property
    def method(self) -> str:
        """The method that made the plan."""
        return self.plan.method

    @property
    def fits(self) -> bool:
        """Whether every device has enough memory for the plan."""
        return self.schedule.fits

    @property
    def fit_verdict(self) -> str:
        """What is known about plans that fit, if this one does not: in words; empty if it does."""
        return self.schedule.fit_verdict

    @property
    def devices(self) -> dict[str, str]:
        """The name of each op's device, by the op's name."""
        problem = self.schedule.problem
        names = [device.name for device in problem.cluster.devices]
        where = (names[device] for device in self.plan.device.tolist())
        return dict(zip(problem.profile.op_names, where, strict=True))

    @property
    def peak_bytes(self) -> dict[str, int]:
        """The peak memory of each device in bytes, by the device's name."""
        devices = self.schedule.problem.cluster.devices
        peaks = self.schedule.peak_bytes.tolist()
        return {device.name: peak for device, peak in zip(devices, peaks, strict=True)}

    @checked
    def after(self, move: NextMove) -> Result:
        """Return the plan with one of its :func:`next moves <enplace.next_moves>` made."""
        problem = split_problem(self.schedule.problem, move.plan.splits)
        return Result.of(with_bound(simulate_given(problem, move.plan)))

    @checked
    def save(self, path: PathLike, *, force: bool = False) -> None:
        """Write ``plan.json``, which :func:`enplace.apply` and teammates read.

        What the file held is kept beside it, under its name with a tilde.

        Parameters
        ----------
        force : bool
            Replace a file even if it is of another kind.

        Raises
        ------
        FileError
            If the file cannot be written, or is of another kind.
        """
        make_room(path, PLAN, force=force)
        write_plan(path, self)

    @checked
    def export(self, format: str, path: PathLike, *, force: bool = False) -> None:  # noqa: A002
        """Write the plan for people or for another program.

        Parameters
        ----------
        format : str
            As for ``enplace export``: ``"html"`` (a report), ``"svg"``, ``"csv"``, ``"trace"``
            (for Perfetto), ``"python"``, ``"onnx"``...
        path : str or path
            The file to write; for ``"onnx-stages"`` and ``"saved-model"``, a new folder.
        force : bool
            Replace a file even if it is of another kind.

        Raises
        ------
        EnplaceError
            If there is no such format, or the file cannot be written or is of another kind.
        """
        known = exporters()
        if format not in known:
            raise EnplaceError(f"there is no format '{format}'; {instead(format, known)}")
        if why := why_no_export(format, self):
            raise EnplaceError(f"{why}; a table of the plan is 'csv'")
        # Other plans place the model; a plan with splits is for another graph.
        model = None if self.plan.splits else self.schedule.problem
        bound_us = self.step_bound_us
        proof = None if bound_us is None else Proof(bound_us, self.proven_by)
        shown = result_for(known[format], self.schedule, model, proof)
        if known[format].is_folder:
            check_folder(os.fspath(path))
        else:
            make_room(path, Kind(known[format].title, known[format].mark), force=force)
        known[format].write_to(path, shown)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the timeline with matplotlib: a row for each device and channel.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw; by default, in a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            Its x axis is in milliseconds.

        Raises
        ------
        EnplaceError
            If matplotlib is not installed, or ``ax`` is something else.
        """
        return plot_timeline(self.schedule, ax)

    def __repr__(self) -> str:
        fit = "" if self.fits else f"; {self.fit_verdict}"
        problem = self.schedule.problem
        where = f"{problem.profile.name} on {problem.cluster.name}"
        title = problem.measured_profile.measured.title_of(VALUES.get(self.objective, "step time"))
        value = f"{title} {ms(self.value_us)}"
        return f"<Result of {self.method}: {where}, {value}{fit}>"

    @property
    def verdict(self) -> str:
        """Whether the plan is faster than one device, and than data parallelism: a sentence.

        Empty if that is not known.
        """
        return self._verdict(self._shared)

    def _verdict(self, shared: Replicas | None) -> str:
        """Like :attr:`verdict`, with another prediction for data parallelism."""
        return summary.worth_it(self.schedule, self._others(shared))

    def _others(self, shared: Replicas | None) -> summary.Others:
        why_not = why_not_mirrored(self.schedule.problem) if self._alone else ""
        return summary.Others(None, self._alone, shared, why_not)

    def __str__(self) -> str:
        return summary.describe(self, self._others(self._shared))

    def _repr_html_(self) -> str:
        pictures = {
            "graph": graph_svg(self.schedule),
            "timeline": timeline_svg(self),
            "memory": memory_svg(self.schedule),
        }
        return preformatted(str(self)) + "".join(image(*each) for each in pictures.items())

    @cached_property
    def _alone(self) -> Schedule | None:
        """The schedule on one device; None for a graph with split ops, which it would not run."""
        if self.plan.splits or self.objective != STEP_TIME:
            return None
        return alone_schedule(self.schedule.problem)

    @cached_property
    def _shared(self) -> Replicas | None:
        """Data parallelism; None where there is no schedule on one device, either."""
        return mirrored(self.schedule.problem) if self._alone else None


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The results of several methods for one problem.

    Attributes
    ----------
    results : mapping of str to Result
        The result of each method that has a plan, by method, in the order asked for.
    failures : mapping of str to str
        Why other methods have none.
    """

    results: Mapping[str, Result]
    failures: Mapping[str, str]

    @property
    def best(self) -> Result:
        """The result with the least value of the objective, among those that fit if any does.

        Raises
        ------
        EnplaceError
            If no method has a plan.
        """
        if not self.results:
            raise EnplaceError("no method has a plan; print the comparison to see why")
        return min(self.results.values(), key=lambda each: (not each.fits, each.value_us))

    @cached_property
    def data_parallel(self) -> list[Replicas]:
        """The predictions for copies of the model on several GPUs; empty for other objectives."""
        for each in self.results.values():
            if each.objective == STEP_TIME and not each.plan.splits:
                return all_mirrored(each.schedule.problem)
        return []

    @cached_property
    def alternatives(self) -> list[Alternative]:
        """What needs no planner, predicted: data parallelism and what its framework's people pick.

        ``value_us``, ``peak_bytes`` (an array over the devices) and ``fits`` are its figures.
        """
        for each in self.results.values():
            if not each.plan.splits:
                rule = planned_rule(*(one.plan for one in self.results.values()))
                rivals = self.data_parallel
                return find_alternatives(each.schedule.problem, each.objective, rivals, rule)
        return []

    def to_pandas(self) -> pd.DataFrame:
        """Return the figures as a table; needs pandas.

        Returns
        -------
        pandas.DataFrame
            A row for each method with a plan, whose index is the method. Columns: ``value_us`` (of
            the objective), ``step_time_us``, ``bound_us``, ``gap`` (a share), ``fits``,
            ``transfers`` (a number), ``sent_bytes``, ``peak_bytes`` (of the fullest device) and
            ``solve_seconds``.

        Raises
        ------
        EnplaceError
            If pandas is not installed.
        """
        rows = {
            name: {
                "value_us": each.value_us,
                "step_time_us": each.step_time_us,
                "bound_us": each.bound_us,
                "gap": each.gap,
                "fits": each.fits,
                "transfers": len(each.schedule.transfer_tensor),
                "sent_bytes": int(each.schedule.transfer_bytes.sum()),
                "peak_bytes": int(each.schedule.peak_bytes.max()),
                "solve_seconds": each.plan.solve_seconds,
            }
            for name, each in self.results.items()
        }
        frame = import_extra("pandas", "notebook").DataFrame.from_dict(rows, orient="index")
        return frame.rename_axis("method")

    def __repr__(self) -> str:
        lines = [f"{name} has no plan: {reason}" for name, reason in self.failures.items()]
        if self.results:
            results = list(self.results.values())
            expert = self.results.get("expert")
            schedule = expert.schedule if expert else None
            rivals = self.data_parallel
            table = summary.comparison(results, schedule, results[0].objective, self.alternatives)
            lines.insert(0, table)
            if worth := self.best._verdict(fastest(rivals) or next(iter(rivals), None)):
                lines.insert(0, f"{worth}\n")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        picture = image("timeline", timeline_svg(self.best)) if self.results else ""
        return preformatted(repr(self)) + picture


class Catalogue(dict[str, _T]):
    """A dictionary that shows the names in it as a table, each with its description."""

    def __init__(self, entries: Mapping[str, _T], describe: Callable[[_T], str]) -> None:
        super().__init__(entries)
        self._describe = describe

    def __reduce__(self) -> tuple[type, tuple[dict[str, _T], Callable[[_T], str]]]:
        return Catalogue, (dict(self), self._describe)

    def __repr__(self) -> str:
        return table([[name, self._describe(entry)] for name, entry in self.items()], "ll")

    def _repr_html_(self) -> str:
        cells = (
            f'<tr><td style="text-align:left"><code>{escape(name)}</code></td>'
            f'<td style="text-align:left">{escape(self._describe(entry))}</td></tr>'
            for name, entry in self.items()
        )
        return f"<table>{''.join(cells)}</table>"
