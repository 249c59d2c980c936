"""Mend how PyTorch takes the gradients of a stage's weights apart from those of its inputs.

It groups parameters by the first nodes on their paths that depend on what the stage gets. There it
keeps the gradients of the first pass, from which the second one goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from torch.distributed.pipelining import _backward, stage

Group = dict[str, Any]


def patches() -> list[tuple[Any, str, Callable[..., Any]]]:
    """Return the functions of PyTorch to replace: owner, name, and what makes the new one."""
    return [
        (_backward, "get_param_groups", _join_groups),
        (stage, "stage_backward_weight", _keep_graph),
    ]


def _join_groups(usual: Callable[..., Sequence[Group]]) -> Callable[..., list[Group]]:
    """Join groups that share a parameter or a node, of which PyTorch joins only some.

    Cross-attention has such groups, for one weight projects queries, keys and values: paths from it
    meet those from the stage's inputs in the keys, and again where queries meet keys. A parameter
    in two groups would get its gradient twice.
    """

    @wraps(usual)
    def join(*args: Any) -> list[Group]:
        joined: list[Group] = []
        for group in usual(*args):
            whole = dict(group)
            for other in [each for each in joined if any(each[k] & whole[k] for k in whole)]:
                joined.remove(other)
                whole = {kind: found | other[kind] for kind, found in whole.items()}
            joined.append(whole)
        return joined

    return join


def _keep_graph(usual: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the graph until all groups are done if they may share paths between their nodes."""

    @wraps(usual)
    def take(weights: Any, groups: Sequence[Group], retain_graph: bool = False) -> Any:
        keeps = retain_graph or any(len(group["intermediates"]) > 1 for group in groups)
        return usual(weights, groups, retain_graph=keeps)

    return take
