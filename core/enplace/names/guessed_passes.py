"""Guess the backward pass of a graph whose ops do not say their pass.

A profile that a person wrote may call its backward ops anything. Words such as ``bw`` or ``grad``
in names and types are not enough: a recurrent layer that reads its input both ways has a ``bw``
part, too, and a detector may have a ``back_end``. A backward pass also begins where the forward
pass ends, and takes what that made, last to first. So the words count only if most ops that have
them depend on an op whose output no forward op uses, and they take several tensors in that order.

Without such words, the shape alone may suggest a backward pass, but a U-Net has the same: its
decoder takes what its encoder made, last to first. That is only good for a hint.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from functools import lru_cache

import numpy as np

from enplace.names.passes import BACKWARD, UPDATE, in_pass
from enplace.text import count
from enplace.values.arrays import BoolArray, IntArray
from enplace.values.op_kinds import OpPass
from enplace.values.profile import Profile

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_BACKWARD = re.compile(r"back(wards?|prop(agation)?)?|bp(rop)?|bwd?|[dw]?grad(s|ients?)?")
_LIKELY = re.compile(r"back|bp|bw|grad", re.IGNORECASE)
"""What every name with such a word contains; quick to look for."""

_FIRST_PART = re.compile(r"[/.:_-]|(?<=[A-Za-z])(?=\d)")
"""What ends the first part of a name: ``dec`` in ``dec/3``, ``dec_3``, ``dec:3`` and ``dec3``."""

_FORWARD = re.compile(r"forward|fprop|fwd?")
_NO_GRADIENT = re.compile(r"no|stop")
"""A name with such a word is not of the backward pass: ``stop_gradient``."""

_UPDATE = re.compile(r"adamw?|apply|assign|lamb|lion|momentum|optimi[sz]er|rmsprop|sgd|update")

_NOT_BACKWARD = (_FORWARD, _NO_GRADIENT, _UPDATE)

MOSTLY = 0.5
"""Share of the ops with a word for the backward pass that must depend on the forward pass's end."""

REVERSED = -0.9
"""Correlation between the depths of forward ops and of what takes their tensors, last to first."""

MOSTLY_REVERSED = -0.7
"""The same where words agree: short branches and small tensors may come out of order."""

LARGE = 0.2
"""Least share of the ops that a part of the names has, if it stands for the backward pass."""

FEWEST = 3
"""Fewest tensors from which the shape of a backward pass is told."""


def with_guessed_passes(profile: Profile) -> Profile:
    """Say the pass of backward and update ops, if no op says its pass and the graph shows it."""
    if profile.measured.guessed_backward and any(profile.op_passes):  # the file says them now
        return replace(profile, measured=replace(profile.measured, guessed_backward=""))
    found = _guess(profile)
    if not found.any():
        return profile
    after = _followers(profile, found)
    back = found | (after & _leads_to(profile, found))
    updates = _updates_among(profile, after & ~back)
    passes = np.where(back, str(OpPass.BACKWARD), np.where(updates, str(OpPass.UPDATE), ""))
    example = profile.op_names[int(np.flatnonzero(found)[0])]
    return replace(
        profile,
        op_passes=tuple(passes.tolist()),
        measured=replace(profile.measured, guessed_backward=example),
    )


def without_guessed_passes(profile: Profile) -> Profile:
    """Leave out guessed passes: a file holds only what is said, and whoever reads it guesses."""
    if not profile.measured.guessed_backward:
        return profile
    said = replace(profile.measured, guessed_backward="")
    return replace(profile, op_passes=("",) * profile.n_ops, measured=said)


@lru_cache(maxsize=4)
def backward_hint(profile: Profile) -> str:
    """Say how a profile tells its backward pass, and which ops may be meant."""
    prefix, n_ops = _reversed_part(profile)
    how = f'the field "pass": "backward", or names that begin with \'{BACKWARD}/\''
    if not prefix:
        return f"if it has one, give its ops {how}"
    return f"if it is the {count(n_ops, 'op')} that begin with '{prefix}', give them {how}"


def may_have_backward(profile: Profile) -> bool:
    """Whether a graph of which no op says its pass has the shape of a training step."""
    return not _says_pass(profile) and bool(_reversed_part(profile)[0])


def _says_pass(profile: Profile) -> bool:
    known = any(profile.op_passes) or profile.measured.backward is not None
    return known or bool(in_pass(profile, BACKWARD, UPDATE).any())


def _words(text: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORD.findall(text))


def _has(words: frozenset[str], pattern: re.Pattern[str]) -> bool:
    return any(map(pattern.fullmatch, words))


def _is_called_backward(words: frozenset[str]) -> bool:
    return _has(words, _BACKWARD) and not any(_has(words, each) for each in _NOT_BACKWARD)


