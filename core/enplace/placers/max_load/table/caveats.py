"""Cases in which a result is worse than one would expect, and the notes about them."""

from __future__ import annotations

from enplace.coarsen.grouped import op_memory_bytes
from enplace.machine.host_links import has_one_link
from enplace.machine.pipelines.all_reduce import syncs_alike
from enplace.placers.max_load.table.contract import (
    find_static_excess,
    find_step_excess,
    with_larger_gpus,
)
from enplace.placers.max_load.table.kinds import find_kinds
from enplace.values.load_rule import USUAL, LoadRule
from enplace.values.problem import Problem
from enplace.values.profile import IntArray

UNLIKE_DEVICES = (
    "devices of a kind differ, and each was treated like the slowest of them: a partition that "
    "gives the faster ones more may be better; max-load-ip distinguishes them"
)

UNLIKE_LINKS = (
    "links between GPUs differ, and the all-reduce between replicas was assumed to use the slowest "
    "link: replicas on GPUs with fast links may do better (two levels keep them in one machine)"
)

ONE_CHIP = "logical GPUs of one chip compute one after another, but were treated as separate GPUs"

SEVERAL_LINKS = (
    "a GPU's links differ, to several CPUs, without a CPU to other GPUs, or between machines: each "
    "GPU is assumed to use its fastest link only, so a sample or query may take longer"
)

NOT_CONTIGUOUS = (
    "stages are cut in the forward graph, as in the paper, and the backward ops of a device are "
    "not contiguous"
)

PINNED_REPLICAS = (
    "replicas were left out where their GPU has pinned ops of its own, or may not run the ops of "
    "the stage"
)

NONE_IN_TIME = "no partition that fits was found within the time limit"


def find_unlike(problem: Problem, rule: LoadRule) -> str:
    """Describe a relevant difference between devices of a kind, or their links; "" if none.

    The dynamic programs assume that all devices of a kind are alike, and replicas are of one kind.
    """
    cluster, kinds = problem.cluster, find_kinds(problem, rule)
    if not kinds.are_exact:
        return UNLIKE_DEVICES
    if cluster.shares_chips:
        return ONE_CHIP
    return UNLIKE_LINKS if rule.replicate and not syncs_alike(cluster, rule.two_level) else ""


def simplify(
    problem: Problem, rule: LoadRule = USUAL, op_bytes: IntArray | None = None
) -> tuple[Problem, str]:
    """Convert a problem to the paper's machines.

    Parameters
    ----------
    op_bytes : int array, shape (n_ops,), optional
        What each op counts towards memory; its variables and outputs by default.

    Returns
    -------
    tuple[Problem, str]
        The problem, with GPUs large enough for a partition, and a note; "" if it is unchanged. An
        optimum of a changed problem need not be one of the original.
    """
    problem, about_memory = with_larger_gpus(problem, op_bytes)
    about = about_memory, about_machine(problem, rule)
    return problem, "; ".join(filter(None, about))


def outputs_decide(problem: Problem) -> bool:
    """Whether plans may fit although all outputs at once do not, so that no search knows them."""
    counted, weights = op_memory_bytes(problem), problem.profile.persistent_bytes
    smallest = problem.cluster.capacity_bytes.min()
    return bool(counted.sum() > smallest and (counted != weights).any())


def about_machine(problem: Problem, rule: LoadRule = USUAL) -> str:
    """Describe in what a machine differs from the paper's; "" if in nothing that matters."""
    about_links = "" if has_one_link(problem.cluster, rule.two_level) else SEVERAL_LINKS
    about_chip = ONE_CHIP if problem.cluster.shares_chips else ""
    return "; ".join(filter(None, (about_links, about_chip)))


def explain_failure(problem: Problem, device: IntArray) -> str:
    """Explain why a placement does not follow a partition."""
    if find_static_excess(problem, device):
        if find_step_excess(problem, device):
            return "nothing that fits in memory was found, and this does not fit either"
        return (
            "nothing was found that fits with all outputs in memory at once; a step of this plan "
            "fits, because it frees those that it no longer needs"
        )
    return "no partition that respects the pins, colocation and memory was found"
