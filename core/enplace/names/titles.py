"""Scopes in words for people."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from enplace.names.passes import BACKWARD, UPDATE, is_gradient_of_loss, is_gradient_of_op
from enplace.values.limits import MOST_DEPTH

Path = tuple[str, ...]
"""Parts of a scope."""

Ordinal = tuple[int, str]
"""Number of a part, and the letter after it: (5, "b") for ``Mixed_5b``."""

DERIVED = (BACKWARD, UPDATE)
"""Scopes that repeat the model below them: ``gradients/lstm0`` reads "gradients of lstm 0"."""


def split_scope(scope: str) -> list[str]:
    """Split a scope into its parts; PyTorch writes dots where TensorFlow writes slashes."""
    return scope.split("/") if "/" in scope else scope.split(".")


def leaf(op_name: str) -> str:
    """Return an op's own name, without its scope."""
    return split_scope(op_name)[-1]


def unique_leaves(op_names: Sequence[str]) -> tuple[str, ...]:
    """Return the ops' own names, with those parts of their scopes in which equal ones differ.

    >>> unique_leaves(["a/t0/cell/Mul", "a/t1/cell/Mul", "a/t1/cell/drop/Mul", "a/t1/Add"])
    ('t0/Mul', 't1/Mul', 't1/drop/Mul', 'Add')
    """
    parts = [split_scope(name) for name in op_names]
    deepest = max(map(len, parts), default=1) - 1
    scopes = [[*one[:-1], *[""] * (deepest + 1 - len(one))] for one in parts]
    shown: list[set[int]] = [set() for _ in parts]
    texts = [one[-1] for one in parts]
    for _ in range(deepest):
        for alike in _alike(texts):
            values = [len({scopes[op][at] for op in alike}) for at in range(deepest)]
            for op in alike:
                shown[op].add(values.index(max(values)))
        texts = [
            "/".join([*(scope[at] for at in sorted(places) if scope[at]), one[-1]])
            for one, scope, places in zip(parts, scopes, shown, strict=True)
        ]
    return tuple(texts)


def _alike(texts: Sequence[str]) -> list[list[int]]:
    """Find the places of texts that occur more than once."""
    places: dict[str, list[int]] = {}
    for at, text in enumerate(texts):
        places.setdefault(text, []).append(at)
    return [some for some in places.values() if len(some) > 1]


@lru_cache(maxsize=1 << 16)
def make_path(scope: str) -> Path:
    """Keep the parts of a scope that show where in the model it is.

    >>> make_path("gradients/layer/0/MatMul_grad")
    ('gradients', 'layer_0')
    """
    path: list[str] = []
    for part in split_scope(scope)[:MOST_DEPTH]:
        if path and part.isdigit():
            path[-1] += f"_{part}"
        elif part and not (is_gradient_of_op(part) or is_gradient_of_loss(part)):
            path.append(part)
    return tuple(path)


MOST_LETTERS = 256
"""The regexes take quadratic time."""


@lru_cache(maxsize=1 << 16)
def split_number(part: str) -> tuple[str, Ordinal | None]:
    """Split a part into stem and number.

    >>> split_number("t24"), split_number("Mixed_5b"), split_number("conv")
    (('t', (24, '')), ('Mixed', (5, 'b')), ('conv', None))
    """
    if len(part) > MOST_LETTERS:  # no name that a person gave
        return part, None
    found = re.fullmatch(r"(.+?)_(\d+)([a-z])", part) or re.fullmatch(r"(.*?\D.*?)_?(\d+)()", part)
    return (found[1], (int(found[2]), found[3])) if found else (part, None)


def number_key(text: str) -> tuple[tuple[int, str], ...]:
    """Return the numbers in a text, however long, as a sort key.

    >>> sorted(["mul_10", "mul_2", "mul_1"], key=number_key)
    ['mul_1', 'mul_2', 'mul_10']
    """
    numbers = (digits.lstrip("0") for digits in re.findall(r"\d+", text))
    return tuple((len(number), number) for number in numbers)


def ordinal(part: str) -> Ordinal:
    """Return the number of a part; a part without one is lower than any other."""
    return split_number(part)[1] or (-1, "")


