"""Sentences of the library in the words of the window: what to choose, not which flag to give."""

from __future__ import annotations

import re

from enplace.option import SWITCH
from enplace.placers import placers
from enplace.placing.options import STAGE_OPTIONS
from enplace_studio.model.method_facts import OBJECTIVES

_METHOD, _EDIT, _CLUSTER = "in Choose method", "in the Edit menu", "in the cluster’s editor"
_SWITCHES = {option.name: option.title for option in STAGE_OPTIONS if option.values == SWITCH}
_FIELDS = {
    **{option.name: (option.title, _METHOD) for option in STAGE_OPTIONS},
    "objective": ("Find", _METHOD),
    "method": ("Method", _METHOD),
    "grain": ("Keep whole", _METHOD),
    "whole": ("Keep layers whole", _EDIT),
    "colocate": ("Colocate", _EDIT),
    "reserve": ("Reserve", _CLUSTER),
}
"""The title of each flag's field, and where it is."""

_VALUED = "|".join(name for name in _FIELDS if name not in _SWITCHES)
_FLAG = rf"--(?:{'|'.join(_SWITCHES)}|(?:{_VALUED}) (?:'[^']*'|[\w%.-]*[\w%]))(?![\w-])"
_TITLES = {name: each.title for name, each in placers().items() if "-" in name}
"""Titles of methods whose names are no words."""

_NAMED = re.compile(rf"(?P<flags>{_FLAG}(?: {_FLAG})*)|(?<![\w-])(?:{'|'.join(_TITLES)})(?![\w-])")


def in_window_words(text: str) -> str:
    """Name fields of the window instead of flags of the command line, and methods by their titles.

    >>> in_window_words("make a plan with --objective throughput --pipeline 1f1b")
    'make a plan with “Find: Highest pipeline throughput”, “Pipeline: 1f1b” in Choose method'
    """
    return _NAMED.sub(
        lambda found: _fields(found[0]) if found["flags"] else f"“{_TITLES[found[0]]}”", text
    )


def _fields(flags: str) -> str:
    named: dict[str, list[str]] = {}
    for flag in re.findall(_FLAG, flags):
        name, _, value = flag.removeprefix("--").partition(" ")
        title, place = _FIELDS[name]
        value = OBJECTIVES.get(value, value.strip("'")) + "s" * (name == "grain")
        named.setdefault(place, []).append(f"“{title}: {value}”" if value else f"“{title}”")
    return " and ".join(f"{', '.join(fields)} {place}" for place, fields in named.items())
