"""The result of running a plan on real devices, next to its prediction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from enplace.frameworks.framework import Framework
from enplace.frameworks.microbatches import share_of_profile
from enplace.frameworks.registry import framework_of
from enplace.machine.op_passes import backward_ops, optimiser_ops
from enplace.placers.references import verdict
from enplace.processes.codecs import plan_from, plan_message, profile_from, profile_message
from enplace.processes.wire import DONE, Message
from enplace.readers.cluster_json import cluster_from_json
from enplace.text import count, finite
from enplace.values.arrays import Frozen, freeze_arrays
from enplace.values.batch import with_batch
from enplace.values.cluster import Cluster
from enplace.values.device_names import task_of
from enplace.values.plan import Plan
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import KINDS, FloatArray, IntArray, Profile
from enplace.writers.clusters import cluster_to_json

NOT_SEEN = -1

SPLIT_DIFFERENCE, ROUNDINGS, MOST_DIFFERENCE = 1e-6, 10.0, 1e-3
"""Largest difference of a first step that may round differently, relative for numbers above
1: ``SPLIT_DIFFERENCE``, or ``ROUNDINGS`` times the effect of changing the variables' last bits if
that is more, but never more than ``MOST_DIFFERENCE``."""

DRIFT = "Parts round differently from whole ops, and the differences grow with every step."

DRIFT_OF_HOSTS = (
    "Sums over tensors from another process may round differently, and differences grow."
)

DRIFT_OF_KERNELS = (
    "An op has no kernel on the GPU that rounds the same way every time ({why}). So the first step "
    "is compared, within ten times what other last bits of the variables change."
)

DETERMINISTIC = (
    "Loss and weights are those of further steps with deterministic kernels; step times are those "
    "of the usual ones."
)

SHARED_CACHES = (
    "Logical CPUs share caches, memory and the threads that send. Predictions are often 15 to 70 % "
    "too short, mostly where many small tensors are sent. Tune measures the cost of sending."
)

LABELS = (
    "The devices are labels of one CPU. The ops ran on it one after another, each with copies of "
    "what other devices sent to it: that shows where they run and what they compute, but no step "
    "time. A copy lasts as long as what it is of, so a label may hold more than predicted."
)

SHARED_TURNS = (
    "These logical CPUs take turns, and the framework's own work takes its turn, too: a few "
    "microseconds for each transfer. No prediction counts this work, so those of plans with many "
    "transfers are too short."
)

SHARED_CORES = (
    "These are processes of one machine. They share its cores, also with the threads that "
    "send between them, so predictions are often far too short, most of all where a step takes a "
    "few milliseconds. Measure on separate machines."
)

FEWEST_SENDS = 5
"""The cost of a link is learned from at least this many transfers."""


def may_round(plan: Plan, cluster: Cluster) -> bool:
    """Return whether a run may round differently from one without the plan.

    Parts of a split op do. Sums over tensors from another process may, because those tensors are
    aligned differently in memory.
    """
    tasks = {task_of(cluster.devices[d].name) for d in np.unique(plan.device).tolist()}
    return bool(plan.splits) or len(tasks) > 1


def quartiles_us(times_us: Sequence[float] | FloatArray) -> list[float]:
    """Return the limits of the middle half of some times; empty if there are none."""
    return [float(each) for each in np.percentile(times_us, (25, 75))] if len(times_us) else []


def median_us(times_us: Sequence[float]) -> float:
    """Return the median of the times that are known; NaN if none is."""
    known = [each for each in times_us if math.isfinite(each)]
    return float(np.median(known)) if known else math.nan


@dataclass(frozen=True, eq=False)
class MeasuredRun(Frozen):
    """Some steps of a plan on real devices.

    Attributes
    ----------
    profile, plan, cluster
        The model and the plan that ran, and the devices that the plan's numbers refer to.
    step_times_us : float array, shape (n_steps,)
        Each step by the wall clock, without tracing.
    op_time_us : float array, shape (n_ops,)
        Median of the traced steps; NaN where an op left no row.
    op_start_us, op_finish_us : float array, shape (n_ops,)
        In the traced step of median length, from its start; NaN where an op left no row.
    op_device : int array, shape (n_ops,)
        Where each op really ran; :data:`NOT_SEEN` where it is in no partition.
    op_memory_bytes : int array, shape (n_ops,)
        Memory of each op while it ran, and of its outputs for other ops; 0 where it left no row.
    ops_checked, ops_on_planned_device : int or None
        Ops of the plan that the framework was seen to run, and those of them that were on the
        planned device; None if it places and checks modules.
    order_violations : int or None
        Ops that started before their predecessor in the plan's order of their device; None if the
        framework keeps its own order.
    loss_difference, weights_difference : float
        Largest difference from the same steps without the plan or the framework's graph optimiser.
        For inference, ``loss_difference`` compares the outputs. NaN if there is nothing to compare.
    stock_step_time_us : float
        Median step of the framework by itself: its graph optimiser on, no plan.
    predicted_step_time_us : float
        The simulator's prediction.
    facts : mapping
        Further details; plain data.
    first_step_difference : float
        Where a run may round differently (:func:`may_round`), the largest difference between the
        first step and the same step without the plan: of the loss, and of the new weights or
        the loss they give, whichever is less; relative for numbers above 1. NaN otherwise, and
        where nothing can be compared.
    rounding_difference : float
        The same between two runs without the plan, one of which starts with changed last bits.
    modules_checked, modules_on_planned_device : int or None
        As for ops, where ``ops_checked`` is None.
    """

    profile: Profile
    plan: Plan
    cluster: Cluster
    step_times_us: FloatArray
    op_time_us: FloatArray
    op_start_us: FloatArray
    op_finish_us: FloatArray
    op_device: IntArray
    op_memory_bytes: IntArray
    ops_checked: int | None = None
    ops_on_planned_device: int | None = None
    order_violations: int | None = None
    loss_difference: float = math.nan
    weights_difference: float = math.nan
    stock_step_time_us: float = math.nan
    predicted_step_time_us: float = math.nan
    facts: Mapping[str, Any] = field(default_factory=dict)
    first_step_difference: float = math.nan
    rounding_difference: float = math.nan
    modules_checked: int | None = None
    modules_on_planned_device: int | None = None

    def __post_init__(self) -> None:
        if self.on_labels:  # devices do not run their ops in turn, so no time means anything
            for name in ("step_times_us", "op_time_us", "op_start_us", "op_finish_us"):
                object.__setattr__(self, name, np.full_like(getattr(self, name), np.nan, float))
            object.__setattr__(self, "stock_step_time_us", math.nan)
            facts = {key: each for key, each in self.facts.items() if key != "stock_quartiles_us"}
            object.__setattr__(self, "facts", facts)
        freeze_arrays(self)

    @property
    def busy_us(self) -> FloatArray:
        """Compute time of the ops on each device, overheads as calibrated; shape (n_devices,)."""
        time_us, device = with_measured_costs(self).time_us, self.op_device
        seen = np.flatnonzero(device != NOT_SEEN)
        at = device[seen]
        spent_us = np.nan_to_num(time_us[seen, self.cluster.kind[at]] / self.cluster.speed[at])
        busy_us = np.zeros(self.cluster.n_devices)
        np.add.at(busy_us, at, spent_us)
        return busy_us

    @property
    def allocator_peak_bytes(self) -> Mapping[str, int]:
        """The most that the allocator of a device held, by name; not all devices report it."""
        found: Mapping[str, int] = self.facts.get("allocator_peak_bytes", {})
        return found

    @property
    def framework(self) -> Framework:
        """The framework that ran it."""
        return framework_of(self.profile)

    @property
    def step_time_us(self) -> float:
        """Median step; NaN on labels, where no time is measured."""
        return float(np.median(self.step_times_us))

    @property
    def changes_result(self) -> bool:
        """Whether loss or weights differ from the run without the plan.

        Where sums may round differently, some models amplify the last bit within a few steps or
        even one. There the first step decides, compared with the effect of changing the last bits
        of the variables.
        """
        if not self.rounds:
            return self.differs
        return bool(self.first_step_difference > self.tolerance)

    @property
    def tolerance(self) -> float:
        """The difference of the first step, in proportion, that is taken for rounding."""
        if not self.rounds:
            return 0.0
        rounding = min(ROUNDINGS * np.nan_to_num(self.rounding_difference), MOST_DIFFERENCE)
        return float(max(self.facts.get("tolerance", SPLIT_DIFFERENCE), rounding))

    @property
    def is_bit_equal(self) -> bool:
        """Whether what could be compared is that of the run without the plan, to the last bit."""
        is_known = not (math.isnan(self.loss_difference) and math.isnan(self.weights_difference))
        return is_known and not self.differs

    @property
    def equality(self) -> str:
        """How the result compares with that of the run without the plan, in a few words."""
        if self.is_bit_equal:
            return "bit-equal"
        if not self.differs:
            return "not compared"
        return "differs" if self.changes_result else f"first step within {self.tolerance:.2g}"

    @property
    def differs(self) -> bool:
        """Whether loss or weights differ at all from the run without the plan."""
        return self.loss_difference > 0 or self.weights_difference > 0

    @property
    def rounds(self) -> bool:
        """Whether sums may be rounded otherwise: by parts, across hosts or by kernels of a GPU."""
        parts_or_hosts = may_round(self.plan, self.cluster) or bool(self.pipeline)
        return parts_or_hosts or self.facts.get("deterministic") is False

    @property
    def as_planned(self) -> bool:
        """Whether every op ran on its planned device, in the planned order, with the same result.

        A result that cannot be compared, because the model fits only with the plan, is accepted.
        """
        return self.is_in_place and not self.order_violations and not self.changes_result

    @property
    def checked(self) -> str:
        """What was checked to be where it is planned: ``op`` or ``module``."""
        return "module" if self.ops_checked is None else "op"

    @property
    def in_place(self) -> tuple[int, int]:
        """How many ops or modules were where planned, and how many were checked."""
        if self.ops_checked is None:
            return self.modules_on_planned_device or 0, self.modules_checked or 0
        return self.ops_on_planned_device or 0, self.ops_checked

    @property
    def is_in_place(self) -> bool:
        """Whether all of them were."""
        return self.in_place[0] == self.in_place[1]

    @property
    def faults(self) -> list[str]:
        """How it did not run as planned; empty if it did."""
        in_place, checked = self.in_place
        late = self.order_violations or 0
        faults = [
            f"{count(checked - in_place, self.checked)} not where planned" * (in_place < checked),
            f"{count(late, 'op')} out of order" * bool(late),
            "a different result from the run without the plan" * self.changes_result,
        ]
        return [*filter(None, faults)]

    @property
    def drift(self) -> str:
        """The reason why later steps may differ without a fault; empty if they should not."""
        if not (self.differs and self.rounds):
            return ""
        if self.facts.get("deterministic") is False:
            return DRIFT_OF_KERNELS.format(why=self.facts.get("not_deterministic", ""))
        return DRIFT if self.plan.splits or self.pipeline else DRIFT_OF_HOSTS

    @property
    def pipeline(self) -> Mapping[str, Any]:
        """What was measured of the pipeline of micro-batches; empty if the step ran whole."""
        found: Mapping[str, Any] = self.facts.get("pipeline", {})
        return found

    @property
    def about_comparison(self) -> str:
        """With which kernels results were compared, if not with those that were timed."""
        return DETERMINISTIC if self.facts.get("deterministic") else ""

    @property
    def outside(self) -> tuple[float, float]:
        """How long a step waits for its batch, and how long it takes until its first op starts.

        Both are from traced steps, which take longer; together they are at most a step.
        """
        wait_us, start_us = (finite(self.facts.get(key)) or 0.0 for key in ("input_us", "start_us"))
        wait_us = min(wait_us, self.step_time_us)
        return wait_us, min(start_us, self.step_time_us - wait_us)

    @property
    def in_ops_us(self) -> tuple[float, float]:
        """How long the busiest device computes, measured and predicted; NaN where unknown.

        Logical devices of one chip count as one.
        """

        def busiest(busy_us: Sequence[float] | FloatArray) -> float:
            by_chip = np.bincount(cluster.lane_owner, busy_us, cluster.n_devices)
            return float((by_chip / cluster.lanes).max())

        cluster, predicted = self.cluster, self.facts.get("predicted_busy_us")
        return busiest(self.busy_us), math.nan if predicted is None else busiest(predicted)

    @property
    def one_device_us(self) -> float:
        """Median step without the plan: one device, and no graph optimiser. NaN if not compared."""
        return finite(self.facts.get("unplaced_step_time_us")) or math.nan

    @property
    def replicas_us(self) -> float:
        """Median step with a replica on each device; NaN if that was not timed."""
        return median_us(self.replica_times_us)

    @property
    def replica_times_us(self) -> Sequence[float]:
        """Each step with a replica on each device; empty if that was not timed."""
        times: Sequence[float] = self.facts.get("data_parallel", {}).get("times_us", ())
        return times

    @property
    def why_no_replicas(self) -> str:
        """Why data parallelism was not timed; empty if it was, or if the framework's never is."""
        why_not = self.facts.get("data_parallel", {}).get("why_not")
        said = f"Data parallelism was not timed: {why_not}." if why_not else ""
        return self.framework.in_own_words(said)

    @property
    def about_replicas(self) -> str:
        """Why data parallelism was not timed, and what its prediction assumes; empty if it was."""
        about = self.facts.get("data_parallel", {}).get("about", "")
        return f"{self.why_no_replicas} {about}".strip()

    @property
    def predicted_replicas_us(self) -> float:
        """Predicted step with a replica on each device, if it was not timed; else NaN."""
        return finite(self.facts.get("data_parallel", {}).get("predicted_us")) or math.nan

    @property
    def on_labels(self) -> bool:
        """Whether the ops ran one after another, on a CPU whose labels are the plan's devices."""
        return bool(self.facts.get("labels"))

    @property
    def verdict(self) -> str:
        """Whether the plan is worth it; empty if there is nothing to compare it with."""
        if self.on_labels:
            return ""
        rivals = (self.one_device_us, self.stock_step_time_us)
        said = verdict(self.step_time_us, *rivals, replicas_us=self.replicas_us)
        return self.framework.in_own_words(said)

    @property
    def caveat(self) -> str:
        """The reason why the prediction may be too short on these devices; empty if none is known.

        The machine model ignores what cores of one machine share, and that processes share cores.
        Devices that run in turn on one chip share it with the work of sending. Labels share all.
        """
        if self.on_labels:
            return LABELS
        if self.facts.get("processes") and all(d.kind == "cpu" for d in self.cluster.devices):
            return SHARED_CORES
        used = [self.cluster.devices[d] for d in np.unique(self.plan.device).tolist()]
        tasks = {task_of(device.name) for device in used}
        at = {name.rpartition(":")[0] for task, name in self.cluster.hosts if task in tasks}
        if len(used) < 2 or len(at) > 1 or any(d.kind != "cpu" for d in used):
            return ""
        if len(tasks) > 1:
            return SHARED_CORES
        if not any(d.chip for d in used):
            return SHARED_CACHES
        transfers = self.facts.get("transfers", 0)
        return f"{SHARED_TURNS} This step has {count(transfers, 'transfer')}." if transfers else ""

    @property
    def about_batches(self) -> str:
        """How the batches differ from those that were profiled; empty if they do not."""
        return str(self.facts.get("other_batches", ""))

    @property
    def about_stock(self) -> str:
        """How the user's script may differ from the run without a plan; empty if it does not."""
        used = (self.cluster.devices[d] for d in np.unique(self.plan.device).tolist())
        plain = self.facts.get("plain_kernels") and all(device.kind == "cpu" for device in used)
        remarks = (
            self.framework.about_compiled if self.facts.get("compiled") else "",
            self.framework.about_plain_kernels if plain else "",
        )
        return " ".join(filter(None, remarks))

    def to_json(self) -> dict[str, Any]:
        """The figures of the run, without those of single ops; on labels, no time was measured."""
        figures = {name: _finite(getattr(self, name)) for name in _FIGURES}
        return {
            "steps": len(self.step_times_us),
            "step_time_us": _finite(self.step_time_us),
            **figures,
            "step_quartiles_us": None if self.on_labels else quartiles_us(self.step_times_us),
            "one_device_step_time_us": _finite(self.one_device_us),
            "data_parallel_step_time_us": _finite(self.replicas_us),
            "verdict": self.verdict,
            "facts": dict(self.facts),
        }


