"""Guess the backward pass of a graph whose ops do not say their pass.

A profile that a person wrote may call its backward ops anything. Words such as ``bw`` or ``grad``
in names and types are not enough: a recurrent layer that reads its input both ways has a ``bw``
part, too, and a decoder may be called ``backward``. A backward pass also begins where the forward
pass ends, and comes back last to first: by the names of its ops, which are those of forward ops but
for the words, or by the tensors that it takes. So the words count only if most ops that have them
depend on an op whose output no forward op uses, and are in that order. ``back`` says less than
other words: its ops must also have a forward op's name, and no weights.

Words alone, or the shape alone, are good for a hint. A U-Net has that shape: its decoder takes what
its encoder made, last to first.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from enplace.names.passes import BACKWARD, UPDATE, in_pass
from enplace.text import count
from enplace.values.arrays import BoolArray, IntArray, marked
from enplace.values.op_kinds import OpPass
from enplace.values.profile import Profile

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_BACKWARD = re.compile(
    r"back(wards?|prop(agation)?)?|bp(rop)?|bwd?|[dw]?grad(s|ients?)?|adjoint|vjp|d[bwxy]|prime"
)
_VAGUE = re.compile(r"back|bp|d[bwxy]|prime")
"""Words that other parts of a model have, too: ``back_end``, and ``dw`` for depthwise."""

_TRANSPOSED = re.compile(r"\btranspose\((?=\w)")
"""What JAX writes around the name of what a gradient is of."""

_PRIMES = re.compile(r"(?<=\w)['’′ʹ″]+(?!\w)")
"""What makes ``attn'`` of ``attn``, typed or typeset."""

_LIKELY = re.compile(
    r"adjoint|back|bp|bw|grad|vjp|transpose\(|d[bwxy]|prime|['’′ʹ″]", re.IGNORECASE
)
"""What every name with such a word contains; quick to look for."""

_FIRST_PART = re.compile(r"[/.:_-]|(?<=[A-Za-z])(?=\d)")
"""What ends the first part of a name: ``dec`` in ``dec/3``, ``dec_3``, ``dec:3`` and ``dec3``."""

_PART = re.compile(r"[^\W\d_]+")
"""A part of a name, wherever it is: ``dx`` in ``layer3_dx``."""

_FORWARD = re.compile(r"forward|fprop|fwd?")
_NO_GRADIENT = re.compile(r"no|stop")
"""A name with such a word is not of the backward pass: ``stop_gradient``."""

_UPDATE = re.compile(r"adamw?|apply|assign|lamb|lion|momentum|optimi[sz]er|rmsprop|sgd|update")

MOSTLY = 0.5
"""Share of the ops with a word for the backward pass that must be as those of such a pass are."""

REVERSED = -0.9
"""Correlation between the depths of forward ops and of what takes their tensors, last to first."""

MOSTLY_REVERSED = -0.7
"""The same where words agree: short branches and small tensors may come out of order."""

COMMON = 0.9
"""Share of the ops whose names have a word that tells nothing: ``fwd_bwd/`` before all."""

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
    back = found | (after & profile.reach(found, backward=True))
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
    which, n_ops = _reversed_part(profile)
    how = f'the field "pass": "backward", or names that begin with \'{BACKWARD}/\''
    if which:
        return f"if it is the {count(n_ops, 'op')} {which}, give them {how}"
    if found := _hinted(profile):
        example, n_ops = profile.op_names[found[0]], len(found)
        return f"if it is the {count(n_ops, 'op')} with names such as '{example}', give them {how}"
    return f"if it has one, give its ops {how}"


def may_have_backward(profile: Profile) -> bool:
    """Whether a graph of which no op says its pass may be a training step, by shape or words."""
    return not _says_pass(profile) and bool(_reversed_part(profile)[0] or _hinted(profile))


@lru_cache(maxsize=4)
def _hinted(profile: Profile) -> list[int]:
    """Find the ops that their words call backward, if nothing contradicts; no frameworks' words."""
    if profile.measured.framework_name:
        return []
    for reading in _readings(profile):
        is_large = reading.found.sum() >= LARGE * profile.n_ops
        if is_large and (reading.is_plain or reading.is_reversed(REVERSED)):
            return np.flatnonzero(reading.found).tolist()
    return []


