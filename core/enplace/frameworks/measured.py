"""What a real run of a plan showed, beside what was predicted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from enplace.processes.wire import Message, plan_from, plan_message
from enplace.readers.clusters import cluster_from_json
from enplace.values.cluster import Cluster, task_of
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import KINDS, FloatArray, IntArray, Profile
from enplace.writers.clusters import cluster_to_json

NOT_SEEN = -1


SPLIT_DIFFERENCE, ROUNDINGS, MOST_DIFFERENCE = 1e-6, 10.0, 1e-3
"""So much the first step may differ where ops are split, in proportion to numbers above 1; or so
many times what it does when the variables' last bits change, if that is more; or so much at most.
"""

DRIFT = "Parts round otherwise than whole ops; differences grow with steps."

DRIFT_OF_HOSTS = (
    "Sums over what came from another process may round otherwise; differences grow with steps."
)

SHARED_CACHES = (
    "Logical CPUs share caches, memory and the threads that send: a prediction is often 15 to 70 % "
    "short, most where many small tensors are sent. Tune learns what sends cost."
)

SHARED_CORES = (
    "These hosts are processes of one machine. They share its cores, also with what sends between "
    "them, so a prediction is often far too short: measure on hosts of their own."
)

COMPILED = (
    "XLA compiles this step in the script itself. Enplace measures and runs it op by op, and so it "
    "does what is called TensorFlow by itself: compare with the script, too."
)

PLAIN_KERNELS = (
    "CPU ops ran with TensorFlow's plain kernels (oneDNN off), also in TensorFlow by itself, for "
    "oneDNN fuses ops that a plan orders. Your script, which has it on, may be faster than that."
)

FEWEST_SENDS = 5
"""So many transfers have to tell of a link before its cost is learned from them."""


def may_round(plan: Plan, cluster: Cluster) -> bool:
    """Whether a run may round otherwise than one without the plan.

    Parts of a split op do; so may sums over tensors that came from another process, which lie in
    memory as they arrived, and so are added up from another place on.
    """
    tasks = {task_of(cluster.devices[d].name) for d in np.unique(plan.device).tolist()}
    return bool(plan.splits) or len(tasks) > 1


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """Some steps of a plan on real devices.

    Attributes
    ----------
    profile, plan, cluster
        What ran, and the devices that the plan's numbers mean.
    step_times_us : float array, shape (n_steps,)
        Each step by the wall clock, without tracing.
    op_time_us : float array, shape (n_ops,)
        Median of the traced steps; NaN where an op left no row.
    op_start_us, op_finish_us : float array, shape (n_ops,)
        In the traced step of median length, from its start; NaN where an op left no row.
    op_device : int array, shape (n_ops,)
        Where each op really ran; :data:`NOT_SEEN` where it is in no partition.
    op_memory_bytes : int array, shape (n_ops,)
        What each op held while it ran and gave to others of the profile; 0 where it left no row.
    ops_checked, ops_on_planned_device : int
        Ops of the plan that are in the partitions that TensorFlow ran, and those of them where the
        plan has them.
    order_violations : int
        Ops that started before the one that the plan puts ahead of them on their device.
    loss_difference, weights_difference : float
        Largest difference to the same steps unplaced, grappler off; of an inference, the first is
        that of its outputs. NaN if there is nothing to compare.
    stock_step_time_us : float
        Median step of TensorFlow by itself: grappler on, no plan.
    predicted_step_time_us : float
        What the simulator said.
    facts : mapping
        What else a person may ask; plain data.
    first_step_difference : float
        Where a run may round otherwise (:func:`may_round`), the largest difference of the first
        step's loss to that of the same step unplaced, and of the weights after it or of the loss
        that these give, whichever is less; numbers above 1 count in proportion. Else NaN, as where
        nothing can be compared.
    rounding_difference : float
        The same between two unplaced runs, one of which starts with other last bits.
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
    ops_checked: int
    ops_on_planned_device: int
    order_violations: int
    loss_difference: float
    weights_difference: float
    stock_step_time_us: float
    predicted_step_time_us: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    first_step_difference: float = math.nan
    rounding_difference: float = math.nan

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    @property
    def step_time_us(self) -> float:
        """Median step."""
        return float(np.median(self.step_times_us))

    @property
    def changes_result(self) -> bool:
        """Whether loss or weights differ from the run without the plan.

        Where sums may round otherwise, some models make much of the last bit within few steps, or
        within one: there the first step decides, beside what it makes of the last bits of its
        variables.
        """
        if not self.rounds:
            return self.differs
        rounding = min(ROUNDINGS * np.nan_to_num(self.rounding_difference), MOST_DIFFERENCE)
        return bool(self.first_step_difference > max(SPLIT_DIFFERENCE, rounding))

    @property
    def differs(self) -> bool:
        """Whether loss or weights differ at all from the run without the plan."""
        return self.loss_difference > 0 or self.weights_difference > 0

    @property
    def rounds(self) -> bool:
        """See :func:`may_round`."""
        return may_round(self.plan, self.cluster)

    @property
    def as_planned(self) -> bool:
        """Whether every op ran where the plan has it, in the plan's order, to the same result.

        A result that could not be compared, because the model fits only with the plan, is no fault.
        """
        in_place = self.ops_on_planned_device == self.ops_checked
        return in_place and not self.order_violations and not self.changes_result

    @property
    def drift(self) -> str:
        """What makes later steps differ; empty if nothing does that is no fault."""
        if not (self.differs and self.rounds):
            return ""
        return DRIFT if self.plan.splits else DRIFT_OF_HOSTS

    @property
    def caveat(self) -> str:
        """What makes the prediction too short on these devices; empty if nothing is known to.

        CPUs of one machine: what their cores share is not in the machine model, nor that processes
        share the cores. Those that take turns on one chip share nothing at the same time.
        """
        used = [self.cluster.devices[d] for d in np.unique(self.plan.device).tolist()]
        tasks = {task_of(device.name) for device in used}
        at = {name.rpartition(":")[0] for task, name in self.cluster.hosts if task in tasks}
        if len(used) < 2 or len(at) > 1 or any(d.kind != "cpu" or d.chip for d in used):
            return ""
        return SHARED_CACHES if len(tasks) == 1 else SHARED_CORES

    @property
    def about_stock(self) -> str:
        """How the person's own script may differ from TensorFlow by itself; empty if in nothing."""
        used = (self.cluster.devices[d] for d in np.unique(self.plan.device).tolist())
        plain = self.facts.get("onednn") is False and all(device.kind == "cpu" for device in used)
        told = (COMPILED if self.facts.get("compiled") else "", PLAIN_KERNELS if plain else "")
        return " ".join(filter(None, told))

    def to_json(self) -> dict[str, Any]:
        """The figures of the run; those of single ops stay out."""
        return {
            "steps": len(self.step_times_us),
            "step_time_us": self.step_time_us,
            **{name: _finite(getattr(self, name)) for name in _FIGURES},
            "facts": dict(self.facts),
        }


