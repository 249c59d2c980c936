"""Run a script with a plan and without, from the same seed, and compare what they computed.

Without real devices, its ops run one after another on labels (:mod:`.placed`): that proves which
op runs where and that the result is the same, but not how long a step takes on devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from enplace.errors import ClusterError, PlanError
from enplace.frameworks.comparing import first_step_difference, largest_difference
from enplace.frameworks.devices import LOCAL
from enplace.frameworks.measured import (
    NOT_SEEN,
    MeasuredRun,
    median_us,
    quartiles_us,
    run_by_module,
)
from enplace.frameworks.source import Source
from enplace.frameworks.torch.framework import FRAMEWORK
from enplace.frameworks.torch.measure.costs import MeasuredCosts
from enplace.frameworks.torch.measure.profile import graph_of
from enplace.frameworks.torch.open.following import (
    FIRST,
    Follower,
    seed_all,
    without_dropout,
)
from enplace.frameworks.torch.open.scripts import run_watched
from enplace.frameworks.torch.record.recorder import Recorder, check_hooks
from enplace.frameworks.torch.record.recording import LoadError
from enplace.frameworks.torch.record.timing import Clock, Shapes
from enplace.frameworks.torch.run.comparison import (
    AFTER_FIRST,
    GRADIENTS,
    LOSS,
    WEIGHTS,
    about_batches,
    about_run,
    group_of,
    results_of,
    steps_of,
    way_of,
)
from enplace.frameworks.torch.run.hooks import (
    PlacedModules,
    has_parameters,
    place_model,
    torch_devices,
)
from enplace.frameworks.torch.run.matching import check_plan, place_step, planned_devices
from enplace.frameworks.torch.run.placed import PlacedMode, StepSeen
from enplace.frameworks.torch.step import Timing
from enplace.machine import simulate
from enplace.processes.wire import DONE, Message
from enplace.processes.worker import Report
from enplace.text import count, finite, listed
from enplace.values.plan import Plan, follow_graph, just_before_readers
from enplace.values.problem import Problem
from enplace.values.schedule import Schedule


def run_plain(
    source: Source,
    steps: int,
    report: Report,
    planned: Mapping[str, int] | None = None,
    *,
    drops_out: bool = True,
) -> Message:
    """Run a script without a plan; the answer has what it computed.

    Parameters
    ----------
    planned : mapping of str to int, optional
        The ops of the plan that the script will run by later.
    drops_out : bool
        Whether dropout drops anything.

    Raises
    ------
    PlanError
        After the first step, if that plan is for another model.
    LoadError
        If it has too few steps, or fails before.
    """
    follower = _Plain(planned, steps, report)
    with nullcontext() if drops_out else without_dropout():
        _follow(source, follower)
    (shapes, _), *_ = follower.batches.most_common()
    details = {"times_us": follower.times_us, "batch_shapes": shapes}
    return Message(DONE, details, results_of(follower))


def run_placed(
    source: Source,
    problem: Problem,
    plan: Plan,
    devices: str,
    steps: int,
    plain: Message | None,
    report: Report,
) -> MeasuredRun:
    """Run a script by a plan: op by op on labels, or by module on GPUs.

    Parameters
    ----------
    plain : Message, optional
        The answer of :func:`run_plain`, to compare with.

    Raises
    ------
    PlanError
        If the plan is for another model.
    LoadError
        If the script has too few steps, or fails before.
    """
    follower: Follower
    if FRAMEWORK.uses_labels(devices):
        check_hooks()
        follower = by_op = _ByOp(problem, plan, steps, report)
        _follow(source, follower)
        run = _seen_by_op(problem, plan, by_op, devices)
    else:
        follower = by_module = _ByModule(problem, plan, steps, report)
        _follow(source, follower)
        run = _seen_by_module(problem, plan, by_module, devices)
    return run if plain is None else _compared(run, follower, plain)


def check_devices(problem: Problem, plan: Plan, devices: str) -> None:
    """Refuse a plan that cannot run, or has more devices than there are, before anything runs.

    Raises
    ------
    PlanError, ClusterError
        With what to do instead.
    """
    check_plan(problem, plan)
    if not FRAMEWORK.uses_labels(devices):
        found = torch_devices(problem.cluster, plan)
        if all(each.type == "cpu" for each in found.values()):
            raise ClusterError(
                f"the plan uses CPUs alone, which are labels; use --devices cpu:{len(found)}"
            )
        return
    match = LOCAL.fullmatch(devices.strip())
    assert match is not None
    used = [problem.cluster.devices[d].name for d in np.unique(plan.device).tolist()]
    if int(match[2]) < len(used):
        raise ClusterError(
            f"'{devices}': the plan uses {count(len(used), 'device')} ({listed(used)}); use "
            f"cpu:{len(used)}"
        )


def _follow(source: Source, follower: Follower) -> None:
    seed_all()
    run_watched(source, follower)
    if follower.n_compared:
        return
    if not follower.optimizers:
        raise LoadError(
            f"{source.name}: it makes no step of an optimiser of torch.optim, and a run compares "
            f"steps of training; to train by hand or infer with the plan, apply it in the script"
        )
    raise LoadError(
        f"{source.name}: it made fewer than {FIRST + 1} steps of an optimiser of torch.optim, and "
        f"two are needed before any is compared; let it make more"
    )


class _Plain(Follower):
    """Follows a script that runs as it is; one of its models must have a plan's parameters."""

    def __init__(self, planned: Mapping[str, int] | None, steps: int, report: Report) -> None:
        super().__init__(steps, "Running without the plan", report)
        self._planned = planned
        self.batches: Counter[Shapes] = Counter()

    def enter(self) -> None:
        super().enter()
        if self._number >= FIRST:
            self.modules.see_batch()

    def leave(self, is_whole: bool) -> None:
        super().leave(is_whole)
        self.modules.close()
        if is_whole:
            self.batches[self.modules.batch_shapes()] += 1
        planned = self._planned
        if planned is None or not self.models or not is_whole or self._number != FIRST - 1:
            return
        heads = [("", self.modules.variable(each)) for each in self.modules.models]
        pairs = zip(self.models, heads, strict=True)
        if not any(has_parameters(model, planned, names) for model, names in pairs):
            raise PlanError(_ANOTHER_MODEL)