def run_by_module(
    problem: Problem,
    plan: Plan,
    step_times_us: FloatArray,
    predicted_us: float,
    modules: tuple[int, int],
    facts: Mapping[str, Any],
) -> MeasuredRun:
    """Return a run whose modules were placed, before any comparison; of its ops nothing is known.

    Parameters
    ----------
    predicted_us : float
        The simulator's prediction of the step; NaN if there is none.
    modules : tuple of (int, int)
        How many were checked, and how many of them were on their planned device.
    """
    n_ops = problem.profile.n_ops
    unknown = np.full(n_ops, np.nan)
    return MeasuredRun(
        profile=problem.profile,
        plan=plan,
        cluster=problem.cluster,
        step_times_us=step_times_us,
        op_time_us=unknown,
        op_start_us=unknown,
        op_finish_us=unknown,
        op_device=np.full(n_ops, NOT_SEEN),
        op_memory_bytes=np.zeros(n_ops, dtype=np.int64),
        predicted_step_time_us=predicted_us,
        modules_checked=modules[0],
        modules_on_planned_device=modules[1],
        facts=facts,
    )


def _finite(value: float | None) -> float | None:
    """Null stands for unknown figures, because JSON has no NaN."""
    return value if value is not None and math.isfinite(value) else None


COUNTS = (
    "ops_checked",
    "ops_on_planned_device",
    "order_violations",
    "modules_checked",
    "modules_on_planned_device",
)
"""Figures that may be None; an unknown time or difference is NaN."""

