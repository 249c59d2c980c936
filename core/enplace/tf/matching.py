"""Whether a plan and a model's step are about the same graph."""

from __future__ import annotations

import numpy as np

from enplace.errors import PlanError
from enplace.profile import CONTROL, Profile, make_profile
from enplace.text import count
from enplace.tf.graph import node_of
from enplace.tf.step import Step

_SHOWN = 3


def check_same_graph(step: Step, profile: Profile) -> None:
    """Refuse a plan that places ops which the step does not have.

    Raises
    ------
    PlanError
        Names some of them.
    """
    there = {node.name for node in step.graph_def.node}
    lacking = [name for name in profile.op_names if name not in there]
    if lacking:
        names = ", ".join(lacking[:_SHOWN]) + (", ..." if len(lacking) > _SHOWN else "")
        raise PlanError(
            f"the plan was made for another graph: {count(len(lacking), 'op')} of it "
            f"({names}) are not in the step of {step.name}; give the arguments that were profiled "
            f"with --arg, or profile and place again"
        )


def with_edges_of(step: Step, profile: Profile) -> Profile:
    """A profile that knows nothing but names, with the edges of the step; their bytes stay 0."""
    ends = [
        (profile.index[source], output, profile.index[node.name])
        for node in step.graph_def.node
        if node.name in profile.index
        for source, output in map(_end, node.input)
        if source in profile.index
    ]
    source, output, target = np.array(ends, dtype=np.int64).reshape(-1, 3).T
    types = {node.name: node.op for node in step.graph_def.node}
    return make_profile(
        profile.name,
        op_names=profile.op_names,
        op_types=[types[name] for name in profile.op_names],
        scopes=profile.scopes,
        time_us=profile.time_us,
        persistent_bytes=profile.persistent_bytes,
        temporary_bytes=profile.temporary_bytes,
        colocation=profile.colocation,
        edge_source=source,
        edge_output=output,
        edge_op=target,
        edge_bytes=np.zeros(len(ends), dtype=np.int64),
    )


def _end(tensor: str) -> tuple[str, int]:
    """The node and output that an input comes from."""
    if tensor.startswith("^"):
        return node_of(tensor), CONTROL
    return node_of(tensor), int(tensor.partition(":")[2] or 0)
