"""Background work: a worker runs placers one after the other."""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from PySide6.QtCore import QObject, Qt, QTimer, Signal

from enplace.bounds import Proof
from enplace.frameworks.framework import OPS
from enplace.option import Option, Value
from enplace.placing.registry import ANYTIME
from enplace.processes import codecs
from enplace.processes.wire import FAILED, Message
from enplace.processes.worker import handler_program
from enplace.values.cluster import Cluster
from enplace.values.plan import Plan
from enplace.values.problem import STEP_TIME, Problem
from enplace.values.profile import Profile
from enplace_studio.jobs.worker import StudioWorker

PROGRAM = handler_program("enplace_studio.jobs.solve_worker:serve", "solver")

TICK_MS = 80
QUICK_S = 1.0
"""Time that a method takes that does not search; more on huge graphs."""
CANCEL_MS = 800
"""Time a placer has to respond to a cancel before its worker is killed."""


@dataclass(frozen=True)
class Method:
    """A placer, as the worker describes it."""

    name: str
    title: str
    source: str
    objectives: tuple[str, ...]
    capabilities: tuple[str, ...]
    why_not: str
    options: tuple[Option, ...] = ()
    summary: str = ""
    good: str = ""

    def aim(self, objective: str) -> str:
        """Return the given objective if this method supports it, else its usual one."""
        return objective if objective in self.objectives else self.objectives[0]

    def options_for(self, objective: str) -> tuple[Option, ...]:
        """Return the options it has for an objective."""
        return tuple(o for o in self.options if o.objective in ("", objective))


def estimate_s(methods: Iterable[Method], time_limit_s: float) -> float:
    """Estimate how long it takes to run methods one after the other."""
    return sum(time_limit_s if ANYTIME in m.capabilities else QUICK_S for m in methods)


def _method_from(data: dict[str, Any]) -> Method:
    """Make a method from the worker's description of it."""
    options = tuple(Option(**_with_tuples(each)) for each in data["options"])
    return Method(**{**_with_tuples(data), "options": options})


def _with_tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}


@dataclass(frozen=True, eq=False)
class Job:
    """One run of one placer.

    Attributes
    ----------
    choose : bool
        Whether to show the plan at once, rather than only list it.
    start : Plan or None
        A plan to start from.
    asked : bool
        Whether the user asked for it; the expert's first plan is made without asking.
    objective : str
        What the plan should minimise; empty for the method's usual objective.
    values : dict of str to value
        Values of the method's options, by name.
    cluster : Cluster or None
        The cluster before scaling, which the plan is kept for if another one is open by then.
    grain : str
        What stays whole, such as ``block``.
    whole : Problem or None
        The problem with that as a constraint; a bound is only proven for it.
    """

    number: int
    problem: Problem
    method: str
    time_limit_s: float | None
    choose: bool
    start: Plan | None = None
    asked: bool = True
    objective: str = ""
    values: dict[str, Value] = field(default_factory=dict)
    cluster: Cluster | None = None
    grain: str = OPS
    whole: Problem | None = None

    @property
    def solved(self) -> Problem:
        """The problem as the placer gets it."""
        return self.whole or self.problem


@dataclass(frozen=True, eq=False)
class Report:
    """The latest progress of a running placer.

    Attributes
    ----------
    history : tuple of (float, float)
        Seconds and step time in µs of each better plan so far.
    bounds : tuple of (float, float)
        Seconds and value in µs of each better lower bound so far.
    engines : tuple of str
        The engine of the placer that found each plan of the history; empty if it has only one.
    provers : tuple of str
        The engine that proved each bound; empty for a bound known before the search.
    fits : bool
        Whether the best plan so far fits in memory.
    """

    message: str
    fraction: float | None = None
    bound_us: float | None = None
    incumbent: Plan | None = None
    history: tuple[tuple[float, float], ...] = ()
    bounds: tuple[tuple[float, float], ...] = ()
    engines: tuple[str, ...] = ()
    provers: tuple[str, ...] = ()
    fits: bool = True

    @property
    def objective_us(self) -> float | None:
        """Step time of the best plan so far."""
        return self.history[-1][1] if self.history else None

    def then(self, progress: Mapping[str, Any], plan: Plan | None) -> Report:
        """Return the report updated by a message; what the message leaves out stays."""
        history, engines = self.history, self.engines
        objective_us = progress["objective_us"]
        if objective_us is not None and math.isfinite(objective_us):
            history = (*history, (progress["seconds"], objective_us))
            engines = (*engines, progress["engine"])
        fraction = self.fraction if progress["fraction"] is None else progress["fraction"]
        report = replace(
            self,
            message=progress["message"],
            fraction=fraction,
            incumbent=plan or self.incumbent,
            history=history,
            engines=engines,
            fits=progress["fits"] if plan else self.fits,
        )
        if not progress["bound_us"]:
            return report
        return report.proven(progress["seconds"], Proof(progress["bound_us"], progress["bound_by"]))

    def proven(self, seconds: float, proof: Proof) -> Report:
        """Return the report with a bound, if that is higher than all before."""
        if proof.bound_us <= (self.bound_us or 0.0):
            return self
        return replace(
            self,
            bound_us=proof.bound_us,
            bounds=(*self.bounds, (seconds, proof.bound_us)),
            provers=(*self.provers, proof.by),
        )


