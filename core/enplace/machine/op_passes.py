"""Find the pass of a training step that each op belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from enplace.names.passes import BACKWARD, in_pass, named_backward
from enplace.values.arrays import FloatArray, where_op
from enplace.values.op_kinds import OpKind
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import CONTROL, IntArray, Profile


def backward_ops(problem: Problem) -> BoolArray:
    """Find the ops of the backward pass; shape (n_ops,).

    The input may list them; otherwise the names are used. All ops that depend on them are backward
    too: no forward op waits for a backward one.
    """
    return problem.profile.reach(named_backward(problem.profile))


def optimiser_ops(problem: Problem) -> BoolArray:
    """Find the ops that turn gradients into new weights, clipping to update; shape (n_ops,).

    A sample does not pass through them: no other op waits for them within a step. The inputs of
    2020, which list the backward ops, have no such ops.
    """
    return _optimiser_ops(problem.profile)


@lru_cache(maxsize=4)
def work_per_sample_us(problem: Problem, n_samples: int) -> FloatArray:
    """Return the time that each op takes per sample of a step; shape (n_ops, n_devices).

    The optimiser runs once for all samples of the step, so each sample has a share of its time.
    """
    once = _optimiser_ops(problem.profile)
    if n_samples == 1 or not once.any():
        return problem.time_us
    found: FloatArray = where_op(once, problem.time_us / n_samples, problem.time_us)
    return found


@lru_cache(maxsize=4)
def once_per_step(profile: Profile) -> BoolArray:
    """Find the tensors that cross devices once per step, however many samples it has; (n_tensors,).

    What a variable gives out is the same for all samples of a step: another device has a copy,
    which is refreshed once. What only the optimiser reads is summed over the samples where it
    arises, and only the sum is sent. No tensor of the inputs of 2020 is told to be either.
    """
    is_data = profile.tensor_output != CONTROL
    if profile.measured.backward is not None:
        return np.zeros_like(is_data)
    on_path = np.bincount(
        profile.edge_tensor, ~_optimiser_ops(profile)[profile.edge_op], profile.n_tensors
    )
    summed = (on_path == 0) & (np.diff(profile.edge_ptr) > 0)
    stays = given_by_variables(profile) | left_by_last_step(profile)
    found: BoolArray = is_data & (summed | stays)
    return found


def holds_of_samples(profile: Profile) -> IntArray:
    """Find the holds that count for each sample of a pipeline, by number.

    No sample waits for the optimiser, so one until an op of it keeps only sums of gradients.
    """
    summed = once_per_step(profile)[profile.hold_tensor]
    found: IntArray = np.flatnonzero(~summed & ~_optimiser_ops(profile)[profile.hold_op])
    return found


def base_in_samples(profile: Profile) -> IntArray:
    """Find the tensor in whose memory each lies while samples pass; (n_tensors,), -1 for none.

    What is summed over the samples has memory of its own.
    """
    return np.where(once_per_step(profile), -1, profile.tensor_base)


@lru_cache(maxsize=4)
def made_by_updates(profile: Profile) -> BoolArray:
    """Find the tensors that updates of variables make for themselves; (n_tensors,).

    They exist only after all samples have passed.
    """
    updates = profile.of_kind(OpKind.UPDATE)
    reads = np.bincount(profile.edge_tensor, ~updates[profile.edge_op], profile.n_tensors)
    is_data = profile.tensor_output != CONTROL
    found: BoolArray = updates[profile.tensor_op] & is_data & (reads == 0)
    return found


@lru_cache(maxsize=4)
def left_by_last_step(profile: Profile) -> BoolArray:
    """Find the gradients that the step before left: constants that variables read; (n_tensors,).

    In a pipeline the sums of gradients are there for the whole step, in the same memory.
    """
    others = ~profile.of_kind(OpKind.VARIABLE)[profile.edge_op]
    reads = np.bincount(profile.edge_tensor, others, profile.n_tensors)
    is_data = profile.tensor_output != CONTROL
    found: BoolArray = profile.of_kind(OpKind.CONSTANT)[profile.tensor_op] & is_data & (reads == 0)
    return found


def given_by_variables(profile: Profile) -> BoolArray:
    """Find the tensors that are the content of a variable; (n_tensors,)."""
    found: BoolArray = profile.variable_given[profile.tensor_op] >= 0
    return found


def never_changed(profile: Profile) -> BoolArray:
    """Find the content of variables that the optimiser does not read, such as tables; (n_tensors,).

    Once another device has a copy, no step refreshes it.
    """
    given = profile.variable_given[profile.tensor_op]
    updated = _optimiser_ops(profile)[profile.edge_op]
    found: BoolArray = (given >= 0) & ~np.isin(given, given[profile.edge_tensor[updated]])
    return found


def _optimiser_ops(profile: Profile) -> BoolArray:
    backward = profile.reach(named_backward(profile))
    return backward & ~_on_the_way_back(profile, backward)


def state_bytes(profile: Profile) -> IntArray:
    """Return the bytes of an optimiser's states that each op holds; shape (n_ops,).

    A profile says it, or has states as variables of their own: only the optimiser reads them.
    """
    if profile.state_bytes.any():
        return profile.state_bytes
    inner = ~_optimiser_ops(profile)[profile.edge_op]
    read = np.bincount(profile.edge_source, minlength=profile.n_ops)
    by_others = np.bincount(profile.edge_source[inner], minlength=profile.n_ops)
    is_state = profile.of_kind(OpKind.VARIABLE) & (read > 0) & (by_others == 0)
    found: IntArray = np.where(is_state, profile.persistent_bytes, 0)
    return found


def return_ops(problem: Problem) -> BoolArray:
    """Find the ops that a sample passes through on its way back; shape (n_ops,).

    Only for these does a device keep what forward ops make, or run forward ops again.
    """
    return _on_the_way_back(problem.profile, backward_ops(problem))


def _on_the_way_back(profile: Profile, backward: BoolArray) -> BoolArray:
    """Leave out the optimiser, which only names tell."""
    if profile.measured.backward is not None:
        return backward
    return backward & in_pass(profile, BACKWARD)


def returns_to(problem: Problem, device: IntArray) -> set[int]:
    """Find the devices to which a sample comes back."""
    return set(device[return_ops(problem)].tolist())


def recomputing(problem: Problem, device: IntArray, recompute: Sequence[int]) -> list[int]:
    """List those of some devices that have anything to run forward ops again for."""
    if not recompute:
        return []
    back = returns_to(problem, device)
    return [d for d in recompute if d in back]


def links_passes(problem: Problem) -> bool:
    """Whether backward ops read tensors of forward ops; in the layer graphs of 2020 none do."""
    profile, backward = problem.profile, backward_ops(problem)
    return bool((~backward[profile.edge_source] & backward[profile.edge_op]).any())
