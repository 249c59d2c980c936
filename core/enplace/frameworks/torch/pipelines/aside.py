"""Calls that a script makes beside the tape of its step, between its model and ``loss.backward()``.

They get nothing of the step, such as those that draw the next batch, or only losses, without their
gradients. What they make is put on the tape if it meets something of the step later. What they make
of losses is made again once the losses are known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from enplace.frameworks.torch.pipelines.calls import Modes


@dataclass(eq=False)
class Aside:
    """A call beside the tape.

    Attributes
    ----------
    function, name, args, kwargs, modes
        Of the call.
    is_of_loss : bool
        Whether it gets a loss, or what was made of one.
    has_rows : bool
        Whether it gets a tensor that has a row for each sample, made beside the tape, too.
    before : tensor or None
        What the tensor held that it changed in place.
    changed : tensor or None
        This tensor.
    made : list of (int, tensor)
        What else it made, and where that is among the leaves of its result.
    """

    function: Callable[..., Any]
    name: str
    args: Any
    kwargs: Any
    modes: Modes
    is_of_loss: bool
    has_rows: bool
    before: torch.Tensor | None = None
    changed: torch.Tensor | None = None
    made: list[tuple[int, torch.Tensor]] = field(default_factory=list)

    @property
    def results(self) -> list[torch.Tensor]:
        """All that it made or changed."""
        made = [each for _, each in self.made]
        return made if self.changed is None else [*made, self.changed]

    def begin(self, changed: torch.Tensor | None) -> Any:
        """Make the call, which may change a tensor in place."""
        self.changed = changed
        out = self.function(*self.args, **self.kwargs)
        given = {id(each) for each in tree_leaves((self.args, self.kwargs))}
        self.made = [
            (at, each)
            for at, each in enumerate(tree_leaves(out))
            if isinstance(each, torch.Tensor) and id(each) not in given
        ]
        return out

    def undo(self) -> None:
        """Give the tensor that it changed what that held."""
        if self.changed is not None and self.before is not None:
            self.changed.detach().copy_(self.before)

    def again(self) -> None:
        """Make the call with what its arguments hold now; its results are the same tensors."""
        with replace(self.modes, has_gradients=False).again():
            leaves = tree_leaves(self.function(*self.args, **self.kwargs))
            for at, each in self.made:
                if each.data_ptr() != leaves[at].data_ptr():  # else it lies in that memory
                    each.copy_(leaves[at])