@dataclass(frozen=True, eq=False)
class SearchRecord:
    """A search, running or finished: its job, its last report, and how long it has taken."""

    job: Job
    report: Report
    seconds: float


class Solver(QObject):
    """A queue of jobs and the worker that runs them."""

    changed = Signal()
    """The job, its report or its elapsed time changed; at most about ten times a second."""
    methods_changed = Signal()
    solved = Signal(object, object)
    """A :class:`Job` and its :class:`Plan`."""
    proven = Signal(object, object)
    """A :class:`Problem` and a :class:`Proof` of its step time; comes before ``solved``."""
    failed = Signal(object, str)
    """A :class:`Job` and why there is no plan."""
    idle = Signal()
    """No job is left."""
    moves_found = Signal(object)
    """A :class:`Message` with next moves; its number says which search found them."""
    worker_lost = Signal()
    """The worker has ended; another one is started by the next question."""
    _answered = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.methods: dict[str, Method] = {}
        self.default_method = ""
        self.job: Job | None = None
        self.report = Report("")
        self.last_search: SearchRecord | None = None
        self._queue: deque[Job] = deque()
        self._numbers = itertools.count(1)
        self._sent_profile: Profile | None = None
        self._started_s = 0.0
        self._cancelling = False
        self._worker: StudioWorker | None = None
        # Queued, so that receivers of a plan may spread their work over several event-loop cycles.
        self._answered.connect(self._next, Qt.ConnectionType.QueuedConnection)
        self._tick = QTimer(self, interval=TICK_MS)
        self._tick.timeout.connect(self.changed)
        self._patience = QTimer(self, interval=CANCEL_MS, singleShot=True)
        self._patience.timeout.connect(self._end_cancelled)

    @property
    def busy(self) -> bool:
        return self.job is not None

    @property
    def is_asked(self) -> bool:
        """Whether any running or waiting job was requested by the user."""
        return any(job.asked for job in self.jobs)

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The running job and the waiting ones."""
        return tuple(job for job in (self.job, *self._queue) if job is not None)

    @property
    def seconds(self) -> float:
        """How long the current job has been running."""
        return time.monotonic() - self._started_s if self.job else 0.0

    @property
    def waiting(self) -> tuple[Job, ...]:
        """The jobs behind the current one."""
        return tuple(self._queue)

    def expected_s(self, jobs: Iterable[Job]) -> float:
        """Estimate how long it takes to run jobs one after the other."""
        return sum(
            estimate_s([self.methods[job.method]], job.time_limit_s or 0.0)
            for job in jobs
            if job.method in self.methods
        )

    def title(self, method: str) -> str:
        """Return the title of a method."""
        return self.methods[method].title if method in self.methods else method

    def aim(self, method: str, objective: str = "") -> str:
        """Return the given objective if the method supports it, else the method's usual one."""
        if method not in self.methods:
            return objective or STEP_TIME
        return self.methods[method].aim(objective)

    def searches(self, method: str) -> bool:
        """Return whether a method keeps improving its plan until its time is up."""
        return method in self.methods and ANYTIME in self.methods[method].capabilities

    def start(self) -> StudioWorker:
        """Return the worker; start it if there is none, so that the first job finds it ready."""
        if self._worker is None:
            self._worker, self._sent_profile = StudioWorker(PROGRAM, parent=self), None
            self._worker.received.connect(self._receive)
        return self._worker

    def solve(
        self,
        problem: Problem,
        methods: Sequence[str],
        time_limit_s: float | None = None,
        choose: bool = True,
        **details: Any,
    ) -> None:
        """Run methods on a problem, one after the other; each plan is emitted by ``solved``.

        A job that the user did not ask for goes ahead of those that wait: it is quick, and its plan
        is shown first.
        ``details`` are further attributes of their :class:`Job`.
        """
        values = details.pop("values", {})
        for method in methods:
            job = Job(next(self._numbers), problem, method, time_limit_s, choose, **details)
            known = self.known_values(method, job.objective, values)
            self._queue.append(replace(job, values=known))
        self._queue = deque(sorted(self._queue, key=lambda job: job.asked))
        if self.busy:
            self.changed.emit()
        else:
            self._next()

    def known_values(
        self, method: str, objective: str, values: Mapping[str, Value]
    ) -> dict[str, Value]:
        """Select the values of the options that a method has for an objective."""
        if method not in self.methods:  # the worker has not described its methods yet
            return dict(values)
        options = self.methods[method].options_for(self.aim(method, objective))
        return {o.name: values[o.name] for o in options if o.name in values}

    def cancel(self) -> None:
        """Stop within a second and keep the best plan so far."""
        self._queue.clear()
        if self.job:
            self.drop(self.job)

    def drop(self, job: Job) -> None:
        """Take a job from the queue, or stop it and go on to the next."""
        if job in self._queue:
            self._queue.remove(job)
            self.changed.emit()
        elif job is self.job and not self._cancelling:
            self._cancelling = True
            self._send(Message("cancel", {"job": job.number}))
            self._patience.start()
            self.changed.emit()

    def close(self) -> None:
        """End the worker and forget its jobs."""
        self._queue.clear()
        self.job = None
        self._tick.stop()
        self._patience.stop()
        self._drop_worker()

    def _drop_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
            worker.deleteLater()
            self.worker_lost.emit()

    def _next(self) -> None:
        if self.job is not None and self.searches(self.job.method) and self.report.history:
            self.last_search = SearchRecord(self.job, self.report, self.seconds)
        self.job = self._queue.popleft() if self._queue else None
        self._cancelling = False
        self._patience.stop()
        self.report = Report("")
        if self.job is None:
            self._tick.stop()
            self.changed.emit()
            self.idle.emit()
            return
        self._started_s = time.monotonic()
        self.start()
        self._send_job(self.job)
        self._tick.start()
        self.changed.emit()

    def find_moves(self, problem: Problem, plan: Plan, details: Mapping[str, Any]) -> int:
        """Have the worker look for next moves of a plan; return the number of the search."""
        self._send_profile(problem)
        number = next(self._numbers)
        shared = {"search": number, "problem": codecs.problem_to_json(problem)}
        self._send(codecs.plan_message("find moves", plan, {**shared, **details}))
        return number

    def drop_moves(self, number: int) -> None:
        """End a search for next moves."""
        if self._worker is not None:
            self._send(Message("cancel", {"job": number}))

    def _send_profile(self, problem: Problem) -> None:
        """Send the profile of a problem, unless it was the last one sent."""
        self.start()
        if problem.measured_profile is not self._sent_profile:
            self._sent_profile = problem.measured_profile
            self._send(codecs.profile_message(self._sent_profile))

    def _send_job(self, job: Job) -> None:
        self._send_profile(job.problem)
        details = {
            "job": job.number,
            "problem": codecs.problem_to_json(job.solved),
            "method": job.method,
            "time_limit_s": job.time_limit_s,
            "objective": job.objective,
            "values": job.values,
        }
        if job.start is None:
            self._send(Message("solve", details))
        else:
            self._send(codecs.plan_message("solve", job.start, details))

    def _send(self, message: Message) -> None:
        self.start().send(message)

    def _receive(self, message: Message) -> None:
        if message.do == "hello":
            self._greet(message.details)
        elif message.do == FAILED:
            self._on_worker_end(message.details["why"])
        elif message.do == "moves":
            self.moves_found.emit(message)
        elif self.job and message.details["job"] == self.job.number:
            self._answer(self.job, message)

    def _greet(self, details: dict[str, Any]) -> None:
        methods = map(_method_from, details["methods"])
        self.methods = {method.name: method for method in methods}
        self.default_method = details["default"]
        self.methods_changed.emit()

    def _answer(self, job: Job, message: Message) -> None:
        if message.do == "progress":
            plan = codecs.plan_from(message) if "plan" in message.details else None
            self.report = self.report.then(message.details, plan)
            return
        self._patience.stop()
        if message.do == "solved":
            bound_us = message.details["bound_us"]
            if bound_us is not None:
                proof = Proof(bound_us, message.details["proven_by"])
                self.proven.emit(job.solved, proof)
            self.solved.emit(job, codecs.plan_from(message))
        else:
            self.failed.emit(job, message.details["why"])
        self._answered.emit()

    def _end_cancelled(self) -> None:
        """Kill the worker of a placer that ignores the cancel; keep the best plan it reported."""
        self._drop_worker()
        self.start()
        job, best = self.job, self.report.incumbent
        if job and best is not None:
            self.solved.emit(job, best)
        elif job:
            self.failed.emit(job, "stopped before there was a plan")
        self._next()

    def _on_worker_end(self, why: str) -> None:
        """Fail the current job: the worker ended unexpectedly."""
        self._drop_worker()
        self._queue.clear()
        if self.job:
            self.failed.emit(self.job, f"{why}; press Solve again")
            self._next()