def _says_pass(profile: Profile) -> bool:
    known = any(profile.op_passes) or profile.measured.backward is not None
    return known or bool(in_pass(profile, BACKWARD, UPDATE).any())


def _words(text: str) -> list[str]:
    text = _PRIMES.sub(" prime", _TRANSPOSED.sub("vjp(", text))
    return [word.lower() for word in _WORD.findall(text)]


def _has(words: Iterable[str], pattern: re.Pattern[str]) -> bool:
    return any(map(pattern.fullmatch, words))


def _said_pass(words: Sequence[str], which: int) -> str:
    """Return which pass the first or last word for one says; which of them counts is tried."""
    if _has(words, _NO_GRADIENT) or _has(words, _UPDATE):
        return ""
    said = [
        OpPass.BACKWARD if _BACKWARD.fullmatch(word) else OpPass.FORWARD
        for word in words
        if _BACKWARD.fullmatch(word) or _FORWARD.fullmatch(word)
    ]
    return said[which] if said else ""


def says_backward(name: str) -> bool:
    """Whether a name has a word for the backward pass; that alone proves nothing."""
    return bool(_LIKELY.search(name)) and _said_pass(_words(name), 0) == OpPass.BACKWARD


def _guess(profile: Profile) -> BoolArray:
    """Find the ops that their words call backward, if the graph agrees; shape (n_ops,)."""
    found = (reading.found for reading in _readings(profile) if reading.is_sure())
    return next(found, np.zeros(profile.n_ops, dtype=bool))


def _readings(profile: Profile) -> Iterator[_Reading]:
    """Yield what is called backward by the first word for a pass in each name, then by the last."""
    if _says_pass(profile):
        return
    likely = {each: bool(_LIKELY.search(each)) for each in set(profile.op_types)}
    words = {
        op: _words(f"{name} {op_type}")
        for op, (name, op_type) in enumerate(zip(profile.op_names, profile.op_types, strict=True))
        if likely[op_type] or _LIKELY.search(name)
    }
    seen = Counter(word for each in words.values() for word in set(each))
    common = {word for word, times in seen.items() if times > COMMON * profile.n_ops}
    for each in words.values():
        for word in common.intersection(each):
            each.remove(word)
    tried = list[list[int]]()
    for which in (0, -1):
        ops = [op for op, each in words.items() if _said_pass(each, which) == OpPass.BACKWARD]
        if not 0 < len(ops) < profile.n_ops or ops in tried:
            continue
        tried.append(ops)
        is_plain = sum(any(map(_is_plain, words[op])) for op in ops) > MOSTLY * len(ops)
        reading = _Reading(profile, marked(profile.n_ops, ops), which, is_plain)
        if not reading.is_contradicted():
            yield reading


def _is_plain(word: str) -> bool:
    return bool(_BACKWARD.fullmatch(word)) and not _VAGUE.fullmatch(word)