_FIGURES = (
    "predicted_step_time_us",
    "stock_step_time_us",
    *COUNTS,
    "loss_difference",
    "weights_difference",
    "first_step_difference",
    "rounding_difference",
)


def with_measured_costs(run: MeasuredRun) -> Profile:
    """Replace the op times of a profile by those of a run, for the device kind each op ran on.

    Ops that left no row keep their cost (FastT's adaptive cost model, section 4). Rows include
    neither the executor's overhead on a CPU nor the gap before each kernel on a GPU; both stay as
    they were calibrated. Of a pipeline whose stages were timed, all ops of a pass on a device keep
    their proportions, and together take what was measured.
    """
    time_us = run.profile.time_us.copy()
    for at, ops, factor in _factors_of_passes(run):
        time_us[ops, run.cluster.kind[at]] *= factor
    seen = np.flatnonzero(np.isfinite(run.op_time_us) & (run.op_device != NOT_SEEN))
    device = run.op_device[seen]
    kind = run.cluster.kind[device]
    own_us = run.op_time_us[seen] * run.cluster.speed[device]
    time_us[seen, kind] = own_us + _added_us(run.profile)[seen, kind]
    measured = replace(run.profile.measured, estimated="", estimated_speed=None)
    return replace(run.profile.with_costs(time_us), measured=measured)


