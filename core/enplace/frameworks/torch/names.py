"""Names of ops from the paths of modules: ``transformer.h.0.attn`` is ``transformer/h_0/attn``."""

from __future__ import annotations

import re

from enplace.frameworks.torch.step import INPUT, LOSS, RecordedOp
from enplace.names.passes import BACKWARD, UPDATE
from enplace.names.scopes import INPUT as INPUT_SCOPE
from enplace.values.op_kinds import OpPass

_NUMBER = re.compile(r"\.(\d+)(?=\.|$)")
_HEADS = {OpPass.BACKWARD: BACKWARD, OpPass.UPDATE: UPDATE}


def scope_of_module(path: str) -> str:
    """Turn a module's path into a scope.

    >>> scope_of_module("transformer.h.0.attn")
    'transformer/h_0/attn'
    """
    return _NUMBER.sub(r"_\1", path).replace(".", "/")


def scope_of(op: RecordedOp) -> str:
    """Return the scope of an op, below its pass; empty if nothing tells it."""
    if op.place == INPUT and op.pass_ == OpPass.FORWARD:
        return INPUT_SCOPE
    own = LOSS if op.place == LOSS else scope_of_module(op.module)
    return "/".join(filter(None, (_HEADS.get(OpPass(op.pass_), ""), own)))


class UniqueNames:
    """Gives every op its own name, with a number where others have the same."""

    def __init__(self) -> None:
        self._used: dict[str, int] = {}

    def take(self, *parts: str) -> str:
        """Return a name that no other op has."""
        wanted = "/".join(filter(None, parts))
        name, number = wanted, self._used.get(wanted, 0)
        while name in self._used:
            number += 1
            name = f"{wanted}_{number}"
        self._used[wanted] = number
        self._used.setdefault(name, 0)
        return name