def words(part: str) -> str:
    """Write a part as words.

    >>> words("lstm0"), words("conv1_2"), words("batch_norm")
    ('lstm 0', 'conv 1.2', 'batch norm')
    """
    stem, number = split_number(part)
    if number is None:
        return stem.replace("_", " ").strip() or stem
    before = words(stem)
    return f"{before}{'.' if before[-1].isdigit() else ' '}{number[0]}{number[1]}"


def title(path: Path) -> str:
    """Write a whole path as words.

    >>> title(("gradients", "lstm0", "t3"))
    'gradients of lstm 0 / t 3'
    """
    texts = [words(part) for part in path]
    if len(path) > 1 and path[0] in DERIVED:
        return f"{texts[0]} of {' / '.join(texts[1:])}"
    return " / ".join(texts)


def title_within(path: Path, label: str) -> str:
    """Name something that a scope holds."""
    if not path:
        return label
    of = " of " if len(path) == 1 and path[0] in DERIVED else " / "
    return title(path) + of + label


def unshared_title(name: str, other: str) -> str:
    """Return a title without the scopes that it shares with another one.

    >>> unshared_title("conv 4 / conv 4.2", "conv 4 / conv 4.3")
    'conv 4.2'
    >>> unshared_title("gradients of conv 4 / conv 4.3", "conv 4 / conv 4.3")
    'gradients of conv 4.3'
    """
    derived, own = _split_title(name)
    _, others = _split_title(other)
    while len(own) > 1 and others[:1] == own[:1]:
        own, others = own[1:], others[1:]
    return derived + " / ".join(own)


@lru_cache(maxsize=8)
def shorter_titles(names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return the ways to write each of several titles: in full, then with fewer outer scopes.

    None of the shorter ways begins with a scope that is in another one too, or is in a range there.

    >>> shorter_titles(("n / head", "n / a / layer 0", "n / b / layer 0"))["n / head"]
    ('n / head', 'head')
    >>> shorter_titles(("n / head", "n / a / layer 0", "n / b / layer 0"))["n / a / layer 0"]
    ('n / a / layer 0', 'a / layer 0')
    >>> shorter_titles(("a / block 2", "b / block 2 / head"))["b / block 2 / head"]
    ('b / block 2 / head', 'head')
    """
    split = {name: _split_title(name) for name in names}
    places: dict[str, set[tuple[int, int, Path]]] = {}
    for _, scopes in split.values():
        for at, scope in enumerate(scopes):
            stem, first, last = _numbers_in(scope)
            places.setdefault(stem, set()).add((first, last, tuple(scopes[:at])))

    def shorter(derived: str, scopes: list[str]) -> Iterator[str]:
        for at in range(1, len(scopes)):
            stem, first, last = _numbers_in(scopes[at])
            alike = {outer for low, high, outer in places[stem] if low <= last and first <= high}
            if len(alike) == 1:
                yield derived + " / ".join(scopes[at:])

    return {name: (name, *shorter(*parts)) for name, parts in split.items()}


_NUMBERED = re.compile(r"(.*?)(\d{1,18})(?:–(\d{1,18}))?")


def _numbers_in(scope: str) -> tuple[str, int, int]:
    """Split a scope in words into its stem, and its first and last number, or zeros."""
    found = _NUMBERED.fullmatch(scope)
    if found is None:
        return scope, 0, 0
    return found[1], int(found[2]), int(found[3] or found[2])


def _split_title(name: str) -> tuple[str, list[str]]:
    """Split a title into what it is derived by, such as "gradients of ", and its scopes."""
    head, of, rest = name.partition(" of ")
    is_derived = head in DERIVED and bool(of)
    return (head + of, rest.split(" / ")) if is_derived else ("", name.split(" / "))


def range_label(first: str, last: str) -> str:
    """Label a range of numbered siblings.

    >>> range_label("t24", "t27")
    't 24–27'
    """
    if first == last:
        return words(first)
    number, letter = ordinal(last)
    return f"{words(first)}–{number}{letter}"


def first_to_last(names: Sequence[str]) -> str:
    """Label a row of names.

    >>> first_to_last(["node3", "node5", "node7"]), first_to_last(["conv", "softmax"])
    ('node3 … 7', 'conv … softmax')
    """
    first, last = names[0], names[-1]
    (stem, number), (last_stem, last_number) = split_number(first), split_number(last)
    if number and last_number and stem == last_stem and number != last_number:
        return f"{first} … {last_number[0]}{last_number[1]}"
    return first if len(names) == 1 else f"{first} … {last}"
