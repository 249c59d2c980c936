"""A declared option: a name, its possible values, its default and a line of help.

Placers, frameworks and kinds of models declare :class:`Option` as data. The command line, the
studio's forms, the lists for scripts and the messages to workers all work from the declaration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from enplace.errors import EnplaceError

SWITCH, WHOLE, NUMBER, FILE = "switch", "whole number", "number", "file"
"""Kinds of options that are not a choice from a list; numbers are finite and not negative."""

_KINDS = {SWITCH: "yes or no", FILE: "a file"}
_KINDS |= {WHOLE: "a whole number, 0 or more", NUMBER: "a number, 0 or more"}
"""The values of each kind, in words."""

Value = str | bool | int | float

_SWITCH = {"yes": True, "on": True, "true": True, "no": False, "off": False, "false": False}


@dataclass(frozen=True)
class Option:
    """An option of a placer.

    Attributes
    ----------
    name : str
        Unique among the options of the placer; placers may share an option.
    values : tuple of str, or str
        The choices, or one of :data:`SWITCH`, :data:`WHOLE`, :data:`NUMBER` and :data:`FILE`.
    default : str, bool, int or float
        The value if none is given. An empty string leaves the choice to the placer.
    help : str
        One line for people.
    objective : str
        The only objective that it applies to; empty if it applies to all.
    """

    name: str
    values: tuple[str, ...] | str
    default: Value
    help: str
    objective: str = ""

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that can be listed; empty for other kinds of options."""
        if self.values == SWITCH:
            return ("no", "yes")
        return self.values if isinstance(self.values, tuple) else ()

    def parse(self, value: Value) -> Value:
        """Return the value, parsed if it is text.

        Raises
        ------
        EnplaceError
            If it is none of the option's values.
        """
        if value == self.default and type(value) is type(self.default):
            return value
        found = self._read(value)
        if found is None:
            wanted = ", ".join(self.choices) or _KINDS[str(self.values)]
            raise EnplaceError(f"option '{self.name}' cannot be '{value}'; use {wanted}")
        return found

    @property
    def fault(self) -> str:
        """What is wrong with the declaration; empty if nothing is."""
        if not isinstance(self.values, tuple | str) or not all(map(_is_text, self.values)):
            return "must list its values in a tuple of texts, such as ('left', 'right')"
        if not self.choices and self.values not in _KINDS:
            return f"has no values; list them, or name one of its kinds: {', '.join(_KINDS)}"
        if self.default != "" and self._read(self.default) != self.default:
            return f"cannot have the default '{self.default}', which is none of its values"
        return ""

    def _read(self, value: Value) -> Value | None:
        text = str(value)
        if self.values == SWITCH:
            return _SWITCH.get(text.lower())
        if self.values == FILE:
            return text
        if isinstance(self.values, tuple):
            return next((each for each in self.values if each.lower() == text.lower()), None)
        try:
            number = int(text) if self.values == WHOLE else float(text)
        except ValueError:
            return None
        return number if 0 <= number < math.inf else None


def _is_text(value: object) -> bool:
    return isinstance(value, str)
