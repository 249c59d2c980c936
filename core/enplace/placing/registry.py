"""The registry of placers: a dictionary that :func:`placer` fills, after it has checked each."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from enplace.errors import EnplaceError
from enplace.option import Option
from enplace.placing.options import LOAD_OPTIONS, PlaceOptions
from enplace.text import WORDS, instead, listed
from enplace.values.constraints import KINDS
from enplace.values.plan import Plan
from enplace.values.problem import LATENCY, STEP_TIME, THROUGHPUT, Problem

MEMORY, HETEROGENEOUS, CHANNELS = "memory", "heterogeneous", "channels"
ANYTIME, WARM_START, PROOF = "anytime", "warm-start", "proof"
SPLITS, ONE_DEVICE, TIES, EXACT = "splits", "one-device", "ties", "exact"
CAPABILITIES = {
    MEMORY: "counts memory, and looks for a plan that fits",
    HETEROGENEOUS: "takes the different speeds of devices into account",
    CHANNELS: "takes into account that transfers wait for each other on channels",
    ANYTIME: "improves its plan until its time or its budget of work is used up",
    WARM_START: "can begin from a plan",
    PROOF: "may prove that no other plan of its kind is better",
    TIES: "takes the plan with the most free memory, of those that are as good as the best",
    EXACT: "tries every plan of a small problem, and proves the best one",
    SPLITS: "splits ops",
    ONE_DEVICE: "uses one GPU only",
}
"""What each capability promises."""

EVERY = (STEP_TIME, THROUGHPUT, LATENCY)
"""Objectives of a baseline that can be compared with others under any of them."""

RESERVED = frozenset((
    "as-json", "cluster", "constraints", "context", "force", "grain", "help", "json", "method",
    "methods", "objective", "option", "option-texts", "output", "profile", "reserve",
    "scale-compute", "scale-links", "schedule", "schedule-file", "seed", "start", "time-limit",
    "whole",
    *(name.replace("_", "-") for kind in KINDS.values() for name in (kind.key, kind.keyword)),
))  # fmt: skip
"""Names that no option may have, because the commands have flags or arguments of these names."""

Run = Callable[[Problem, PlaceOptions], Plan]


@dataclass(frozen=True, repr=False)
class Placer:
    """A method in the registry.

    Attributes
    ----------
    name, title : str
        The name on the command line, and the name that people read.
    good : str
        When it is good, for whoever chooses a method.
    source : str
        The paper it comes from, or empty.
    run : callable
        Problem and options in, plan out; a pure function, deterministic for a seed.
    objectives : tuple of str
        The objectives that it can be asked for, its own first.
    capabilities : tuple of str
        What it does beyond respecting device kinds, pins and colocation: :data:`CAPABILITIES`.
    options : tuple of Option
        Its own options.
    why_not : str
        What this machine is missing, and how to get it; empty if the method can run.
    """

    name: str
    title: str
    source: str
    run: Run
    objectives: tuple[str, ...] = (STEP_TIME,)
    capabilities: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    why_not: str = ""
    good: str = ""

    def __repr__(self) -> str:
        return f"<Method {self.name}: {self.title}>"

    @property
    def installed(self) -> bool:
        return not self.why_not

    @property
    def summary(self) -> str:
        """What it does, in one sentence: the first of its docstring."""
        first, _, _ = (inspect.getdoc(self.run) or "").partition("\n\n")
        return first.replace("\n", " ")

    def can(self, capability: str) -> bool:
        """Whether it has a capability."""
        return capability in self.capabilities

    def option(self, name: str) -> Option:
        """Return the option with a name.

        Raises
        ------
        EnplaceError
            If there is none; the message names those that it has.
        """
        for option in self.options:
            if option.name == name:
                return option
        known = ", ".join(option.name for option in self.options) or "none"
        others = methods_with_option(name)
        elsewhere = f"; it is an option of {listed(others)}" if others else ""
        raise EnplaceError(
            f"method '{self.name}' has no option '{name}'; its options: {known}{elsewhere}"
        )


_registry: dict[str, Placer] = {}


def placer(
    name: str,
    *,
    title: str,
    good: str = "",
    source: str = "",
    objectives: tuple[str, ...] = (STEP_TIME,),
    capabilities: tuple[str, ...] = (),
    options: tuple[Option, ...] = (),
    why_not: str = "",
) -> Callable[[Run], Run]:
    """Register a function as a method; :mod:`enplace.placers` imports all modules that do so.

    Raises
    ------
    ValueError
        If the declaration cannot be right; the message is for the developer.
    """
    if not isinstance(options, tuple):
        raise ValueError(f"placer '{name}': its options must be a tuple, such as (MY_OPTION,)")
    if THROUGHPUT in objectives:
        options += tuple(option for option in LOAD_OPTIONS if option not in options)

    def register(run: Run) -> Run:
        new = Placer(name, title, source, run, objectives, capabilities, options, why_not, good)
        if fault := next(_faults(new), ""):
            raise ValueError(f"placer '{name}': {fault}")
        _registry[name] = new
        return run

    return register


def _faults(new: Placer) -> Iterator[str]:
    """Yield what is wrong with a placer's declaration."""
    if not re.fullmatch(WORDS, new.name):
        yield "use lower-case words joined by hyphens as its name"
    if not new.title:
        yield "give it a title, which people read"
    if new.name in _registry:
        yield "another placer has this name; choose another one"
    if not new.objectives:
        yield f"it has no objective; use {', '.join(EVERY)}"
    for objective in set(new.objectives).difference(EVERY):
        yield f"there is no objective '{objective}'; use {', '.join(EVERY)}"
    for capability in set(new.capabilities).difference(CAPABILITIES):
        yield f"there is no capability '{capability}'; use {', '.join(CAPABILITIES)}"
    yield from _option_faults(new)


