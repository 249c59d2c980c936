"""Profiles of recorded steps: measured on this machine, or estimated for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import add
from typing import Any

import numpy as np

from enplace.errors import EnplaceError
from enplace.frameworks import roofline
from enplace.frameworks.own_cluster import PCIE, describe, model_of
from enplace.frameworks.programs import at_lines
from enplace.frameworks.torch.device_map import PARAMETERS
from enplace.frameworks.torch.measure.costs import EstimatedCosts, MeasuredCosts
from enplace.frameworks.torch.measure.profile import HELD_BYTES, Node, graph_of
from enplace.frameworks.torch.record.op_kinds import ALLOCATES
from enplace.frameworks.torch.step import Step, Timing
from enplace.machine import simulate
from enplace.readers.calibration import calibrate
from enplace.system import host_bytes
from enplace.text import count, listed, percent, size
from enplace.values.cluster import Cluster, Device
from enplace.values.measurement import Measurement
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import Profile

GPU, CPU = "GPU:0", "CPU:0"


def measured_profile(name: str, step: Step, timing: Timing, facts: Measurement) -> Profile:
    """Make the profile of a step that was measured.

    Parameters
    ----------
    facts : Measurement
        What is known besides.

    Raises
    ------
    EnplaceError
        If the kernels of a GPU were not traced.
    """
    if timing.gpu and not timing.call_kernels:
        raise EnplaceError(
            "PyTorch's profiler traced no kernels of the GPU: it may not read its counters; ask "
            "the machine's owner to allow it, or estimate the model with --estimate"
        )
    scale = _scale(timing)
    timing = replace(timing, call_us={call: us * scale for call, us in timing.call_us.items()})
    graph = graph_of(step, MeasuredCosts(timing))
    launched = np.array([_launches(node) for node in graph.nodes])
    names = zip(graph.nodes, launched, strict=True)
    measured = replace(
        facts,
        step_time_us=timing.step_us,
        op_devices={node.name: CPU if node.device == "cpu" else GPU for node in graph.nodes},
        op_kernels={node.name: round(n) for node, n in names if timing.gpu and round(n)},
        peak_bytes=_peaks(step, timing),
        cluster=_cluster(timing),
        steps=len(timing.step_times_us),
        gpu=timing.gpu,
        state_bits=step.state_bits,
        batch_shapes=step.batch_shapes,
        function=step.name,
        config=_config(step, timing, scale) | {PARAMETERS: graph.parameters},
        notes=(*facts.notes, *_notes(step, timing, scale)),
    )
    profile = _with_memory_checked(graph.profile(name, measured), step, timing)
    if measured.step_time_us is None:
        return profile
    assert measured.cluster is not None
    on_gpu = np.array([node.device != "cpu" for node in graph.nodes])
    launched = launched * on_gpu if timing.gpu else (launched > 0).astype(np.int64)
    return calibrate(profile, launched, measured.cluster, "gpu" if timing.gpu else "cpu")


def estimated_profile(name: str, step: Step, gpu: roofline.Gpu, facts: Measurement) -> Profile:
    """Make the profile of a step whose op times are those of a roofline."""
    graph = graph_of(step, EstimatedCosts(gpu))
    measured = replace(
        facts,
        estimated=gpu.title,
        estimated_speed=gpu.speed,
        state_bits=step.state_bits,
        batch_shapes=step.batch_shapes,
        function=step.name,
        config={PARAMETERS: graph.parameters},
        notes=(*facts.notes, *_unwritten(step), *_unknown(step)),
    )
    return _with_memory_checked(graph.profile(name, measured), step, Timing())


def replayed_peak_bytes(profile: Profile) -> int:
    """Return the most bytes that the ops of a profile hold, one after another on one device."""
    n_ops = profile.n_ops
    known_us = np.nan_to_num(profile.time_us).max(axis=1, keepdims=True, initial=0.0)
    alike = replace(profile, time_us=known_us.repeat(2, axis=1))
    problem = Problem(alike, Cluster("one", (Device(CPU, "cpu", 1 << 60),), (), ()))
    plan = Plan(np.zeros(n_ops, dtype=np.int64), np.arange(n_ops), method="replay")
    return int(simulate(problem, plan).peak_bytes[0])


_ALIKE = 0.05
"""Replayed and counted memory may differ by so much, besides small tensors, which are not held."""


def _with_memory_checked(profile: Profile, step: Step, timing: Timing) -> Profile:
    """Return a profile that says so if its ops hold other memory than the step did."""
    extra = timing.call_extra_bytes
    needed = (round(extra.get(op.call, 0) * op.share) for op in step.ops)
    counted = max(map(add, step.alive_bytes(), (*needed, 0)))
    replayed = replayed_peak_bytes(profile)
    sizes = (each.n_bytes for each in step.storages)
    small = sum(n_bytes for n_bytes in sizes if n_bytes < HELD_BYTES)
    if abs(replayed - counted) <= _ALIKE * counted + small:
        return profile
    note = (
        f"Memory of plans is {percent(abs(replayed / counted - 1))} too "
        f"{'low' if replayed < counted else 'high'}: replayed on one device, the ops hold "
        f"{size(replayed)} at most, but the recorded step held {size(counted)}."
    )
    measured = replace(profile.measured, notes=(*profile.measured.notes, note))
    return replace(profile, measured=measured)


def _notes(step: Step, timing: Timing, scale: float) -> tuple[str, ...]:
    """Say how op times were scaled, and what no op shows."""
    notes = []
    if scale < 1:
        notes.append(
            f"Kernels took {percent(1 / scale - 1)} longer while they were traced, so their times "
            f"are scaled to the plain step."
        )
    longer = 1.0
    if not timing.gpu and timing.step_us:
        longer = sum(timing.call_us.values()) / timing.step_us
    if longer > _BUSY:
        notes.append(
            "Ops took more than twice as long while they were recorded as the plain step, because "
            "they are short, or other programs used this machine meanwhile: their times are scaled "
            "to the plain step, but not reliable. Profile again when it is idle, or with more "
            "steps."
        )
    elif longer > 1:
        notes.append(
            f"Ops took {percent(longer - 1)} longer while they were recorded, so their times are "
            f"scaled to the plain step."
        )
    if timing.n_near or timing.n_unlike or timing.n_others:
        what = ["in what their modules are called with"] * bool(timing.n_near or timing.n_unlike)
        what += ["in their optimisers or backward passes"] * bool(timing.n_others)
        n_alike = len(timing.step_times_us) - timing.n_near
        counted = [f"{count(n_alike, 'plain step')} like the recorded one"]
        if timing.n_near:
            counted = counted if n_alike else []
            near = count(timing.n_near, "plain step")
            counted.append(f"{near} on batches of nearly the recorded size")
        notes.append(
            f"For times, {listed(counted)} counted, and "
            f"{count(timing.n_unlike + timing.n_others, 'other')} did not, because steps differ "
            f"{listed(what)}."
        )
    if timing.step_us is None:
        notes.append(
            "No step without the recorder could be timed, so op times are not scaled, and include "
            "what recording adds to each op. Profile again with more steps, and with batches of "
            "one size, such as padded ones."
        )
    if not timing.gpu:
        notes.append(
            "Measured on a CPU, so ops have no times on GPUs; for a plan on GPUs, profile on one, "
            "or estimate it for one with --estimate."
        )
    held = _config(step, timing).get("library_bytes", 0)
    if held:
        notes.append(f"Libraries hold {size(held)} more of the GPU, which no op shows.")
    return (*notes, *_unwritten(step), *_unknown(step))


_BUSY = 2.0
"""Recording alone makes ops less than so many times longer."""


def _unwritten(step: Step) -> tuple[str, ...]:
    """Warn of tensors that something outside of PyTorch's dispatcher must have written."""
    empty: set[int] = set()
    found: set[int] = set()
    makers: dict[str, None] = {}
    made_at: dict[int, str] = {}
    for op in step.ops:
        if op.kind in ALLOCATES and not op.writes:
            made = [s for s in op.makes if step.storages[s].n_bytes]
            empty.update(made)
            made_at |= dict.fromkeys(made, op.line)
        elif not op.is_view:
            unwritten = empty.intersection(s for s, _ in op.reads) - {*op.writes}
            found |= unwritten
            makers |= dict.fromkeys(made_at[s] for s in sorted(unwritten))
            empty.difference_update(op.writes)
    if not found:
        return ()
    return (
        f"{at_lines(makers)}PyTorch does not dispatch what fills {count(len(found), 'tensor')} of "
        f"this step, such as kernels of Triton or NumPy; their time is missing. Make the kernel an "
        f"op with torch.library.custom_op.",
    )


