"""Draw for a micro-batch what a script draws for its whole batch, after it has called its model.

A stage has one micro-batch at a time. So where a script calls a function that draws by what its
step made, as ``dropout`` does, a stage calls it with as many rows as the batch has, from the random
numbers that the script had there, and takes the rows of its micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from enplace.frameworks.torch.pipelines.calls import PipelineRefusedError, at_line

_UNKNOWN = "nothing tells which of them a micro-batch has"


class Generators:
    """What a call may draw random numbers from, as it was when this was made."""

    def __init__(self, given: Any, kind: str) -> None:
        own = [each for each in tree_leaves(given) if isinstance(each, torch.Generator)]
        cards = [torch.cuda.current_device()] if kind == "cuda" else []
        usual = [torch.default_generator, *(torch.cuda.default_generators[at] for at in cards)]
        self._states = [(each, each.get_state()) for each in own or usual]

    def have_moved(self) -> bool:
        """Whether numbers have been drawn since."""
        return not all(torch.equal(each.get_state(), state) for each, state in self._states)

    def go_back(self) -> None:
        """Let them be again as they were."""
        for each, state in self._states:
            each.set_state(state)

    def now(self) -> Generators:
        """Return the same ones as they are now."""
        return Generators([each for each, _ in self._states], "")

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draw the same numbers within the block; after it, they go on as before."""
        now = self.now()
        self.go_back()
        try:
            yield
        finally:
            now.go_back()


class Drawn:
    """A function that draws, to be called for a micro-batch.

    Parameters
    ----------
    function : callable
    name : str
    samples : int
        How many the batch has.
    at : sequence of int or None
        Along which dimension each leaf of its arguments has samples; None if it has none.

    Attributes
    ----------
    has_samples : bool
        Whether it gets anything that has samples.
    begin, end : Generators
        Before and after it is called in a step of the script.
    """

    begin: Generators
    end: Generators

    def __init__(
        self, function: Callable[..., Any], name: str, samples: int, at: Sequence[int | None]
    ) -> None:
        self._function, self._name, self._samples, self._at = function, name, samples, at
        self.has_samples = any(each is not None for each in at)

    def __call__(self, *args: Any, of_samples: torch.Tensor | None = None, **kwargs: Any) -> Any:
        """Call it for the samples with some numbers; for all if it gets none of them."""
        leaves, tree = tree_flatten((args, kwargs))
        known = [(n, at) for n, at in enumerate(self._at) if at is not None]
        whole = [*leaves]
        for n, at in known:
            assert of_samples is not None
            index = torch.zeros(self._samples, dtype=torch.long)
            index[of_samples] = torch.arange(len(of_samples))
            whole[n] = _rows(leaves[n], at, index, len(of_samples))
        versions = [whole[n]._version for n, _ in known]
        args, kwargs = tree_unflatten(whole, tree)
        with self.begin.again():
            out = self._function(*args, **kwargs)
            self.end = self.begin.now()
        for (n, at), version in zip(known, versions, strict=True):
            if whole[n]._version != version:
                leaves[n].copy_(_rows(whole[n], at, of_samples, self._samples))
        own_of = {id(whole[n]): leaves[n] for n, _ in known}
        dims, at = max(((whole[n].dim(), at) for n, at in known), default=(0, 0))

        def part(each: Any) -> Any:
            if not (known and isinstance(each, torch.Tensor)):
                return each
            if id(each) in own_of:
                return own_of[id(each)]
            if each.dim() != dims or not each.shape[at] or each.shape[at] % self._samples:
                raise unknown_draw(self._name)
            return _rows(each, at, of_samples, self._samples)

        return tree_map(part, out)


def _rows(tensor: torch.Tensor, at: int, samples: Any, known: int) -> torch.Tensor:
    """Take the rows of some of ``known`` samples, which may have several each, in their layout."""
    each = tensor.shape[at] // known
    index = (samples[:, None] * each + torch.arange(each)).flatten().to(tensor.device)
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    found = tensor.permute(order).index_select(order.index(at), index)
    return found.permute([order.index(dim) for dim in range(tensor.dim())])


def unknown_draw(name: str, why: str = _UNKNOWN) -> PipelineRefusedError:
    """Refuse a draw of which nothing tells the part of a micro-batch."""
    return PipelineRefusedError(
        f"{at_line()}: '{name.strip('_')}' draws random numbers by what the step made, and {why}; "
        f"draw by torch.randn_like or torch.rand_like of what the model gave, or run without a "
        f"pipeline"
    )