def _factors_of_passes(run: MeasuredRun) -> Iterator[tuple[int, BoolArray, float]]:
    """Yield a device, its ops of a pass, and how much longer they take than predicted."""
    rows = [row for row in run.pipeline.get("devices", ()) if row.get("passes_us")]
    if not rows:
        return
    problem, number = Problem(run.profile, run.cluster), run.pipeline["microbatches"]
    cost_us = np.nan_to_num(with_batch(run.profile, share_of_profile(run.profile, number)).time_us)
    backward, updates = backward_ops(problem), optimiser_ops(problem)
    for row in rows:
        device = run.cluster.index[row["device"]]
        here = (run.plan.device == device) & ~updates
        for of, measured_us in zip((~backward, backward), row["passes_us"], strict=True):
            known_us = float(cost_us[here & of, run.cluster.kind[device]].sum()) * number
            if known_us and measured_us:
                factor = measured_us * run.cluster.speed[device] / known_us
                yield device, here & of, factor


def with_measured_links(run: MeasuredRun) -> Cluster:
    """Learn the latency (b0) of links from the transfers of a run.

    A transfer counts if only it delayed its consumer: the consumer's device was idle when the
    tensor was made, and the op waited for no later tensor. The cost per byte stays, because the
    sizes in one step are too similar to fit a line. FastT refits both (section 4).
    """
    edges, wait_us = _telling_edges(run)
    profile, at = run.profile, run.op_device
    source, target = at[profile.edge_source[edges]], at[profile.edge_op[edges]]
    size = profile.tensor_bytes[profile.edge_tensor[edges]]
    links = []
    for link in run.cluster.links:
        here = (source == link.source) & (target == link.target)
        beyond_us = wait_us[here] - link.b1_us_per_byte * size[here]
        if len(beyond_us) >= FEWEST_SENDS:
            link = replace(link, b0_us=max(0.0, float(np.median(beyond_us))))
        links.append(link)
    return replace(run.cluster, links=tuple(links))


