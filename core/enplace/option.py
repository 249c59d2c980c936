"""A declared option: a name, its possible values, its default and a line of help.

Placers, frameworks and kinds of models declare :class:`Option` as data. The command line, the
studio's forms, the lists for scripts and the messages to workers all work from the declaration.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from enplace.errors import EnplaceError
from enplace.text import shortened

SWITCH, WHOLE, NUMBER, FILE = "switch", "whole number", "number", "file"
TEXT, WORDS, SIZES = "text", "words", "sizes"
"""Kinds of options that are not a choice from a list; numbers are finite and not negative."""

_KINDS = {SWITCH: "yes or no", FILE: "a file"}
_KINDS |= {WHOLE: "a whole number, 0 or more", NUMBER: "a number, 0 or more"}
_KINDS |= {TEXT: "text", WORDS: "words as in a shell, with closed quotation marks"}
_KINDS |= {SIZES: "names and numbers such as seq_len=128"}
"""The values of each kind, in words."""

MAX_SIZE = 1 << 24
"""Largest batch, and largest of the other sizes of a model's inputs."""

Value = str | bool | int | float

_SWITCH = {"yes": True, "on": True, "true": True, "no": False, "off": False, "false": False}


@dataclass(frozen=True)
class Option:
    """An option of a placer, a framework or a kind of model.

    Attributes
    ----------
    name : str
        Unique among the options of one placer or model; several may share an option.
    values : tuple of str, or str
        The choices, or one of :data:`SWITCH`, :data:`WHOLE`, :data:`NUMBER`, :data:`FILE`,
        :data:`TEXT`, :data:`WORDS` (a tuple of texts) and :data:`SIZES` (a tuple of names and
        numbers).
    default : str, bool, int or float
        The value if none is given. An empty string leaves the choice to the one who asks for it.
    help : str
        One line for people.
    objective : str
        The only objective that it applies to; empty if it applies to all.
    least, most : int
        Range of whole numbers; ``most`` is 0 if there is no upper limit.
    suggested : tuple of str
        Common values of a text; others can be typed.
    titled : str
        Its title in a form; empty if the name says enough.
    flag : str
        Its flag on the command line; empty if it is the name.
    """

    name: str
    values: tuple[str, ...] | str
    default: Value
    help: str
    objective: str = ""
    least: int = 0
    most: int = 0
    suggested: tuple[str, ...] = ()
    titled: str = ""
    flag: str = ""

    @property
    def key(self) -> str:
        """Its name in Python and in JSON."""
        return self.name.replace("-", "_")

    @property
    def title(self) -> str:
        """Its name as a menu shows it: ``memory-rule`` is ``Memory rule``."""
        return self.titled or self.name.replace("-", " ").capitalize()

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that can be listed; empty for other kinds of options."""
        if self.values == SWITCH:
            return ("no", "yes")
        return self.values if isinstance(self.values, tuple) else ()

    def parse(self, value: Any) -> Any:
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
            wanted = f"a whole number, {self.least} to {self.most}" if self.most else wanted
            said = ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
            raise EnplaceError(f"option '{self.name}' cannot be '{shortened(said)}'; use {wanted}")
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

    def _read(self, value: Any) -> Any:
        if self.values == TEXT:
            return value if isinstance(value, str) else None
        if self.values == WORDS:
            return _words(value)
        if self.values == SIZES:
            return _sizes(value)
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
        return number if self.least <= number <= (self.most or sys.float_info.max) else None


def read_values(declared: Iterable[Option], given: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return the values that are set, by the keys of their options.

    Raises
    ------
    EnplaceError
        If no option has such a key, or it cannot have the value.
    """
    known = {option.key: option for option in declared}
    wanted = {key: value for key, value in given.items() if value is not None and value != ""}
    if unknown := next((key for key in wanted if key not in known), ""):
        takes = f"; it takes {', '.join(known)}" if known else ""
        raise EnplaceError(f"{owner} takes no '{unknown}'{takes}")
    return {key: known[key].parse(value) for key, value in wanted.items()}


def merge(*declared: Iterable[Option]) -> dict[str, Option]:
    """Return all options by key; one that several declare has the choices of all."""
    found: dict[str, Option] = {}
    for option in chain(*declared):
        known = found.setdefault(option.key, option)
        if isinstance(known.values, tuple) and isinstance(option.values, tuple):
            both = tuple(dict.fromkeys(known.values + option.values))
            found[option.key] = replace(known, values=both)
    return found


def _words(value: Any) -> tuple[str, ...] | None:
    """Read words, or a text that holds them as in a shell."""
    try:
        words = shlex.split(value) if isinstance(value, str) else list(value)
    except (TypeError, ValueError):
        return None
    return tuple(words) if all(map(_is_text, words)) else None


def _sizes(value: Any) -> tuple[tuple[str, int], ...] | None:
    """Read sizes by name: pairs, or a text such as ``a=1, b=2``, or such texts."""
    pairs = []
    try:
        for each in value.split(",") if isinstance(value, str) else value:
            name, number = each.rpartition("=")[::2] if isinstance(each, str) else each
            pairs.append((name.strip(), int(number)))
            if not name.strip() or not 0 < int(number) <= MAX_SIZE or isinstance(number, float):
                return None
    except (AttributeError, TypeError, ValueError):
        return None
    return tuple(pairs)


def _is_text(value: object) -> bool:
    return isinstance(value, str)
