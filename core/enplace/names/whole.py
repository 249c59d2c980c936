"""Layers that stay whole: the ops whose names, or else scopes, have the same match of a regex.

What comes before the match tells stacks apart, such as an encoder and a decoder whose layers have
the same numbers: each stack has its layers. It tells nothing where it differs by the pass, or where
the parts lead to each other and back, layer for layer, as in ``attention_3`` and ``mlp_3``.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import groupby, takewhile
from typing import Any, NamedTuple

import numpy as np

from enplace.errors import ProblemError
from enplace.names.guessed_passes import says_backward, without_pass_words
from enplace.names.passes import named_backward, split_pass
from enplace.names.paths import index_ops
from enplace.names.rules import compile_regex
from enplace.names.scopes import INPUT
from enplace.text import count
from enplace.values.arrays import BoolArray, FloatArray, IntArray, marked
from enplace.values.components import strong_components
from enplace.values.limits import KINDS
from enplace.values.op_kinds import OpKind
from enplace.values.profile import Profile

LEAST_SHARE = 0.05
"""Numbered scopes with a smaller share of the model's time and memory are not taken for layers."""

_NUMBER = re.compile(r"(\d+)([a-z]?)\]?(?=[/.]|$)")
_NUMBER_IN_NAME = re.compile(r"(\d+)(?=[/._-]|[A-Z][a-z]|$)")
_STEP_NUMBER = re.compile(r"(?<![A-Za-z])((?:t|time|step|timestep)_?)\d+(?=[/.]|$)")
_TIME_STEP = re.compile(r"(^|[/.])(t|time|step|timestep)_?$")

Layers = Mapping[str, Sequence[int]]
"""The ops of each layer, by what a regex matches in their names."""


class LayerCount(NamedTuple):
    """How a plan places layers.

    Attributes
    ----------
    n_layers, n_cut : int
        All layers, and those with ops on several devices.
    runs : tuple of (int, int)
        Devices with the number of whole layers that follow each other there, in their order.
    """

    n_layers: int
    n_cut: int
    runs: tuple[tuple[int, int], ...]

    @property
    def on(self) -> dict[int, int]:
        """The number of whole layers by device, from the device with the first layer on."""
        whole = Counter[int]()
        for device, number in self.runs:
            whole[device] += number
        return dict(whole)


class LayerChain(NamedTuple):
    """The layers of a model in the order in which they run, and what is around them.

    Attributes
    ----------
    pattern : str
        The regex that tells them apart.
    names : tuple of str
        What it matches of each layer.
    ops : tuple of int array
        The ops of each layer, with their gradients and updates.
    before, after : int array
        Forward ops outside of all layers that no layer feeds, but that feed one; and those that
        feed none, but that one feeds. The batch is in neither.
    """

    pattern: str
    names: tuple[str, ...]
    ops: tuple[IntArray, ...]
    before: IntArray
    after: IntArray

    @property
    def kinds(self) -> list[str]:
        """What is before the numbers: several texts for an encoder and a decoder."""
        return list(dict.fromkeys(re.sub(r"[/._]?\d+[a-z]?$", "", name) for name in self.names))


@lru_cache(maxsize=4)
def find_chain(profile: Profile) -> LayerChain | None:
    """Find the layers of a model in their order; None if it has no numbered ones."""
    pattern = guess_pattern(profile)
    if not pattern:
        return None
    layers, rank = find_layers(pattern, profile, ""), index_ops(profile).rank
    forward = ~named_backward(profile)
    names = _in_order(profile, layers)
    ops = tuple(np.array(layers[name]) for name in names)
    inside = marked(profile.n_ops, np.concatenate(ops))
    fed, feeds = inside & forward, inside & forward
    edges = np.stack([profile.edge_source, profile.edge_op], axis=1)
    edges = edges[forward[edges].all(axis=1)]
    for source, target in edges[np.argsort(rank[edges[:, 0]], kind="stable")].tolist():
        fed[target] |= fed[source]
    for source, target in edges[np.argsort(-rank[edges[:, 1]], kind="stable")].tolist():
        feeds[source] |= feeds[target]
    in_batch = profile.of_kind(OpKind.INPUT) & [scope == INPUT for scope in profile.scopes]
    outside = forward & ~inside & ~in_batch & _in_layers(profile)
    before, after = np.flatnonzero(outside & feeds & ~fed), np.flatnonzero(outside & fed & ~feeds)
    return LayerChain(pattern, tuple(names), ops, before, after)


