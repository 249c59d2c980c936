"""Small problems for tests, written by hand or drawn by hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from enplace.machine.layout import build_machine
from enplace.machine.memory import find_peak_ops
from enplace.machine.timing import Timing, new_timing
from enplace.values.cluster import Cluster, Device, Link
from enplace.values.measurement import MeasuredLink
from enplace.values.plan import LINK_POLICIES, POLICIES, Plan
from enplace.values.problem import Problem
from enplace.values.profile import CONTROL, Profile, make_profile
from enplace.values.schedule import Schedule

GIB = 1 << 30


def profile_of(
    times: dict[str, float],
    edges: Sequence[tuple[str, str, int]] = (),
    *,
    control: Sequence[tuple[str, str]] = (),
    persistent: dict[str, int] | None = None,
    temporary: dict[str, int] | None = None,
    colocation: dict[str, str] | None = None,
    cpu: dict[str, float] | None = None,
) -> Profile:
    """Build a profile from op -> GPU time and (source, target, bytes) edges of output 0."""
    names = [*times, *(name for name in cpu or {} if name not in times)]
    index = {name: op for op, name in enumerate(names)}
    ends = [(index[a], 0, index[b], size) for a, b, size in edges]
    ends += [(index[a], CONTROL, index[b], 0) for a, b in control]
    columns = np.array(ends, dtype=np.int64).reshape(-1, 4).T
    nan = float("nan")
    return make_profile(
        "hand",
        op_names=names,
        op_types=["Op"] * len(names),
        scopes=[name.rpartition("/")[0] for name in names],
        time_us=np.array([[times.get(n, nan), (cpu or {}).get(n, nan)] for n in names]),
        persistent_bytes=[(persistent or {}).get(n, 0) for n in names],
        temporary_bytes=[(temporary or {}).get(n, 0) for n in names],
        colocation=[(colocation or {}).get(n, "") for n in names],
        edge_source=columns[0],
        edge_output=columns[1],
        edge_op=columns[2],
        edge_bytes=columns[3],
    )


def cluster_of(
    n_gpus: int = 2,
    *,
    b0_us: float = 1.0,
    b1_us_per_byte: float = 1.0,
    capacity_bytes: int = GIB,
    speeds: Sequence[float] = (),
    cpu_lanes: int = 0,
    shared: bool = False,
    slower: Sequence[float] = (),
) -> Cluster:
    """Build GPUs, and a CPU if it has lanes, with a channel per ordered pair or one for all.

    ``slower`` gives a factor for all links of each GPU; a link takes the larger of two.
    """
    devices = [
        Device(f"GPU:{d}", "gpu", capacity_bytes, speeds[d] if speeds else 1.0)
        for d in range(n_gpus)
    ]
    if cpu_lanes:
        devices.append(Device("CPU:0", "cpu", capacity_bytes, 1.0, cpu_lanes))
    n = len(devices)
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    factor = [*(slower or [1.0] * n_gpus), 1.0]
    return Cluster(
        "hand",
        tuple(devices),
        ("bus",) if shared else tuple(f"{a}-{b}" for a, b in pairs),
        tuple(
            Link(a, b, b0_us * times, b1_us_per_byte * times, (0 if shared else number,))
            for number, (a, b) in enumerate(pairs)
            for times in [max(factor[a], factor[b])]
        ),
    )


def with_measured_links(problem: Problem) -> Problem:
    """Say that all links of a problem were measured: a transfer costs no more than they say."""
    name = [device.name for device in problem.cluster.devices]
    links = tuple(
        MeasuredLink(
            name[link.source], name[link.target], (), (), link.b0_us, link.b1_us_per_byte, 1.0
        )
        for link in problem.cluster.links
    )
    measured = replace(problem.profile.measured, links=links, cluster=problem.cluster)
    profile = replace(problem.profile, measured=measured)
    return Problem(profile, problem.cluster, problem.constraints)


def plan_of(problem: Problem, devices: dict[str, int], **settings: str) -> Plan:
    """Build a plan in topological order from op -> device."""
    profile = problem.profile
    position = np.empty(profile.n_ops, dtype=np.int64)
    position[profile.topological_order] = np.arange(profile.n_ops)
    device = np.array([devices[name] for name in profile.op_names], dtype=np.int64)
    return Plan(device, position, "hand", **settings)


def timing_of(schedule: Schedule) -> Timing:
    """Return a schedule's times as the compiled search holds them."""
    timing = new_timing(build_machine(schedule.problem))
    timing.finish_us[:] = schedule.op_finish_us
    sent = schedule.transfer_tensor, schedule.transfer_to
    timing.sent_us[sent] = schedule.transfer_start_us
    timing.arrival_us[sent] = schedule.transfer_finish_us
    return timing