_ANOTHER_MODEL = (
    "the plan was made for another model: none that the script calls has its parameters; profile "
    "it again and make a new plan"
)


class _ByOp(Follower):
    """Follows a script whose steps run placed, after one is recorded."""

    def __init__(self, problem: Problem, plan: Plan, steps: int, report: Report) -> None:
        super().__init__(steps, "Running the plan op by op", report)
        self._planned, self._splits = planned_devices(problem, plan), plan.splits
        self._n_devices = problem.cluster.n_devices
        self._recorder: Recorder | None = None
        self._refusal: PlanError | None = None
        self.mode: PlacedMode | None = None
        self.names: Sequence[str] = ()

    def enter(self) -> None:
        super().enter()
        if self._number == FIRST - 1:
            self._recorder = Recorder(self.modules, Clock())
            self._recorder.know_model(self.optimizers)
            self._recorder.__enter__()
        elif self.mode is not None:
            self.modules.__enter__()
            self.mode.begin_step(self.optimizers)

    def leave(self, is_whole: bool) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.__exit__(None, None, None)
            if is_whole:
                self._place(recorder)
        elif self.mode is not None:
            self.mode.end_step(is_whole)
        self.modules.close()

    def finish(self) -> None:
        super().finish()
        if self._refusal is not None:
            raise self._refusal

    def _place(self, recorder: Recorder) -> None:
        """Find where the ops of the recorded step are planned."""
        step = recorder.finish(self.modules.name, self.optimizers)
        graph, self._refusal = graph_of(step, MeasuredCosts(Timing())), None
        try:
            placed = place_step(step, graph, self._planned, self._splits)
        except PlanError as error:
            if not self.awaits_another:
                raise
            self._number, self._refusal = self._number - 1, error  # the next one is recorded anew
            return
        self.names = placed.names
        self.mode = PlacedMode(self.modules, placed, self._n_devices)

    def enter_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        super().enter_optimizer(optimizer)
        for each in (self._recorder, self.mode):
            if each is not None:
                each.at.enter_optimizer(optimizer)

    def leave_optimizer(self) -> None:
        for each in (self._recorder, self.mode):
            if each is not None:
                each.at.leave_optimizer()


class _ByModule(Follower):
    """Follows a script whose modules are placed on GPUs before the steps that count."""

    def __init__(self, problem: Problem, plan: Plan, steps: int, report: Report) -> None:
        super().__init__(steps, "Running the plan by module", report)
        self._planned, self._splits = planned_devices(problem, plan), plan.splits
        self.devices = torch_devices(problem.cluster, plan)
        self.placed: list[PlacedModules] = []

    def enter(self) -> None:
        super().enter()
        if self._number == FIRST:
            known = [each.model for each in self.placed]
            models = [each for each in self.models if all(each is not other for other in known)]
            placed = (
                place_model(each, self._planned, self.devices, self._splits) for each in models
            )
            self.placed += [each for each in placed if each is not None]
            if not self.placed:
                raise PlanError(_ANOTHER_MODEL)

    def finish(self) -> None:
        super().finish()
        for each in self.placed:
            each.remove()


def _seen_by_module(problem: Problem, plan: Plan, follower: _ByModule, devices: str) -> MeasuredRun:
    """Say which modules ran where, before any comparison."""
    called = [each.called for each in follower.placed]
    names = {str(each): problem.cluster.devices[at].name for at, each in follower.devices.items()}
    peaks = {
        name: torch.cuda.max_memory_allocated(at)
        for at, name in names.items()
        if at.startswith("cuda")
    }
    schedule = _predicted(problem, plan, [])
    return run_by_module(
        problem,
        plan,
        np.array(follower.times_us),
        np.nan if schedule is None else schedule.makespan_us,
        (sum(map(len, called)), sum(sum(each.values()) for each in called)),
        {
            **_about(follower, devices),
            "allocator_peak_bytes": peaks,
            "deterministic": False,
            "not_deterministic": "sums of a GPU's kernels",
        },
    )