def _option_faults(new: Placer) -> Iterator[str]:
    known, names = all_options(), [option.name for option in new.options]
    for option in new.options:
        name = option.name
        if not option.help:
            yield f"give its option '{name}' a help text"
        if not re.fullmatch(WORDS, name):
            yield f"'{name}' cannot name an option; use lower-case words joined by hyphens"
        if name in RESERVED:
            yield f"every method has a flag '{name}'; give its option another name"
        if names.count(name) > 1:
            yield f"it has two options '{name}', its own and one shared by methods; rename its own"
        if known.get(name, option) != option:
            others = listed(methods_with_option(name))
            yield f"its option '{name}' differs from that of {others}; share it, or rename this"
        if option.fault:
            yield f"its option '{name}' {option.fault}"
        if option.objective not in ("", *new.objectives):
            yield f"its option '{name}' is for '{option.objective}', which it does not serve"


def placers(objective: str | None = None) -> dict[str, Placer]:
    """Return all methods by name, in alphabetical order, or those that serve an objective."""
    return {
        name: placer
        for name, placer in sorted(_registry.items())
        if objective is None or objective in placer.objectives
    }


def find_placer(name: str) -> Placer:
    """Return the method with a name.

    Raises
    ------
    EnplaceError
        If there is no such method.
    """
    if name not in _registry:
        raise EnplaceError(f"there is no method '{name}'; {instead(name, placers())}")
    return _registry[name]


def methods_with(capability: str) -> list[str]:
    """Return the names of the methods that have a capability."""
    return [name for name, placer in placers().items() if placer.can(capability)]


def all_options() -> dict[str, Option]:
    """Return the options of all methods by name, in alphabetical order."""
    every = {option.name: option for placer in _registry.values() for option in placer.options}
    return dict(sorted(every.items()))


def methods_with_option(name: str) -> list[str]:
    """Return the names of the methods that have an option."""
    return [m for m, placer in placers().items() if name in {o.name for o in placer.options}]