def _finite(value: float) -> float | None:
    """JSON has no word for what is not known but null."""
    return value if math.isfinite(value) else None


_FIGURES = (
    "predicted_step_time_us",
    "stock_step_time_us",
    "ops_checked",
    "ops_on_planned_device",
    "order_violations",
    "loss_difference",
    "weights_difference",
    "first_step_difference",
    "rounding_difference",
)


def with_measured_costs(run: MeasuredRun) -> Profile:
    """The profile with the op times of a run taken in, for the kind of device that each op ran on.

    Ops that left no row keep their cost (FastT's adaptive cost model, section 4). Rows hold neither
    what the executor adds to every op on a CPU nor the gap before each kernel on a GPU; both stay
    as they were calibrated.
    """
    time_us = run.profile.time_us.copy()
    seen = np.flatnonzero(np.isfinite(run.op_time_us) & (run.op_device != NOT_SEEN))
    device = run.op_device[seen]
    kind = run.cluster.kind[device]
    own_us = run.op_time_us[seen] * run.cluster.speed[device]
    time_us[seen, kind] = own_us + _added_us(run.profile)[seen, kind]
    return run.profile.with_costs(time_us)


def with_measured_links(run: MeasuredRun) -> Cluster:
    """The cluster with what transfers of a run took before their first byte (b0).

    A transfer tells if nothing else held its consumer up: the device had nothing left to do when
    the tensor, the last that the op waited for, was made. What bytes cost stays; those of one step
    are too alike to tell. FastT refits both (section 4).
    """
    profile, cluster, at = run.profile, run.cluster, run.op_device
    finish_us = np.where(at == NOT_SEEN, np.nan, run.op_finish_us)
    free_us = np.full(profile.n_ops, np.nan)
    for device in range(cluster.n_devices):
        ops = np.flatnonzero((at == device) & np.isfinite(run.op_start_us))
        ops = ops[np.argsort(run.op_start_us[ops], kind="stable")]
        busy_us = np.maximum.accumulate(finish_us[ops])
        free_us[ops[1:]] = busy_us[:-1]
    last_us = np.full(profile.n_ops, -np.inf)
    made_us = np.nan_to_num(finish_us[profile.edge_source], nan=np.inf)
    np.maximum.at(last_us, profile.edge_op, made_us)
    op, source, tensor = profile.edge_op, profile.edge_source, profile.edge_tensor
    tells = (made_us == last_us[op]) & (free_us[op] <= made_us) & (at[source] != at[op])
    op, source, tensor = op[tells], source[tells], tensor[tells]
    wait_us = run.op_start_us[op] - finish_us[source]
    links = []
    for link in cluster.links:
        here = (at[source] == link.source) & (at[op] == link.target)
        beyond_us = wait_us[here] - link.b1_us_per_byte * profile.tensor_bytes[tensor[here]]
        if len(beyond_us) >= FEWEST_SENDS:
            link = replace(link, b0_us=max(0.0, float(np.median(beyond_us))))
        links.append(link)
    return replace(cluster, links=tuple(links))


def _added_us(profile: Profile) -> FloatArray:
    """What was calibrated beyond the rows of each op, by kind of device; shape (n_ops, 2)."""
    measured = profile.measured
    added_us = np.zeros((profile.n_ops, len(KINDS)))
    n_kernels = np.array([measured.op_kernels.get(name, 0) for name in profile.op_names])
    added_us[:, KINDS.index("gpu")] = n_kernels * (measured.launch_gap_us or 0.0)
    added_us[:, KINDS.index("cpu")] = measured.op_overhead_us or 0.0
    return added_us


def run_message(run: MeasuredRun, do: str = "done") -> Message:
    """A message that carries a run; its profile stays with those who asked for it."""
    carried = plan_message(do, run.plan, {"cluster": cluster_to_json(run.cluster)})
    values = {f.name: getattr(run, f.name) for f in fields(run)}
    figures = {name: values[name] for name in (*_FIGURES, "facts")}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    return Message(do, {**carried.details, "run": figures}, {**carried.arrays, **arrays})


def run_from(message: Message, problem: Problem) -> MeasuredRun:
    """The run of such a message, with the problem that was asked about."""
    arrays = {n: v for n, v in message.arrays.items() if n not in ("device", "position")}
    return MeasuredRun(
        problem.profile,
        plan_from(message),
        cluster_from_json(message.details["cluster"]),
        **arrays,  # type: ignore[arg-type]
        **message.details["run"],
    )