@lru_cache(maxsize=4)  # the text and the numbers of an answer both ask
def find_layers(pattern: str, profile: Profile, option: str) -> Layers:
    r"""Find the layers that a regex tells apart: ``layers/\d+`` has one for each number.

    Ops that only a CPU can run belong to no layer, unless the profile is of a CPU alone.

    Raises
    ------
    ProblemError
        If RE2 does not accept the regex, or it matches no op.
    """
    found = _in_stacks(profile, _matches(profile, compile_regex(pattern, option)))
    if found:
        return found
    guess = guess_pattern(profile)
    raise ProblemError(
        f"{option} {pattern!r} matches none of the {count(profile.n_ops, 'op')} of "
        f"'{profile.name}'; "
        + (f"try '{guess}'" if guess else f"names are like '{profile.op_names[0]}'")
    )


def _in_layers(profile: Profile) -> BoolArray:
    """Tell which ops may belong to a layer: those that a GPU can run, if it can run any."""
    on_gpu = np.isfinite(profile.time_us[:, KINDS.index("gpu")])
    return on_gpu if on_gpu.any() else ~on_gpu


class _Match(NamedTuple):
    """What a regex matches in an op's name or scope, and what is before it."""

    op: int
    before: str
    text: str


def _matches(profile: Profile, expression: Any) -> list[_Match]:
    found = []
    for op in np.flatnonzero(_in_layers(profile)).tolist():
        for text in (profile.op_names[op], profile.scopes[op]):
            if (match := expression.search(text)) and match[0]:
                found.append(_Match(op, text[: match.start()], match[0]))
                break
    return found


def _in_stacks(profile: Profile, matches: Sequence[_Match]) -> dict[str, list[int]]:
    """Join matches with the same text in the same stack; the first one names their layer."""
    backward = named_backward(profile)
    is_training = bool(backward.any())
    backward |= np.array([says_backward(name) for name in profile.op_names])
    forward = [each for each in matches if not backward[each.op]] or matches
    stack_of = _find_stacks(profile, forward, ~backward)
    numbers: dict[str, set[str]] = defaultdict(set)  # of each stack
    for each in forward:
        if (before := _words_before(each)) in stack_of:
            numbers[stack_of[before]].add(_layer_of(each, is_training))
    joined: dict[tuple[str, str], list[_Match]] = defaultdict(list)
    for each in matches:
        before, layer = _words_before(each), _layer_of(each, is_training)
        own = stack_of.get(before)
        if own is None:
            have = [stack for stack in numbers if layer in numbers[stack]] or list(numbers)
            own = max(have, key=partial(_count_shared_end, before))
        joined[own, layer].append(each)
    is_one = len(numbers) == 1
    return {
        group[0].text if is_one else group[0].before + group[0].text: [each.op for each in group]
        for group in joined.values()
    }


