"""Baselines that look hardly at time or memory; the framework orders the ops of a device."""

import numpy as np

from enplace.machine import simulate
from enplace.placing.candidates import best_of, unordered
from enplace.placing.options import PlaceOptions
from enplace.placing.registry import ONE_DEVICE, placer
from enplace.placing.settle import natural_position, settle
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import IntArray


@placer(
    "single",
    title="One GPU",
    good=(
        "If the model fits one GPU, this is the plan to beat: where no other is shorter, a "
        "second GPU gains nothing."
    ),
    capabilities=(ONE_DEVICE,),
)
def single(problem: Problem, options: PlaceOptions) -> Plan:
    """Place all ops on the fastest GPU that has room, or on the first of several equally fast ones.

    Ops that cannot run there go elsewhere. If no GPU has room, the plan for the fastest is returned
    although it exceeds memory, which its schedule shows.
    """
    cluster = problem.cluster
    first = {(cluster.speed[g], cluster.capacity_bytes[g]): g for g in reversed(cluster.gpus)}
    by_speed = sorted(first.values(), key=lambda gpu: (-cluster.speed[gpu], gpu))

    def on(gpu: int) -> Plan:
        return _finish(problem, np.full(problem.profile.n_ops, gpu), "single", options)

    fastest = on(by_speed[0])
    if len(by_speed) == 1 or simulate(problem, fastest).fits:
        return fastest
    slower = map(on, by_speed[1:])
    return next((plan for plan in slower if simulate(problem, plan).fits), fastest)


@placer(
    "round-robin",
    title="Round robin",
    good="To see what transfers cost: nearly every tensor is sent.",
)
def round_robin(problem: Problem, options: PlaceOptions) -> Plan:
    """Deal the ops out to the GPUs in turn, in topological order.

    Colocated ops follow the first of them, and an op that needs a CPU gets one.
    """
    gpus = np.array(problem.cluster.gpus)
    return _finish(problem, gpus[natural_position(problem) % len(gpus)], "round-robin", options)


@placer(
    "random",
    title="Random",
    good="To see how much placement matters: a method that is no better is not worth its time.",
)
def random(problem: Problem, options: PlaceOptions) -> Plan:
    """Place every op on a GPU drawn at random.

    Colocated ops are drawn together, and the same seed draws the same plan.
    """
    draw = np.random.default_rng(options.seed)
    preferred = draw.choice(problem.cluster.gpus, problem.profile.n_ops)
    return _finish(problem, preferred, "random", options)


def _finish(problem: Problem, preferred: IntArray, method: str, options: PlaceOptions) -> Plan:
    placed = unordered(problem, settle(problem, preferred), method)
    return best_of(problem, placed, options).plan