def _guess(profile: Profile) -> BoolArray:
    """Find the ops that their words call backward, if the graph agrees; shape (n_ops,)."""
    nothing = np.zeros(profile.n_ops, dtype=bool)
    likely = {each: bool(_LIKELY.search(each)) for each in set(profile.op_types)}
    found = nothing.copy()
    for op, (name, op_type) in enumerate(zip(profile.op_names, profile.op_types, strict=True)):
        if likely[op_type] or _LIKELY.search(name):
            found[op] = _is_called_backward(_words(f"{name} {op_type}"))
    if not found.any() or found.all() or _says_pass(profile):
        return nothing
    after = _followers(profile, found)
    rest = (profile.op_names[op] for op in np.flatnonzero(after).tolist())
    if any(_has(_words(name), _FORWARD) for name in rest):
        return nothing
    forward = ~(found | after)
    time_us = np.nan_to_num(profile.time_us).max(axis=1)
    late = after & ~_leads_to(profile, found)
    late &= ~_updates_among(profile, late)
    if not forward.any() or time_us[late].sum() > time_us[forward].sum():
        return nothing  # what follows is the model
    back = found | (after & _leads_to(profile, found))
    agrees = _begins_at_the_end(profile, found, forward) and _order(profile, back) < MOSTLY_REVERSED
    return found if agrees else nothing


def _updates_among(profile: Profile, ops: BoolArray) -> BoolArray:
    """Find those of some ops that their names call updates; shape (n_ops,)."""
    found = np.zeros(profile.n_ops, dtype=bool)
    for op in np.flatnonzero(ops).tolist():
        found[op] = _has(_words(profile.op_names[op]), _UPDATE)
    return found


def _begins_at_the_end(profile: Profile, ops: BoolArray, forward: BoolArray) -> bool:
    """Whether most of some ops depend on a forward op whose output no forward op uses."""
    inner = forward[profile.edge_source] & forward[profile.edge_op]
    ends = forward.copy()
    ends[profile.edge_source[inner]] = False
    fed = ops & (np.diff(profile.in_ptr) > 0)
    late = fed & _followers(profile, ends)
    return int(late.sum()) > MOSTLY * int(fed.sum())


def _followers(profile: Profile, ops: BoolArray) -> BoolArray:
    """Find the ops that depend on some others and are none of them; shape (n_ops,)."""
    return _spread(profile, ops, profile.topological_order, forwards=True) & ~ops


def _leads_to(profile: Profile, ops: BoolArray) -> BoolArray:
    """Find the ops on which some others depend; shape (n_ops,)."""
    return _spread(profile, ops, profile.topological_order[::-1], forwards=False)


def _spread(profile: Profile, ops: BoolArray, order: IntArray, *, forwards: bool) -> BoolArray:
    found = ops.tolist()
    out_ptr, target = profile.out_ptr.tolist(), profile.edge_op.tolist()
    for op in order.tolist():
        ends = target[out_ptr[op] : out_ptr[op + 1]]
        if not forwards:
            found[op] = found[op] or any(found[end] for end in ends)
        elif found[op]:
            for end in ends:
                found[end] = True
    return np.array(found, dtype=bool)


@lru_cache(maxsize=4)
def _reversed_part(profile: Profile) -> tuple[str, int]:
    """Find the first part of names whose ops take what others made, last to first.

    Returns the part and its number of ops; an empty text if there is none.
    """
    members: dict[str, list[int]] = defaultdict(list)
    for op, name in enumerate(profile.op_names):
        end = _FIRST_PART.search(name)
        members[name[: end.end()] if end else name].append(op)
    large = {part: ops for part, ops in members.items() if len(ops) >= LARGE * profile.n_ops}
    for part, ops in large.items():
        inside = np.zeros(profile.n_ops, dtype=bool)
        inside[ops] = True
        if _is_reversed(profile, inside):
            return part, len(ops)
    return "", 0


def _is_reversed(profile: Profile, inside: BoolArray) -> bool:
    """Whether some ops, on which no others depend, take the tensors of others last to first."""
    leaving = inside[profile.edge_source] & ~inside[profile.edge_op]
    return not leaving.any() and _order(profile, inside) < REVERSED


def _order(profile: Profile, inside: BoolArray) -> float:
    """Correlate the depths of other ops with those of the last of some ops that take their tensors.

    0 if too few tensors tell. Those that wait for their first use elsewhere, such as variables and
    labels, tell nothing: their depth is not the time of that use.
    """
    source, target, depth = profile.edge_source, profile.edge_op, _depths(profile)
    crossing = ~inside[source] & inside[target]
    elsewhere = ~inside[source] & ~inside[target]
    first, last = np.full(profile.n_ops, profile.n_ops), np.zeros(profile.n_ops, dtype=np.int64)
    np.minimum.at(first, source[elsewhere], depth[target[elsewhere]])
    np.maximum.at(last, source[crossing], depth[target[crossing]])
    is_used_at_once = (first == depth + 1) | (first == profile.n_ops)
    ops = np.unique(source[crossing])
    ops = ops[is_used_at_once[ops]]
    if len(ops) < FEWEST or np.ptp(depth[ops]) == 0 or np.ptp(last[ops]) == 0:
        return 0.0
    return float(np.corrcoef(depth[ops], last[ops])[0, 1])


def _depths(profile: Profile) -> IntArray:
    depth = [0] * profile.n_ops
    out_ptr, target = profile.out_ptr.tolist(), profile.edge_op.tolist()
    for op in profile.topological_order.tolist():
        for end in target[out_ptr[op] : out_ptr[op + 1]]:
            depth[end] = max(depth[end], depth[op] + 1)
    return np.array(depth, dtype=np.int64)