def _count_shared_end(one: str, other: str) -> int:
    """Count the last words that two texts share."""
    pairs = zip(reversed(one.split()), reversed(other.split()), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _words_before(match: _Match) -> str:
    return without_pass_words(_STEP_NUMBER.sub("", match.before))


def _layer_of(match: _Match, is_training: bool) -> str:
    return without_pass_words(match.text) or match.text if is_training else match.text


def _find_stacks(profile: Profile, forward: Sequence[_Match], inner: BoolArray) -> dict[str, str]:
    """Name the stack of what is before matches, where much happens: the first of those joined."""
    time_us, parts = np.nanmin(profile.time_us, axis=1), defaultdict[str, list[int]](list)
    for each in forward:
        parts[_words_before(each)].append(each.op)
    taken = {before: float(time_us[ops].sum()) for before, ops in parts.items()}
    large = [part for part in parts if taken[part] >= LEAST_SHARE * max(taken.values())]
    node = np.arange(profile.n_ops)
    for part in large:
        node[parts[part]] = parts[part][0]
    inner[[each.op for each in forward]] = True
    edges = inner[profile.edge_source] & inner[profile.edge_op]
    ends = node[profile.edge_source[edges]], node[profile.edge_op[edges]]
    group = strong_components(profile.n_ops, *ends)
    names: dict[int, str] = {}
    return {part: names.setdefault(int(group[parts[part][0]]), part) for part in large}


@lru_cache(maxsize=4)
def guess_pattern(profile: Profile) -> str:
    """Guess the regex of a model's layers: its outermost numbered scopes; "" if it has none.

    Time steps are no layers, and neither are scopes in which little happens. The first layer may
    have no number, as Keras names them: ``block``, ``block_1``.
    """
    scopes = [_scope_of(name, scope) for name, scope in _named(profile)]
    numbered = [list(_numbered(scope)) for scope in scopes]
    unnumbered = _unnumbered(scopes, numbered)
    stems, tail = _find_stems(profile, numbered)
    if not stems:  # ``dense`` and ``dense_1``
        stems, tail = _find_stems(
            profile, [[*one, *two] for one, two in zip(unnumbered, numbered, strict=True)]
        )
    if not stems:
        stems, tail = _find_stems(profile, _in_flat_names(profile))
    first = [place.stem for found in unnumbered for place in found]
    begun = {stem for stem in stems if any(each.endswith(stem) for each in first)}
    whole = [f"{re.escape(stem[:-1])}(_{tail})?\\b" for stem in stems if stem in begun]
    others = [re.escape(stem) for stem in stems if stem not in begun]
    if others:
        before = "|".join(others)
        whole.append((f"({before})" if len(others) > 1 else before) + tail)
    return "|".join(whole)


class _Place(NamedTuple):
    """A numbered part of an op's scope: what is before the number, it, and a letter."""

    stem: str
    number: str
    letter: str = ""


def _find_stems(profile: Profile, places: Sequence[Sequence[_Place]]) -> tuple[list[str], str]:
    """Find what is before the numbers of layers, and the regex of the numbers."""
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
    return stems, r"\d+[a-z]?" if lettered & set(heavy) else r"\d+"


def _unnumbered(scopes: Sequence[str], numbered: Sequence[Sequence[_Place]]) -> list[list[_Place]]:
    """Find, for each op, the scopes around it that lack the number that others of a name have."""
    numbers = {(place.stem, place.number) for found in numbered for place in found}
    named = {stem[:-1] for stem, _ in numbers if stem.endswith("_") and (stem, "0") not in numbers}
    around = ((scope[: end.start()] for end in re.finditer(r"[/.]|$", scope)) for scope in scopes)
    return [[_Place(f"{name}_", "") for name in names if name in named] for names in around]


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


def _in_flat_names(profile: Profile) -> list[list[_Place]]:
    """Find the numbers in names of ops without scopes, if several ops share one: ``l0_attn``.

    Numbers behind types, as in ``MatMul_3`` and ``MatMul_3_grad``, are those of ops.
    """
    types = {op_type.lower() for op_type in profile.op_types}
    places = [
        [
            _Place(name[: match.start()], match[1])
            for match in _NUMBER_IN_NAME.finditer(name)
            if match.start()
            and not _TIME_STEP.search(name[: match.start()])
            and re.split(r"[/.]", name[: match.start()])[-1].rstrip("_-").lower() not in types
        ]
        for name in profile.op_names
    ]
    is_forward = ~named_backward(profile)
    of_place = Counter(
        place
        for found, name, forward in zip(places, profile.op_names, is_forward, strict=True)
        if forward and not says_backward(name)
        for place in set(found)
    )
    n_numbers = Counter(place.stem for place in of_place)
    n_ops = Counter[str]()
    for place, times in of_place.items():
        n_ops[place.stem] += times
    shared = {stem for stem in n_ops if n_ops[stem] >= 2 * n_numbers[stem]}
    return [[place for place in found if place.stem in shared] for found in places]


def _scope_of(name: str, scope: str) -> str:
    return split_pass(scope)[1] if scope else re.split(r"[/.][^/.]*$", f"/{name}")[0][1:]


def _numbered(scope: str) -> Iterator[_Place]:
    for match in _NUMBER.finditer(scope):
        before = scope[: match.start()]
        if before and not _TIME_STEP.search(before):
            yield _Place(before, match[1], match[2])


def _shares(profile: Profile) -> FloatArray:
    """Return the share of each op in the model's time and memory; shape (n_ops,)."""
    time_us = np.nanmin(profile.time_us, axis=1)
    both = time_us, profile.persistent_bytes
    shares: FloatArray = np.mean([each / (each.sum() or 1.0) for each in both], axis=0)
    return shares


def _in_order(profile: Profile, layers: Layers) -> list[str]:
    """Name the layers in the order in which they run forward."""
    forward, rank = ~named_backward(profile), index_ops(profile).rank
    # A layer ends when its last op does; what it holds may come long before its first one.
    ends = {
        name: max((rank[op] for op in ops if forward[op]), default=np.inf)
        for name, ops in layers.items()
    }
    return sorted(ends, key=ends.__getitem__)


def count_layers(profile: Profile, layers: Layers, device: IntArray) -> LayerCount:
    """Count the layers on each device of a plan; ``device`` has shape (n_ops,)."""
    in_order = [np.array(layers[name]) for name in _in_order(profile, layers)]
    homes = [np.unique(device[ops]).tolist() for ops in in_order]
    whole = [at[0] for at in homes if len(at) == 1]
    runs = tuple((device, len(list(each))) for device, each in groupby(whole))
    return LayerCount(len(homes), len(homes) - len(whole), runs)
