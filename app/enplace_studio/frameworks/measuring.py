"""Work for a framework: open and profile models, run and tune plans, take measured costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from enplace.frameworks import tuning_process
from enplace.frameworks.devices import devices_for
from enplace.frameworks.jobs import (
    RunRequest,
    about_written,
    profile_job,
    program_for,
    run_job,
    warning_before,
)
from enplace.frameworks.measured import MeasuredRun, run_from, with_measured_costs
from enplace.frameworks.source import Source, source_from_json
from enplace.frameworks.trust import may_run, trust
from enplace.frameworks.tuning_process import tune_job
from enplace.processes import codecs
from enplace.processes.wire import Message
from enplace.processes.worker import WorkerProgram
from enplace.text import count, ms
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import Profile
from enplace_studio.files import session
from enplace_studio.files.opening import Files
from enplace_studio.frameworks.devices import devices_title
from enplace_studio.frameworks.dialogs import RUN, TUNE, FailureReport, RunQuestion, TrustQuestion
from enplace_studio.frameworks.job import WorkerJob
from enplace_studio.frameworks.open_model import OpenModel, ProfileRequest
from enplace_studio.frameworks.profile_facts import simulated_step_us
from enplace_studio.frameworks.profile_page import ProfilePage
from enplace_studio.frameworks.strip import JobStrip
from enplace_studio.model.can_run import model_source, why_no_run
from enplace_studio.model.document import Document, PlanEntry
from enplace_studio.model.open_project import OpenProject
from enplace_studio.widgets.labels import plain_tip
from enplace_studio.widgets.part import Part

ROUNDS = 3
"""Largest number of new plans that tuning tries."""


@dataclass(frozen=True, eq=False)
class _Task:
    """A job for a worker, so that it can be started again.

    Attributes
    ----------
    title, failed : str
        Text of the strip while it runs, and heading of the report if it fails.
    read, finish : callable
        The first reads the worker's answer in a thread; the second takes the value it returns.
    """

    title: str
    failed: str
    messages: tuple[Message, ...]
    read: Callable[[Message], Any]
    finish: Callable[[Any], None]
    program: WorkerProgram


class Measuring(Part):
    """One worker at a time."""

    changed = Signal()
    """A worker started or ended."""

    def __init__(self, document: Document, files: Files, parent: QWidget) -> None:
        super().__init__(document, parent)
        self._files = files
        self.strip = JobStrip()
        self.job: WorkerJob | None = None

    @property
    def busy(self) -> bool:
        return self.job is not None

    def cancel(self) -> None:
        if self.job is not None:
            self.job.cancel()

    def may_leave(self) -> bool:
        """Return whether nothing is running or waiting to be opened, or the user abandons it."""
        about = plain_tip(f"{self.strip.title.text()}. Close anyway, and abandon it?")
        return self.strip.isHidden() or self.may_abandon("Close anyway?", about)

    def close_job(self) -> None:
        """End the worker because the window closes."""
        job, self.job = self.job, None
        if job is not None:
            job.close()

    # Profiling

    def open_model(self, path: Path | None = None) -> None:
        """Ask for a model, and for how to profile it."""
        dialog = OpenModel(path, self.window())
        if dialog.exec() and dialog.request is not None:
            self.profile(dialog.request)

    def profile(self, request: ProfileRequest) -> None:
        """Profile a model, then open the profile."""
        source, name = request.source, request.source.name
        job = profile_job(
            source, request.devices, request.steps, request.warm_ups, request.batch_sizes
        )
        if not self._trusted(source, "profile the model", brought=False):
            return
        self._start(
            _Task(
                f"{'Opening' if source.is_recorded else 'Profiling'} {name}",
                f"{name} could not be {'opened' if source.is_recorded else 'profiled'}",
                job,
                lambda message: _with_source(codecs.profile_from(message), request),
                lambda profile: self._profiled(request, profile),
                program_for(source, job),
            )
        )

    def _profiled(self, request: ProfileRequest, profile: Profile) -> None:
        if self._document.modified:  # no dialog pops up unasked
            title = f"The profile of {request.source.name} is ready"
            self.strip.offer(title, lambda: self._open(profile, request.source))
        else:
            self._open(profile, request.source)

    def _open(self, profile: Profile, source: Source) -> None:
        def finish() -> None:
            self.strip.clear()
            if source.kind != "module":
                self._files.recent.add(Path(source.path))
            if notes := profile.measured.notes:
                told = count(len(notes), "note")
                self.done.emit(f"{told} on how it was read: Plan › How it was measured")

        self._files.open_profile(profile, finish)

    def show_profile(self) -> None:
        """Show how the open profile was measured, and how accurately."""
        problem = self._document.problem
        if problem is not None:
            profile = problem.profile
            self.background.start(
                lambda: simulated_step_us(profile),
                lambda step_us: self._show_page(profile, step_us),
            )

    def _show_page(self, profile: Profile, step_us: float | None) -> None:
        ProfilePage(profile, step_us, self.window()).exec()

    # Running

    def run_current(self) -> None:
        """Run the current plan and keep the measurement with it."""
        self._ask(RUN)

    def tune_current(self) -> None:
        """Improve the current plan by measurement (FastT's adaptive cost model)."""
        self._ask(TUNE)

    def _ask(self, what: str) -> None:
        project, data = self._document.project, model_source(self._document)
        entry = self._document.current
        if project is None or entry is None or data is None or why_no_run(self._document):
            return
        source = self.attempt(lambda: source_from_json(dict(data)))
        if source is None:
            return
        where, remark = devices_title(project.cluster), _remark(project)
        question = RunQuestion(entry.name, source, where, remark, self.window(), what)
        if not question.exec() or not self._trusted(source, "run the plan", brought=True):
            return
        problem = replace(entry.schedule.problem, cluster=project.cluster)

        def make_task() -> _Task:
            devices = devices_for(project.cluster, problem.profile.measured)
            request = RunRequest(source, devices, question.steps.value(), question.wishes)
            return (self._run if what == RUN else self._tune)(entry, problem, request)

        if (task := self.attempt(make_task)) is not None:
            self._start(task)

    def _run(self, entry: PlanEntry, problem: Problem, request: RunRequest) -> _Task:
        job = run_job(replace(request, data_parallel="quick"), problem, entry.plan)
        return _Task(
            f"Running “{entry.name}”",
            f"“{entry.name}” could not be run",
            job,
            lambda message: run_from(message, problem),
            lambda run: self._ran(entry.plan, run),
            program_for(request.source, job),
        )

    def _tune(self, entry: PlanEntry, problem: Problem, request: RunRequest) -> _Task:
        return _Task(
            f"Tuning “{entry.name}”",
            f"“{entry.name}” could not be tuned",
            tune_job(request, ROUNDS, problem, entry.plan),
            lambda message: (run_from(message, problem), message.details["rounds"]),
            lambda tuned: self._tuned(entry, *tuned),
            tuning_process.PROGRAM,
        )

    def _tuned(
        self, entry: PlanEntry, run: MeasuredRun, rounds: Sequence[Mapping[str, Any]]
    ) -> None:
        project = self._document.project
        if project is None or entry not in project.plans:
            self.done.emit("The tuned plan is no longer open; nothing has changed")
            return
        first, best = rounds[0]["step_time_us"], run.step_time_us
        if not any(each["kept"] for each in rounds[1:]):
            self._document.set_run(entry.plan, run)
            self.done.emit(_describe_none_kept(entry.name, best, rounds))
            return
        tuned = session.entry_for(project.problem, f"{entry.name}, tuned", run.plan)
        self._document.take_plan(replace(tuned, run=run), project.cluster)
        self.done.emit(
            f"Tuned: a step takes {ms(best)}; with “{entry.name}” it took {ms(first)} just before"
        )

    def _ran(self, plan: Plan, run: MeasuredRun) -> None:
        if not self._document.set_run(plan, run):
            self.done.emit("The plan that ran is no longer open; its measurement is dropped")
        elif run.on_labels:
            self.done.emit("The plan ran on labels, which have no step time")
        else:
            self.done.emit(f"A step takes {ms(run.step_time_us)} on this machine")

    def take_costs(self) -> None:
        """Use the op times measured in the current plan's run as their costs."""
        entry, problem = self._document.current, self._document.problem
        if entry is None or entry.run is None or problem is None:
            return
        run = replace(entry.run, profile=problem.measured_profile)
        if (profile := self.attempt(lambda: with_measured_costs(run))) is not None:
            self._document.take_costs(entry, profile)

    # Jobs

    def _trusted(self, source: Source, purpose: str, brought: bool) -> bool:
        """Return whether a model's code may run; ask the user if that is not known.

        ``brought`` tells whether the open file brought the command.
        """
        allowed = self.attempt(lambda: may_run(source, brought=brought))
        if allowed is None:
            return False
        if not allowed and not TrustQuestion(source, purpose, brought, self.window()).exec():
            return False
        if not source.is_recorded:
            self.attempt(lambda: trust(source))  # it may run even if the answer cannot be saved
        if warning := warning_before(source):
            self.done.emit(warning[0].upper() + warning[1:])
        return True

    def _start(self, task: _Task) -> None:
        if not self.strip.isHidden():
            self.failed.emit(f"{self.strip.title.text()}; wait, or open or discard it first")
            return
        job = self.job = WorkerJob(task.program, task.messages, self)
        job.done.connect(lambda message: self._on_done(task, message))
        job.failed.connect(lambda why, lines: self._on_failed(task, why, lines))
        job.cancelled.connect(lambda: self._on_cancelled(task))
        self.strip.show_job(task.title, job)
        job.start()
        self.changed.emit()

    def _forget_job(self) -> None:
        job, self.job = self.job, None
        if job is not None:
            job.deleteLater()
        self.strip.clear()
        self.changed.emit()

    def _on_done(self, task: _Task, message: Message) -> None:
        if self.job is not None and self.job.written:
            self.done.emit(about_written("The model", self.job.written))
        self._forget_job()
        self.background.start(lambda: task.read(message), task.finish, self.fail)

    def _on_failed(self, task: _Task, why: str, last_lines: str) -> None:
        self._forget_job()
        if FailureReport(task.failed, why, last_lines, self.window()).exec():
            self._start(task)

    def _on_cancelled(self, task: _Task) -> None:
        self._forget_job()
        self.done.emit(f"{task.title}: cancelled")


def _remark(project: OpenProject) -> str:
    """Warn if the plan was made for another cluster; empty if it was not."""
    measured_on = project.problem.profile.measured.cluster
    if measured_on is None or measured_on.name == project.cluster.name:
        return ""
    return (
        f"The plan was made for {project.cluster.name}. Here it runs on this machine’s devices, so "
        "times will differ."
    )


def _describe_none_kept(name: str, step_time_us: float, rounds: Sequence[Mapping[str, Any]]) -> str:
    """Describe the result of a tuning that kept no new plan."""
    first, *new = rounds
    if not first["as_planned"]:
        return f"“{name}” did not run as planned, and no plan was found that did; see Measured here"
    fastest = f"“{name}” is the fastest plan found: {ms(step_time_us)}."
    if not all(each["as_planned"] for each in new):
        return f"{fastest} A new one did not run as planned and was dropped."
    return f"{fastest} The new one was no faster and was dropped." if new else fastest


def _with_source(profile: Profile, request: ProfileRequest) -> Profile:
    """Return the profile with its source and devices."""
    measured = profile.measured
    source = measured.source or request.source.to_json()
    asked_for = "" if request.source.is_recorded else request.devices
    devices = measured.devices or asked_for
    return replace(profile, measured=replace(measured, source=source, devices=devices))
