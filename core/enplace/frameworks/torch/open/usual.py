"""Which of a script's recorded steps stands for all of them: the usual one.

Steps may differ in their optimisers, in their backward passes and in the shapes of their batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import NamedTuple

from enplace.frameworks.torch.open.rounds import Kind
from enplace.frameworks.torch.record.timing import Clock, Shapes, size_of
from enplace.frameworks.torch.step import Step
from enplace.text import joined


class Seen(NamedTuple):
    """A recorded step, and of what kind it was."""

    step: Step
    kind: Kind


class UsualStep:
    """Counts steps of each kind and on batches of each shape, and keeps a usual one.

    Attributes
    ----------
    now : Seen or None
        The one that is kept, if the optimisers are still the same.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kinds: Counter[Kind] = Counter()
        self._batches: Counter[Shapes] = Counter()
        self.now: Seen | None = None
        self._older: Seen | None = None

    @property
    def kept(self) -> Seen | None:
        """The one that is kept, perhaps from before the optimisers changed."""
        return self.now or self._older

    def begin_anew(self) -> None:
        """Note that the optimisers have changed."""
        self._older, self.now = self.kept, None

    def count(self, kind: Kind, shapes: Shapes) -> None:
        """Count a step."""
        self._kinds[kind] += 1
        self._batches[shapes] += 1

    def add(self, found: Seen) -> None:
        """Count a step just recorded, and keep it unless the known one is more usual.

        A kind must be more frequent, a batch by two steps or more; then the larger batch counts,
        and then the shorter step, which has no evaluation. The clock forgets all recordings of
        steps unlike the one that is kept.
        """
        self.count(found.kind, found.step.batch_shapes)
        known = self.now
        if known is None:
            self.now = found
            self._clock.forget_others()
            return
        (own, kind), (old, known_kind) = found, known
        is_kind, is_batch = kind == known_kind, own.batch_shapes == old.batch_shapes
        more_of_kind = self._kinds[kind] - self._kinds[known_kind]
        more = self._batches[own.batch_shapes] - self._batches[old.batch_shapes]
        more *= abs(more) > 1
        larger = size_of(own.batch_shapes) - size_of(old.batch_shapes)
        shorter = len(old.ops) - len(own.ops)
        gain = (more_of_kind, is_kind, more, larger, shorter, is_batch)
        if gain <= (0, True, 0, 0, 0, False):
            self._clock.forget()
            return
        self.now = found
        if not (is_kind and is_batch):
            self._clock.forget_others()

    @property
    def is_found(self) -> bool:
        """Whether no other kind of step, or batch, is more frequent than that of the known one.

        Of two batches that take turns, the smaller one is the rest of the data. If many are as
        frequent, any of them is usual.
        """
        assert self.now is not None
        step, kind = self.now
        if self._kinds[kind] < max(self._alike(kind).values()):
            return False
        n = max(self._batches.values())
        often = [shapes for shapes, times in self._batches.items() if times >= n - 1]
        is_most = step.batch_shapes in often and step.batch_shapes == max(often, key=size_of)
        return is_most or 3 * n <= self._batches.total()

    def about(self, names: Mapping[int, str]) -> Iterator[str]:
        """Say what steps have on average, where the one that is kept has more or less of it.

        Parameters
        ----------
        names : mapping of int to str
            Of optimisers, by their numbers.
        """
        assert self.kept is not None
        kind, alike = self.kept.kind, self._alike(self.kept.kind)
        numbers = [*dict.fromkeys(kind.numbers)]
        what = [f"steps of {names.get(number, 'another optimiser')}" for number in numbers]
        what.append("backward passes")

        def amounts(of: Kind) -> list[int]:
            return [*map(of.numbers.count, numbers), of.n_backward]

        columns = zip(*map(amounts, alike), strict=True)
        means = [fmean(column, alike.values()) for column in columns]
        rows = zip(amounts(kind), means, what, strict=True)
        unlike = [(own, mean, each) for own, mean, each in rows if round(mean, 1) != own]
        if unlike:
            yield (
                f"Steps differ: on average over all {sum(alike.values()):,} that ran, one has "
                f"{joined([f'{mean:.1f} {each}' for _, mean, each in unlike])}; the recorded one "
                f"has {joined([f'{own:,}' for own, _, _ in unlike])}."
            )

    def _alike(self, kind: Kind) -> Mapping[Kind, int]:
        """Return how many steps there were of each kind with the same optimisers."""
        own = {*kind.numbers}
        return {each: n for each, n in self._kinds.items() if {*each.numbers} == own}
