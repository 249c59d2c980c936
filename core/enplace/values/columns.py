"""Columns: what a profile holds of each op, and what becomes of it when ops change.

A column is a field of :class:`~enplace.values.profile.Profile`, declared by :func:`column`. Files,
tables, messages and all that makes one profile of another go through
:data:`~enplace.values.profile.OP_COLUMNS`, so that a new column is declared once and lost nowhere.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from enplace.errors import CostError, NameTooLongError, ProfileError
from enplace.text import UNPRINTABLE, listed, quantity, size
from enplace.values.limits import MAX_BYTES, MAX_NAME


class Merge(Enum):
    """What a group of ops has when they become one op."""

    FIRST = "what its first op has"
    SUM = "the sum"
    OWN = "what `enplace.coarsen.contract` finds for this column"


class Cut(Enum):
    """What a part has when an op is split."""

    SAME = "what the op has; so have the nodes that the split adds"
    SHARE = "an equal share, in whole numbers rounded up"
    OWN = "what `enplace.values.splits.graph` finds for this column"


@dataclass(frozen=True)
class Column:
    """One column of a profile's ops.

    Attributes
    ----------
    key : str
        Its name in the open text form, in graphs of networkx, and in tables.
    type : type
        ``str``, ``int`` or ``float``. A float may be NaN, which files leave out.
    description : str
        One sentence, for the schema of the text form.
    merge, cut : Merge, Cut
        What becomes of it when ops are merged or split.
    grows : bool
        Whether an op that works on samples has more of it in a larger batch.
    default : str, int or float
        What an op has if nothing is said.
    most : float
        The largest number that is possible.
    choices : tuple of str
        The only texts besides the default; empty if any text is one.
    width : int
        Numbers for each op; 0 for a column that has one, and no second axis.
    always : bool
        Whether files have it even if all ops have the default, because older versions ask for it.
    label, unit : str
        What people read beside the value of an op, and ``"bytes"`` or the unit of a number; no
        label if the studio shows the column in another way.
    table : bool
        Whether tables have it.
    """

    key: str
    type: type
    description: str
    merge: Merge = Merge.FIRST
    cut: Cut = Cut.SAME
    grows: bool = False
    default: Any = ""
    most: float = MAX_BYTES
    choices: tuple[str, ...] = ()
    width: int = 0
    always: bool = False
    label: str = ""
    unit: str = ""
    table: bool = False

    def default_for(self, n_ops: int) -> Any:
        """Return the column of ops of which nothing is said."""
        if self.type is str:
            return (self.default,) * n_ops
        return np.full((n_ops, self.width) if self.width else n_ops, self.default, self.type)

    def is_default(self, value: Any) -> bool:
        """Whether an op's value says nothing."""
        return bool(value == self.default or value != value)

    def taken(self, name: str, values: Any) -> Any:
        """Copy the values of a caller into a column; refuse what cannot be one."""
        return tuple(values) if self.type is str else number_array(name, values, self.type)

    def rounded(self, values: NDArray[Any]) -> NDArray[Any]:
        """Round estimated values, if the column has whole numbers."""
        return np.rint(values).astype(np.int64) if self.type is int else values

    def share(self, values: Any, parts: int) -> Any:
        """Return an equal share of some values."""
        return -(-values // parts) if self.type is int else values / parts

    def shown(self, value: Any) -> str:
        """Show the value of an op."""
        if self.type is str:
            return str(value)
        return size(float(value)) if self.unit == "bytes" else quantity(float(value), self.unit)

    def check(self, name: str, values: Any, op_names: tuple[str, ...]) -> None:
        """Refuse numbers that no op has, and texts that are none of the choices."""
        if self.width:
            return
        if len(values) != len(op_names):
            raise ProfileError(f"{name} has {len(values)} entries for {len(op_names)} ops")
        if self.type is str:
            wrong = {*values} - {*self.choices, self.default} if self.choices else set()
            for op_name, value in zip(op_names, values if wrong else (), strict=False):
                if value in wrong:
                    known = f"one of {listed(list(self.choices))}"
                    raise ProfileError(
                        f"op '{op_name}': '{self.key}' must be {known}, not {value!a:.60}"
                    )
        elif values.ndim > 1:
            raise ProfileError(f"{name} must have one number for each op")
        elif len(bad := np.flatnonzero((values < 0) | (values > self.most))):
            most = "2^62 bytes" if self.unit == "bytes" else f"{self.most:g}"
            raise CostError(
                f"op '{op_names[bad[0]]}': {name} of {values[bad[0]]} is impossible; "
                f"use 0 to {most}"
            )


def column(key: str, kind: type, description: str, **facts: Any) -> Any:
    """Declare a field of a profile as a column; one with an axis of its own has no default."""
    declared = Column(key, kind, description, **facts)
    default = MISSING if declared.width else None
    return field(default=default, metadata={"column": declared})


def check_texts(op: int, texts: tuple[str, ...]) -> None:
    """Refuse the name and the texts of an op that nobody could read."""
    if not texts[0]:
        raise ProfileError(f"op number {op} has an empty name; give it one")
    if any(map(UNPRINTABLE.search, texts)):
        raise ProfileError(
            f"op number {op}, {texts[0][:60]!a}: a text with unprintable characters; rename it"
        )
    if max(map(len, texts)) > MAX_NAME:
        raise NameTooLongError(
            f"op number {op}, '{texts[0][:60]}...': a text of over {MAX_NAME} characters; "
            f"shorten it"
        )


def number_array(label: str, values: Any, dtype: type) -> NDArray[Any]:
    """Copy numbers into an array, or name them in an error."""
    try:
        return np.array(values, dtype=dtype)
    except (TypeError, ValueError, OverflowError):
        raise ProfileError(f"{label} must hold numbers in rows of equal length") from None