def _telling_edges(run: MeasuredRun) -> tuple[IntArray, FloatArray]:
    """Find edges between devices whose transfer alone delayed the consumer, and for how long."""
    profile, at = run.profile, run.op_device
    op, source = profile.edge_op, profile.edge_source
    finish_us = np.where(at == NOT_SEEN, np.nan, run.op_finish_us)
    last_us = np.full(profile.n_ops, -np.inf)
    made_us = np.nan_to_num(finish_us[source], nan=np.inf)
    np.maximum.at(last_us, op, made_us)
    is_idle = _free_us(run, finish_us)[op] <= made_us
    edges = np.flatnonzero((made_us == last_us[op]) & is_idle & (at[source] != at[op]))
    return edges, run.op_start_us[op[edges]] - finish_us[source[edges]]


def _free_us(run: MeasuredRun, finish_us: FloatArray) -> FloatArray:
    """Find when each op's device had finished all earlier ops; NaN for a device's first op."""
    free_us = np.full(run.profile.n_ops, np.nan)
    for device in range(run.cluster.n_devices):
        ops = np.flatnonzero((run.op_device == device) & np.isfinite(run.op_start_us))
        ops = ops[np.argsort(run.op_start_us[ops], kind="stable")]
        free_us[ops[1:]] = np.maximum.accumulate(finish_us[ops])[:-1]
    return free_us


