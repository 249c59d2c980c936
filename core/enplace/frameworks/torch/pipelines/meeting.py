"""Where processes send each other something, all must be at the same place of the script."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Timer

import torch
import torch.distributed as dist

from enplace.frameworks.torch.pipelines.calls import PipelineRefusedError, at_line
from enplace.frameworks.torch.pipelines.joining import LostError, connected

MOST_SEEN = 17
"""So many numbers are compared with those of other processes."""

_DOES = ("trains its model", "reads its weights", "takes the state of its optimiser")
TRAINS, READS, SAVES = range(len(_DOES))
"""What a process does there."""


def meet(does: int, device: torch.device, seen: Sequence[float] = ()) -> bool:
    """Wait until all processes do the same; return whether all have seen the same.

    Raises
    ------
    PipelineRefusedError
        In all of them, if some do something else.
    LostError
        If one has ended.
    """
    own = torch.tensor(
        [*seen, *[0.0] * (MOST_SEEN - len(seen))], dtype=torch.float64, device=device
    )
    first = own.clone()
    found = torch.zeros(1 + len(_DOES), dtype=torch.float64, device=device)
    found[1 + does] = 1
    try:
        with connected(), _waiting(does):
            dist.broadcast(first, 0)
            found[0] = (own != first).any()
            dist.all_reduce(found, op=dist.ReduceOp.MAX)
    except LostError as error:
        if does == TRAINS or not str(error):
            raise
        raise LostError(
            f"another process of the pipeline has ended, and this one {_DOES[does]}; unless its "
            f"own last line says why, {_IN_EACH}"
        ) from None
    differs, *done = found.tolist()
    if sum(done) > 1:
        one, other, *_ = (what for what, is_done in zip(_DOES, done, strict=True) if is_done)
        raise PipelineRefusedError(f"one process {one} where another {other}; {_IN_EACH}")
    return not differs


PATIENCE_S = 20
"""After so long a wait for other processes, a line says what this one waits for."""


@contextmanager
def _waiting(does: int) -> Iterator[None]:
    """Say so where the others do not come, if they may never do."""
    if does == TRAINS:  # in all processes: and so often that a thread would take time
        yield
        return
    what = f"a process {_DOES[does]}, and waits for the others to do so"
    line = f"enplace: {at_line()}: {what}; {_IN_EACH}"
    late = Timer(PATIENCE_S, print, [line], {"file": sys.stderr, "flush": True})
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()


_IN_EACH = (
    "let every process read, save and evaluate its model, as in state = model.state_dict(), and "
    "only one write the file"
)