@dataclass(frozen=True)
class _Reading:
    """Ops that may be the backward pass.

    Attributes
    ----------
    found : array of bool, shape (n_ops,)
    which : {0, -1}
        The word for a pass that counted in each name.
    is_plain : bool
        Whether their words hardly mean anything else.
    """

    profile: Profile
    found: BoolArray
    which: int
    is_plain: bool

    @cached_property
    def _after(self) -> BoolArray:
        return _followers(self.profile, self.found)

    @cached_property
    def _forward(self) -> BoolArray:
        forward: BoolArray = ~(self.found | self._after)
        return forward

    @cached_property
    def _back(self) -> BoolArray:
        back: BoolArray = self.found | (self._after & self.profile.reach(self.found, backward=True))
        return back

    def is_contradicted(self) -> bool:
        """Whether what follows is the model, or says that it is of the forward pass."""
        rest = (self.profile.op_names[op] for op in np.flatnonzero(self._after).tolist())
        if any(_said_pass(_words(name), self.which) == OpPass.FORWARD for name in rest):
            return True
        late = self._after & ~self._back
        late &= ~_updates_among(self.profile, late)
        time_us = np.nan_to_num(self.profile.time_us).max(axis=1)
        return not self._forward.any() or time_us[late].sum() > time_us[self._forward].sum()

    def is_sure(self) -> bool:
        """Whether the graph agrees."""
        if not _begins_at_the_end(self.profile, self.found, self._forward):
            return False
        is_named = self._order_of(without_pass_words) < MOSTLY_REVERSED
        if self._has_weights() or not self.is_plain:
            return is_named and (self.is_plain or not self._has_weights())
        return is_named or self.is_reversed(MOSTLY_REVERSED)

    def is_reversed(self, most: float) -> bool:
        """Whether these ops come last to first, by their tensors or the numbers in their names."""
        return _order(self.profile, self._back) < most or self._order_of(_last_number) < most

    def _has_weights(self) -> bool:
        held = self.profile.persistent_bytes[self.found] > 0
        return int(held.sum()) > MOSTLY * len(held)

    def _order_of(self, key_of: Callable[[str], str]) -> float:
        """Correlate the depths of these ops and of forward ops with the same key; 0 if few have."""
        depth, ops = self.profile.depth, (self._forward, self.found)
        forward, back = (_mean_depths(self.profile, each, depth, key_of) for each in ops)
        shared = [key for key in back if key in forward]
        if len(shared) < 2 or len(shared) <= MOSTLY * len(back):
            return 0.0
        return _correlation([forward[key] for key in shared], [back[key] for key in shared])


def without_pass_words(name: str) -> str:
    """Return a name without its words for passes.

    >>> without_pass_words("bw/layer_3"), without_pass_words("Layer3Grad")
    ('layer 3', 'layer 3')
    """
    words = _words(name)
    said = (_BACKWARD, _FORWARD, _UPDATE)
    return " ".join(word for word in words if not any(each.fullmatch(word) for each in said))


def _last_number(name: str) -> str:
    return next(filter(str.isdigit, reversed(_words(name))), "")


def _mean_depths(
    profile: Profile, ops: BoolArray, depth: IntArray, key_of: Callable[[str], str]
) -> dict[str, float]:
    found: dict[str, list[int]] = defaultdict(list)
    for op in np.flatnonzero(ops).tolist():
        if key := key_of(profile.op_names[op]):
            found[key].append(int(depth[op]))
    return {key: sum(depths) / len(depths) for key, depths in found.items()}


def _correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Correlate two rows of numbers; 0 if either never changes."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])


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
    return profile.reach(ops) & ~ops


@lru_cache(maxsize=4)
def _reversed_part(profile: Profile) -> tuple[str, int]:
    """Find the first part, or else any, of names whose ops take what others made, last to first.

    Returns a description and the number of ops; an empty text if there is none.
    """
    first, inner = (defaultdict[str, list[int]](list) for _ in range(2))
    for op, name in enumerate(profile.op_names):
        end = _FIRST_PART.search(name)
        first[name[: end.end()] if end else name].append(op)
        for part in dict.fromkeys(_PART.findall(name)):
            inner[part].append(op)
    for members, which in ((first, "that begin with '{}'"), (inner, "with '{}' in their names")):
        for part, ops in members.items():
            is_large = LARGE * profile.n_ops <= len(ops) < profile.n_ops
            if is_large and _is_reversed(profile, marked(profile.n_ops, ops)):
                return which.format(part), len(ops)
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
    source, target, depth = profile.edge_source, profile.edge_op, profile.depth
    crossing = ~inside[source] & inside[target]
    elsewhere = ~inside[source] & ~inside[target]
    first, last = np.full(profile.n_ops, profile.n_ops), np.zeros(profile.n_ops, dtype=np.int64)
    np.minimum.at(first, source[elsewhere], depth[target[elsewhere]])
    np.maximum.at(last, source[crossing], depth[target[crossing]])
    is_used_at_once = (first == depth + 1) | (first == profile.n_ops)
    ops = np.unique(source[crossing])
    ops = ops[is_used_at_once[ops]]
    return 0.0 if len(ops) < FEWEST else _correlation(depth[ops], last[ops])