def _seen_by_op(problem: Problem, plan: Plan, follower: _ByOp, devices: str) -> MeasuredRun:
    """Say what ran where, before any comparison."""
    assert follower.mode is not None
    profile, index = problem.profile, problem.profile.index
    steps = follower.mode.steps
    middle = _middle(steps)
    unknown_us = np.full(profile.n_ops, np.nan)
    op_device = np.full(profile.n_ops, NOT_SEEN)
    as_planned = 0
    for number, seen in middle.nodes.items():
        op = index.get(follower.names[number])
        if op is None:
            continue
        op_device[op] = seen.device
        as_planned += all(step.nodes[number].as_planned for step in steps if number in step.nodes)
    schedule = _predicted(problem, plan, follower.names)
    return MeasuredRun(
        profile=profile,
        plan=plan,
        cluster=problem.cluster,
        step_times_us=np.array(follower.times_us),
        op_time_us=unknown_us,
        op_start_us=unknown_us,
        op_finish_us=unknown_us,
        op_device=op_device,
        op_memory_bytes=np.zeros(profile.n_ops, dtype=np.int64),
        ops_checked=int((op_device != NOT_SEEN).sum()),
        ops_on_planned_device=as_planned,
        order_violations=None,
        loss_difference=np.nan,
        weights_difference=np.nan,
        stock_step_time_us=np.nan,
        predicted_step_time_us=np.nan if schedule is None else schedule.makespan_us,
        facts={
            **_facts(problem, plan, follower, middle, devices),
            **_predictions(schedule),
        },
    )


def _middle(steps: Sequence[StepSeen]) -> StepSeen:
    """Return the step that moved the median number of bytes between devices."""
    return sorted(steps, key=lambda step: step.moved_bytes)[len(steps) // 2]


def _facts(
    problem: Problem, plan: Plan, follower: _ByOp, middle: StepSeen, devices: str
) -> dict[str, Any]:
    """Collect the further details of a run; see :class:`MeasuredRun`."""
    assert follower.mode is not None
    names, planned = {*follower.names}, problem.profile.op_names
    peaks = zip(problem.cluster.devices, follower.mode.labels.peak_bytes, strict=True)
    by_module = [n for n in follower.names if n not in problem.profile.index]
    return {
        **_about(follower, devices),
        "labels": True,
        "transfers": middle.transfers,
        "moved_bytes": middle.moved_bytes,
        "placed_peak_bytes": {device.name: peak for device, peak in peaks if peak},
        "placed_by_module": len(by_module),
        "not_recorded": sum(name not in names for name in planned),
        "not_in_plan": dict(middle.unplanned),
    }


def _about(follower: Follower, devices: str) -> dict[str, Any]:
    """Collect the details that runs by op and by module share."""
    about = about_run(devices, follower.n_compared, follower.is_compiled)
    return {**about, "warm_ups": follower.n_compared - len(follower.times_us)}


def _predicted(problem: Problem, plan: Plan, names: Sequence[str]) -> Schedule | None:
    """Simulate the plan in the script's own order; None if the batch's costs are not known."""
    is_part = problem.measured_profile.measured.parts_of_batch > 1
    if is_part or not any(problem.profile.op_types):
        return None
    turn = {name: number for number, name in enumerate(names)}
    key = np.array([turn.get(name, len(turn)) for name in problem.profile.op_names])
    position = follow_graph(problem.profile, just_before_readers(problem.profile, key))
    return simulate(problem, replace(plan, position=position, policy="strict", subgraph=None))


def _predictions(schedule: Schedule | None) -> dict[str, Any]:
    """Return what is predicted of each device."""
    if schedule is None:
        return {"predicted_busy_us": None}
    names = [device.name for device in schedule.problem.cluster.devices]
    peaks = dict(zip(names, schedule.peak_bytes.tolist(), strict=True))
    return {"predicted_busy_us": schedule.busy_us.tolist(), "predicted_peak_bytes": peaks}


def _compared(run: MeasuredRun, follower: Follower, plain: Message) -> MeasuredRun:
    """Compare a run with the one without the plan."""
    ours, theirs = results_of(follower), plain.arrays
    differences = {
        group: largest_difference(group_of(ours, group), group_of(theirs, group))
        for group in (LOSS, WEIGHTS, GRADIENTS)
    }
    times_us = plain.details["times_us"]
    first = (
        way_of(steps_of(ours), group_of(ours, AFTER_FIRST)),
        way_of(steps_of(theirs), group_of(theirs, AFTER_FIRST)),
    )
    return replace(
        run,
        first_step_difference=first_step_difference(*first) if run.rounds else np.nan,
        loss_difference=differences[LOSS],
        weights_difference=differences[WEIGHTS],
        stock_step_time_us=median_us(times_us),
        facts={
            **run.facts,
            "other_batches": about_batches(run, plain),
            "stock_quartiles_us": quartiles_us(times_us),
            "gradients_difference": finite(differences[GRADIENTS]),
            "weights_compared": len(group_of(ours, WEIGHTS)),
        },
    )