def ops_at_peak(schedule: Schedule) -> list[int]:
    """List the ops that hold memory where and when most is lacking, as the search lists them."""
    profile = schedule.problem.profile
    ops = np.empty(profile.n_ops + profile.n_tensors + profile.n_edges, dtype=np.int64)
    machine, device = build_machine(schedule.problem), np.array(schedule.plan.device)
    return ops[: find_peak_ops(machine, device, timing_of(schedule), ops)].tolist()


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Draw two to four devices of various speeds; chips and channels may be shared."""
    n_gpus = draw(st.integers(2, 3))
    lanes = draw(st.integers(0, 3))
    chip = draw(st.sampled_from(["", "", "chip"]))
    speeds = st.sampled_from([0.5, 1.0, 2.0])
    devices = [
        Device(f"GPU:{d}", "gpu", GIB, draw(speeds), chip=chip if d < 2 else "", reserve_bytes=d)
        for d in range(n_gpus)
    ]
    if lanes:
        devices.append(Device("CPU:0", "cpu", GIB, 1.0, lanes))
    n_channels = draw(st.integers(1, 4))
    links = [
        Link(
            a,
            b,
            draw(st.sampled_from([0.0, 1.0, 2.5])),
            draw(st.sampled_from([0.0, 0.5])),
            tuple(draw(st.sets(st.integers(0, n_channels - 1), min_size=1, max_size=2))),
        )
        for a in range(len(devices))
        for b in range(len(devices))
        if a != b
    ]
    channels = tuple(f"channel {c}" for c in range(n_channels))
    return Cluster("drawn", tuple(devices), channels, tuple(links))


@st.composite
def profiles(draw: st.DrawFn, max_ops: int = 14) -> Profile:
    """Draw a small DAG.

    It has zero-time ops, several outputs, control edges, colocation, holds and shared memory.
    """
    n = draw(st.integers(1, max_ops))
    ops = range(n)
    pairs = [(a, b) for a in ops for b in ops if a < b]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=3 * n)) if pairs else []
    outputs = [draw(st.integers(CONTROL, 1)) for _ in chosen]
    sizes = {(a, o): draw(st.integers(0, 9)) for (a, _), o in zip(chosen, outputs, strict=True)}
    edges = {(a, b, o) for (a, b), o in zip(chosen, outputs, strict=True)}
    times = [draw(st.sampled_from([0.0, 1.0, 2.0, 3.5])) for _ in ops]
    tensors = sorted(key for key in sizes if key[1] != CONTROL)
    held = st.tuples(st.sampled_from(tensors), st.sampled_from(ops)) if tensors else st.nothing()
    read = {b: [(a, o) for a, o in tensors if (a, b, o) in edges] for b in ops}
    shares = [
        (op, output, *draw(st.sampled_from(bases)))
        for op, output in tensors
        for bases in [read[op] + [(op, 0)] * ((op, 0) in tensors and output == 1)]
        if bases and draw(st.integers(0, 2)) == 0
    ]
    label = draw(st.permutations(range(n)))
    both = [draw(st.booleans()) for _ in ops]
    return make_profile(
        "drawn",
        op_names=[f"op{label[op]}" for op in ops],
        op_types=["Op"] * n,
        scopes=[""] * n,
        time_us=np.array([[t, 2 * t if b else np.nan] for t, b in zip(times, both, strict=True)]),
        persistent_bytes=[draw(st.integers(0, 50)) for _ in ops],
        temporary_bytes=[draw(st.integers(0, 50)) for _ in ops],
        colocation=[draw(st.sampled_from(["", "", "", "a", "b"])) for _ in ops],
        op_kinds=[draw(st.sampled_from(["", "", "", "variable"])) for _ in ops],
        holds=[(*tensor, op) for tensor, op in draw(st.lists(held, max_size=4 * bool(tensors)))],
        shares=shares,
        edge_source=[a for a, _ in chosen],
        edge_output=outputs,
        edge_op=[b for _, b in chosen],
        edge_bytes=[
            0 if o == CONTROL else sizes[a, o] for (a, _), o in zip(chosen, outputs, strict=True)
        ],
    )


def on_own_chips(problem: Problem) -> Problem:
    """Return the problem with a separate chip for every device."""
    devices = tuple(replace(device, chip="") for device in problem.cluster.devices)
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


def as_training(problem: Problem) -> Problem:
    """Return the problem with a backward pass in its second half; the last two ops are updates."""
    profile = problem.profile
    order = profile.topological_order
    backward, last = order[profile.n_ops // 2 :], order[-2:]
    scopes = [
        "update" * (op in last) or "gradients" * (op in backward) for op in range(profile.n_ops)
    ]
    return replace(problem, measured_profile=replace(profile, scopes=tuple(scopes)))


def device_names(schedule: Schedule) -> dict[str, str]:
    """Return the name of each op's device, by the op's name."""
    names = [device.name for device in schedule.problem.cluster.devices]
    places = zip(schedule.problem.profile.op_names, schedule.plan.device, strict=True)
    return {op: names[device] for op, device in places}


@st.composite
def planned_problems(draw: st.DrawFn) -> tuple[Problem, Plan]:
    """Draw a problem and a topologically ordered plan that respects its constraints."""
    problem = Problem(draw(profiles()), draw(clusters()))
    choices = [np.flatnonzero(row).tolist() for row in problem.unit_allowed]
    unit_device = np.array([draw(st.sampled_from(choice)) for choice in choices])
    plan = Plan(
        unit_device[problem.unit],
        np.arange(problem.profile.n_ops),
        "drawn",
        draw(st.sampled_from(POLICIES)),
        draw(st.sampled_from(LINK_POLICIES)),
    )
    return problem, plan
