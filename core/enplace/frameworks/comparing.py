"""Compare the steps of a plan with the same steps without it: turns, results, differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from enplace.processes.worker import Report

Values = list[NDArray[Any]]
AnyWay = TypeVar("AnyWay", bound="Way")


@dataclass(kw_only=True)
class Way:
    """One way to run the step, and the results so far.

    Attributes
    ----------
    what : str
        What is going on while it runs, for people.
    is_placed : bool
        Whether it follows the plan.
    losses : list
        The compared outputs of each step.
    variables, after_first : mapping
        Their values after the last step and after the very first one.
    fits : bool
        Whether there has been memory enough.
    """

    what: str
    is_placed: bool = False
    times_us: list[float] = field(default_factory=list)
    losses: list[Values] = field(default_factory=list)
    variables: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    after_first: Mapping[str, NDArray[Any]] | None = None
    fits: bool = True

    def give_up(self) -> None:
        """Drop all results, because this way runs out of memory."""
        self.times_us, self.losses, self.variables, self.fits = [], [], {}, False
        self.after_first = None


def in_turns(
    placed: AnyWay, plain: AnyWay, stock: AnyWay, steps: int, repeat: int, nudged: AnyWay | None
) -> list[tuple[AnyWay, int]]:
    """Return which way runs when, and for how many steps.

    Half of the placed and of the plain steps run before the stock ones and half after them, so a
    change of the machine's speed affects all three alike. ``nudged`` needs only its warm-ups.
    """
    before, after = steps - steps // 2, steps // 2
    turns = [(placed, before), (plain, before), (stock, steps), (plain, after), (placed, after)]
    turns *= repeat
    return turns if nudged is None else [*turns[:2], (nudged, 0), *turns[2:]]


def take_turns(
    turns: Sequence[tuple[AnyWay, int]],
    run: Callable[[AnyWay, int, Report, bool], None],
    progress: Report,
) -> None:
    """Run each way that still fits; the last argument of ``run`` tells whether it is the last."""
    for number, (way, steps) in enumerate(turns, 1):
        share = share_of(progress, way.what, number - 1, len(turns))
        if way.fits:
            run(way, steps, share, number == len(turns))


def share_of(progress: Report, message: str, done: int, parts: int) -> Report:
    """Report the progress of one of several equal parts as that of all."""
    return lambda _, fraction: progress(message, (done + (fraction or 0.0)) / parts)


def nudge(variables: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Change the last bit, up or down, of each real number in variables."""
    rng = np.random.default_rng(0)

    def nudged(value: NDArray[Any]) -> NDArray[Any]:
        if value.dtype.kind != "f":
            return value
        towards = rng.choice(np.array([-np.inf, np.inf], dtype=value.dtype), value.shape)
        changed: NDArray[Any] = np.nextafter(value, towards)
        return changed

    return {name: nudged(value) for name, value in variables.items()}


def loss_difference(ours: Way, theirs: Way, steps: int | None = None) -> float:
    """Return the largest difference of the compared outputs, of the first steps or of all.

    NaN if one of the two did not run to the end.
    """
    if not (ours.losses and theirs.losses):
        return float("nan")
    mine, other = (
        {(n, at): v for n, each in enumerate(way.losses[:steps]) for at, v in enumerate(each)}
        for way in (ours, theirs)
    )
    return largest_difference(mine, other)


def weights_difference(ours: Way, theirs: Way) -> float:
    """Return the largest difference of the variables after all steps; NaN as for losses."""
    if not (ours.losses and theirs.losses):
        return float("nan")
    return largest_difference(ours.variables, theirs.variables)


def first_step_difference(ours: Way, theirs: Way) -> float:
    """Compare the first step: the loss, and the new weights or the loss they give, if it is known.

    Weights may differ without harm: an optimiser that divides a gradient by its size, such as
    Adam, makes a full step of a gradient that should be zero but is a sum of rounding errors.
    """
    if ours.after_first is None or theirs.after_first is None:
        return float("nan")
    weights = largest_difference(ours.after_first, theirs.after_first, in_proportion=True)
    first, second = (
        largest_difference(*(dict(enumerate(each)) for each in losses), in_proportion=True)
        for losses in (
            [next(iter(way.losses[step:]), []) for way in (ours, theirs)] for step in range(2)
        )
    )
    if np.inf in (weights, first, second):  # as where one has weights that the other has not
        return float("inf")
    return float(np.fmax(first, np.fmin(weights, second)))


def largest_difference(
    ours: Mapping[Any, NDArray[Any]],
    theirs: Mapping[Any, NDArray[Any]],
    *,
    in_proportion: bool = False,
) -> float:
    """Return the largest difference of values with the same name, absolute or ``in_proportion``.

    It is infinite where one has what the other has not, one value is NaN, or texts differ, and NaN
    if there are none.
    """
    if ours.keys() != theirs.keys() or any(ours[k].shape != theirs[k].shape for k in ours):
        return float("inf")
    of_pair = _in_proportion if in_proportion else _largest
    return max((of_pair(ours[k], theirs[k]) for k in ours), default=float("nan"))


def _in_proportion(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Return the largest difference, divided by the largest number of ``b`` if that is above 1."""
    size = np.abs(b[np.isfinite(b)]).max(initial=1) if b.dtype.kind in "fiuc" else 1
    return _largest(a, b) / float(size)


def _largest(a: NDArray[Any], b: NDArray[Any]) -> float:
    if a.dtype.kind not in "fiucb":
        return 0.0 if np.array_equal(a, b) else float("inf")
    same = (a == b) | ((a != a) & (b != b))
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    off = np.abs(a.astype(wide) - b.astype(wide))[~same]
    return float(np.nan_to_num(off, nan=np.inf).max(initial=0.0))