def _added_us(profile: Profile) -> FloatArray:
    """Return each op's calibrated overhead beyond its row, by kind; shape (n_ops, 2)."""
    measured = profile.measured
    added_us = np.zeros((profile.n_ops, len(KINDS)))
    n_kernels = np.array([measured.op_kernels.get(name, 0) for name in profile.op_names])
    added_us[:, KINDS.index("gpu")] = n_kernels * (measured.launch_gap_us or 0.0)
    added_us[:, KINDS.index("cpu")] = measured.op_overhead_us or 0.0
    return added_us


_PROFILE = "profile."
"""Begins the names of a profile's arrays in the message of a run."""


def run_message(run: MeasuredRun) -> Message:
    """Make a message of a run, without the profile if the receiver has it."""
    carried = plan_message(DONE, run.plan, {"cluster": cluster_to_json(run.cluster)})
    if run.pipeline:
        profile = profile_message(run.profile)
        graph = {f"{_PROFILE}{name}": array for name, array in profile.arrays.items()}
        carried = Message(
            DONE, {**carried.details, "profile": profile.details}, {**carried.arrays, **graph}
        )
    values = {f.name: getattr(run, f.name) for f in fields(run)}
    figures = {name: values[name] for name in (*_FIGURES, "facts")}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    return Message(DONE, {**carried.details, "run": figures}, {**carried.arrays, **arrays})


def run_from(message: Message, problem: Problem) -> MeasuredRun:
    """Read the run of such a message, given the problem of the job."""
    arrays = {n: v for n, v in message.arrays.items() if n not in ("device", "position")}
    graph = {n: arrays.pop(n) for n in [*arrays] if n.startswith(_PROFILE)}
    profile = problem.profile
    if graph:
        named = {name.removeprefix(_PROFILE): array for name, array in graph.items()}
        profile = profile_from(Message("profile", message.details["profile"], named))
    return MeasuredRun(
        profile,
        plan_from(message),
        cluster_from_json(message.details["cluster"]),
        **arrays,  # type: ignore[arg-type]
        **message.details["run"],
    )