def _unknown(step: Step) -> Iterator[str]:
    """Name the ops of which only what they read and write is known."""
    for has_formula, why, mend in (
        (False, "no formula says", "Register one"),
        (True, "a formula fails, or gives NaN, instead of saying", "Correct what was registered"),
    ):
        unknown = [
            op for op in step.ops if not op.work.known and op.work.has_formula == has_formula
        ]
        if not unknown:
            continue
        kinds = [*dict.fromkeys(op.kind for op in unknown)]
        takes = "takes" if len(kinds) == 1 else "take"
        yield (
            f"{at_lines(dict.fromkeys(op.line for op in unknown))}{why} how many FLOPs "
            f"{listed(kinds[:5])} {takes}, so only what is read and written counts in an "
            f"estimate. {mend} with torch.utils.flop_counter.register_flop_formula."
        )


def _scale(timing: Timing) -> float:
    """Return by how much tracing made the kernels of a GPU longer: together they fit in a step."""
    total_us = sum(timing.call_us.values()) + timing.unjoined_us
    if not timing.gpu or not timing.step_us or not total_us:
        return 1.0
    return min(1.0, timing.step_us / total_us)


def _launches(node: Node) -> float:
    return node.kernels


def _peaks(step: Step, timing: Timing) -> dict[str, int]:
    """Return what the allocator of a GPU held at most, or all storages on a CPU."""
    return dict(timing.peak_bytes) or {CPU: step.counted_peak_bytes("cpu")}


