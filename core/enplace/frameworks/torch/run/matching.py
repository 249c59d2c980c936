"""Which op of a plan an op of a running step is: a plan knows its ops by their names.

A recorded step has the plan's names. In later steps, an op is known by its pass, its module, its
kind, and how many such ops ran before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from enplace.errors import PlanError
from enplace.frameworks.torch.measure.profile import StepGraph
from enplace.frameworks.torch.step import LOSS, RecordedOp, Step
from enplace.frameworks.work import check_same_graph
from enplace.names.passes import split_pass
from enplace.names.scopes import INPUT as INPUT_SCOPE
from enplace.text import listed
from enplace.values.op_kinds import OpKind
from enplace.values.plan import Plan
from enplace.values.problem import LATENCY, Problem
from enplace.values.splits import Split, rewriting

Key = tuple[str, str, str, str, int]
"""Pass, module, place, kind, and the number of an optimiser's step."""

LEAST_SHARE = 0.5
"""Of a plan's ops, so many must be in the step by their names."""


def key_of(op: RecordedOp) -> Key:
    """Return what an op is known by."""
    return op.pass_, op.module, op.place, op.kind, op.step_call


@dataclass(frozen=True)
class PlacedStep:
    """Where the parts of a step are planned.

    Attributes
    ----------
    nodes : mapping of Key to sequence of tuple
        Of each call of such an op, in their order: the node of each of its parts; none of a view.
    device : sequence of int or None
        Of each node; None if nothing tells it.
    names : sequence of str
        Of each node; those of what the plan adds come last.
    again, sent : mapping of int to (int, int)
        Of each node whose output is computed again, or kept on the host: the node of the copy, or
        of what fetches it, and where that is.
    variables, inputs
        As in :class:`~enplace.frameworks.torch.measure.profile.StepGraph`.
    """

    nodes: Mapping[Key, Sequence[tuple[int | None, ...]]]
    device: Sequence[int | None]
    names: Sequence[str]
    variables: Mapping[str, int]
    inputs: Sequence[int]
    again: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    sent: Mapping[int, tuple[int, int]] = field(default_factory=dict)


def place_step(
    step: Step, graph: StepGraph, planned: Mapping[str, int], splits: Sequence[Split] = ()
) -> PlacedStep:
    """Find where a plan puts a recorded step.

    What the plan does not name is where most ops of its module are: kernels of a GPU have other
    names than those of a CPU, and a step may have another turn than the one that was profiled.

    Parameters
    ----------
    planned : mapping of str to int
        The device of each op, by its name.
    splits : sequence of Split
        What the plan does not keep.

    Raises
    ------
    PlanError
        If the plan is for another model.
    """
    added = {each.added: planned[each.added] for each in splits}
    planned = {name: device for name, device in planned.items() if name not in added}
    check_same_model(graph, planned)
    calls: dict[int, list[int]] = defaultdict(list)
    for number, op in enumerate(step.ops):
        calls[op.call].append(number)
    nodes: dict[Key, list[tuple[int | None, ...]]] = defaultdict(list)
    for numbers in calls.values():
        nodes[key_of(step.ops[numbers[0]])].append(tuple(map(graph.of_ops.get, numbers)))
    names = [node.name for node in graph.nodes]
    homes = _homes(graph, planned)
    device = [
        planned.get(node.name, _home_of(node.scope, homes)) if homes else None
        for node in graph.nodes
    ]
    index = {name: number for number, name in enumerate([*names, *added])}
    own = [each for each in splits if each.op in index]
    again, sent = (
        {index[e.op]: (index[e.added], added[e.added]) for e in own if e.is_again == is_again}
        for is_again in (True, False)
    )
    return PlacedStep(
        nodes, [*device, *added.values()], [*index], graph.variables, graph.inputs, again, sent
    )


def check_same_model(graph: StepGraph, planned: Collection[str]) -> None:
    """Refuse a plan that is for another model.

    It is for this one if it has its parameters and no other module, and half of its ops have the
    names of ops here.

    Raises
    ------
    PlanError
        With the ops that differ.
    """
    names = {node.name for node in graph.nodes}
    missing = [name for name in planned if name not in names]
    own = [node.name for node in graph.nodes if node.kind == OpKind.VARIABLE]
    scopes = {"", INPUT_SCOPE, LOSS, *own}  # what updates a parameter is in its scope
    scopes.update(scope for node in graph.nodes for scope in _around(node.scope))
    if (
        len(missing) > (1 - LEAST_SHARE) * len(planned)
        or any(name not in planned for name in own)
        or any(split_pass(name.rpartition("/")[0])[1] not in scopes for name in missing)
    ):
        check_same_graph(names, [*planned], whole=True)


def _around(scope: str) -> list[str]:
    """Return a scope without its pass, and the scopes around it."""
    parts = split_pass(scope)[1].split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _homes(graph: StepGraph, planned: Mapping[str, int]) -> dict[str, int]:
    """Find on which device most named ops of each scope are; what is nearer counts first."""
    votes: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for node in graph.nodes:
        if node.name in planned:
            for scope in ("", *_around(node.scope)):
                votes[scope][planned[node.name]] += 1
    return {scope: max(found, key=found.__getitem__) for scope, found in votes.items()}


def _home_of(scope: str, homes: Mapping[str, int]) -> int:
    around = reversed(_around(scope))
    return next((homes[each] for each in around if each in homes), homes[""])


def planned_devices(problem: Problem, plan: Plan) -> dict[str, int]:
    """Return the device of each op, by its name."""
    return dict(zip(problem.profile.op_names, plan.device.tolist(), strict=True))


def halves_by_name(problem: Problem, plan: Plan) -> dict[str, int]:
    """Return which of its device's two stages each op is in, by its name; empty without a V."""
    if plan.subgraph is None or plan.objective == LATENCY:
        return {}
    return dict(zip(problem.profile.op_names, plan.subgraph.tolist(), strict=True))


def check_plan(problem: Problem, plan: Plan, *, in_stages: bool = False) -> None:
    """Refuse what PyTorch does not run: parts of ops, replicas, recomputing without stages.

    With stages, it runs no copies of single ops, and keeps nothing on the host.

    Raises
    ------
    PlanError
        With what to do instead.
    """
    if splits := [each for each in plan.splits if each.is_cut or in_stages]:
        whole = (
            "in stages, PyTorch keeps what each op makes" if in_stages else "PyTorch cuts no ops"
        )
        raise PlanError(f"the plan {rewriting(splits)}, and {whole}; make one by another method")
    if plan.replicas:
        raise PlanError(
            "the plan has replicas of a stage, which one step cannot use; make one without "
            "--replicate"
        )
    if plan.recompute and not in_stages:
        where = listed([problem.cluster.devices[d].label for d in plan.recompute])
        raise PlanError(
            f"the plan recomputes activations on {where}, as stages of a pipeline do; add "
            f"--pipeline"
        )
