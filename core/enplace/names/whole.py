"""Layers that stay whole: the ops whose names, or else scopes, have the same match of a regex."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from enplace.errors import ProblemError
from enplace.names.passes import named_backward, split_pass
from enplace.names.paths import index_ops
from enplace.names.rules import compile_regex
from enplace.text import count
from enplace.values.arrays import FloatArray, IntArray
from enplace.values.limits import KINDS
from enplace.values.profile import Profile

LEAST_SHARE = 0.05
"""Numbered scopes with a smaller share of the model's time and memory are not taken for layers."""

_NUMBER = re.compile(r"(\d+)([a-z]?)\]?(?=[/.]|$)")
_TIME_STEP = re.compile(r"(^|[/.])(t|time|step|timestep)_?$")

Layers = Mapping[str, Sequence[int]]
"""The ops of each layer, by what a regex matches in their names."""


class LayerCount(NamedTuple):
    """How a plan places layers.

    Attributes
    ----------
    n_layers, n_cut : int
        All layers, and those with ops on several devices.
    on : dict of int to int
        The number of whole layers by device, from the device with the first layer on.
    """

    n_layers: int
    n_cut: int
    on: dict[int, int]


@lru_cache(maxsize=4)  # the text and the numbers of an answer both ask
def find_layers(pattern: str, profile: Profile, option: str) -> Layers:
    r"""Find the layers that a regex tells apart: ``layers/\d+`` has one for each number.

    Ops that only a CPU can run belong to no layer.

    Raises
    ------
    ProblemError
        If RE2 does not accept the regex, or it matches no op that a GPU can run.
    """
    expression = compile_regex(pattern, option)
    found: dict[str, list[int]] = defaultdict(list)
    for op in np.flatnonzero(np.isfinite(profile.time_us[:, KINDS.index("gpu")])).tolist():
        texts = profile.op_names[op], profile.scopes[op]
        matches = (match[0] for match in map(expression.search, texts) if match)
        if layer := next(filter(None, matches), ""):
            found[layer].append(op)
    if found:
        return found
    guess = guess_pattern(profile)
    raise ProblemError(
        f"{option} {pattern!r} matches none of the {count(profile.n_ops, 'op')} of "
        f"'{profile.name}'; "
        + (f"try '{guess}'" if guess else f"names are like '{profile.op_names[0]}'")
    )


@lru_cache(maxsize=4)
def guess_pattern(profile: Profile) -> str:
    """Guess the regex of a model's layers: its outermost numbered scopes; "" if it has none.

    Time steps are no layers, and neither are scopes in which little happens.
    """
    places = [list(_numbered(name, scope)) for name, scope in _named(profile)]
    numbers: dict[str, set[str]] = defaultdict(set)
    for stem, number, _ in {place for found in places for place in found}:
        numbers[stem].add(number)
    weight, lettered, forward = Counter[str](), set[str](), set[str]()
    of_op = zip(_shares(profile).tolist(), named_backward(profile).tolist(), places, strict=True)
    for share, is_backward, found in of_op:
        for stem, _, letter in found:
            if len(numbers[stem]) > 1:
                weight[stem] += share
                lettered |= {stem} if letter else set()
                forward |= set() if is_backward else {stem}
                break
    heavy = [stem for stem, share in weight.items() if share >= LEAST_SHARE]
    stems = _of_both_passes([stem for stem in heavy if stem in forward], heavy)
    if not stems:
        return ""
    before = "|".join(map(re.escape, stems))
    tail = r"\d+[a-z]?" if lettered & set(heavy) else r"\d+"
    return (f"({before})" if len(stems) > 1 else before) + tail


def _of_both_passes(forward: Sequence[str], stems: Sequence[str]) -> list[str]:
    """Shorten what is before the numbers of forward ops to what backward ops have there, too.

    >>> _of_both_passes(["fw/layers/"], ["fw/layers/", "bw/layers/"])
    ['layers/']
    """
    backward = [stem for stem in stems if stem not in forward]
    return list(dict.fromkeys(_shortened(stem, backward) for stem in forward))


def _shortened(stem: str, others: Sequence[str]) -> str:
    """Return the longest end of a text, from a separator on, that one of some others has, too."""
    ends = [stem[match.end() :] for match in re.finditer(r"^|[/._](?=.)", stem)]
    shared = (
        end for end in ends if any(re.search(rf"(^|[/._]){re.escape(end)}$", o) for o in others)
    )
    return next(shared, stem)


def _named(profile: Profile) -> Iterator[tuple[str, str]]:
    return zip(profile.op_names, profile.scopes, strict=True)


def _numbered(name: str, scope: str) -> Iterator[tuple[str, str, str]]:
    """Yield each numbered part of an op's scope: what is before the number, it, and a letter."""
    own = split_pass(scope)[1] if scope else re.split(r"[/.][^/.]*$", f"/{name}")[0][1:]
    for match in _NUMBER.finditer(own):
        before = own[: match.start()]
        if before and not _TIME_STEP.search(before):
            yield before, match[1], match[2]


def _shares(profile: Profile) -> FloatArray:
    """Return the share of each op in the model's time and memory; shape (n_ops,)."""
    time_us = np.nanmin(profile.time_us, axis=1)
    both = time_us, profile.persistent_bytes
    shares: FloatArray = np.mean([each / (each.sum() or 1.0) for each in both], axis=0)
    return shares


def count_layers(profile: Profile, layers: Layers, device: IntArray) -> LayerCount:
    """Count the layers on each device of a plan; ``device`` has shape (n_ops,)."""
    rank = index_ops(profile).rank
    in_order = sorted((np.array(ops) for ops in layers.values()), key=lambda ops: rank[ops].min())
    homes = [np.unique(device[ops]).tolist() for ops in in_order]
    whole = Counter(at[0] for at in homes if len(at) == 1)
    return LayerCount(len(homes), len(homes) - whole.total(), dict(whole))