def _config(step: Step, timing: Timing, scale: float = 1.0) -> dict[str, Any]:
    """Return the spread of the steps, how long the GPU computed in one, and what libraries hold."""
    config: dict[str, Any] = {"scaled": scale} if scale < 1 else {}
    if timing.step_times_us:
        low, high = np.percentile(timing.step_times_us, [25, 75])
        config["step_quartiles_us"] = [float(low), float(high)]
    if timing.gpu:
        config["kernels_us"] = float(sum(timing.call_us.values()) + timing.unjoined_us)
        config["kernels"] = int(sum(timing.call_kernels.values()))
        config["unjoined_us"] = timing.unjoined_us
        old = sum(s.n_bytes for s in step.storages if s.first < 0 and s.device != "cpu")
        config["library_bytes"] = max(timing.allocated_bytes - old, 0)
    return config


def _cluster(timing: Timing) -> Cluster:
    """Return the devices of a measured step; op times are this GPU's, so its speed is 1."""
    if not timing.gpu:
        return Cluster("local", (Device(CPU, "cpu", host_bytes()),), (), (), "This machine's CPU.")
    found = describe(1, model_of(timing.gpu), timing.gpu_bytes, PCIE)
    devices = tuple(replace(each, speed=1.0) for each in found.devices)
    return replace(found, name="local", devices=devices,
                   description=f"The GPU of this machine ({timing.gpu}) and its host.")  # fmt: skip
