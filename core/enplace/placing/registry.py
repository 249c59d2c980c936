"""The registry of placers: a dictionary that :func:`placer` fills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from enplace.errors import EnplaceError
from enplace.placing.options import LOAD_OPTIONS, Option, PlaceOptions
from enplace.text import instead, listed
from enplace.values.plan import Plan
from enplace.values.problem import LATENCY, STEP_TIME, THROUGHPUT, Problem

MEMORY, WARM_START = "memory", "warm-start"
"""Capabilities: looks at memory; can begin from a plan."""

EVERY = (STEP_TIME, THROUGHPUT, LATENCY)
"""Objectives of a baseline that can be asked for any of them, to compare it with others."""

Run = Callable[[Problem, PlaceOptions], Plan]


@dataclass(frozen=True)
class Placer:
    """A method in the registry.

    Attributes
    ----------
    name, title : str
        What the command line calls it, and what a person reads.
    source : str
        The paper it comes from, or empty.
    run : callable
        Problem and options in, plan out; a pure function, deterministic for a seed.
    objectives : tuple of str
        What it can be asked for, its own first.
    capabilities : tuple of str
        What it respects beyond device kinds, pins and colocation.
    options : tuple of Option
        Options of its own.
    why_not : str
        What is missing on this machine, and what to do about it; empty if the method can run.
    """

    name: str
    title: str
    source: str
    run: Run
    objectives: tuple[str, ...] = (STEP_TIME,)
    capabilities: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    why_not: str = ""

    @property
    def installed(self) -> bool:
        return not self.why_not

    def can(self, capability: str) -> bool:
        """Whether it has a capability."""
        return capability in self.capabilities

    def option(self, name: str) -> Option:
        """The option of a name.

        Raises
        ------
        EnplaceError
            If it has no such option; names those it has.
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
    source: str = "",
    objectives: tuple[str, ...] = (STEP_TIME,),
    capabilities: tuple[str, ...] = (),
    options: tuple[Option, ...] = (),
    why_not: str = "",
) -> Callable[[Run], Run]:
    """Register a function as a method; :mod:`enplace.placers` imports the modules of its folder."""
    if THROUGHPUT in objectives:
        options += tuple(option for option in LOAD_OPTIONS if option not in options)

    def register(run: Run) -> Run:
        _registry[name] = Placer(
            name, title, source, run, objectives, capabilities, options, why_not
        )
        return run

    return register


def placers(objective: str | None = None) -> dict[str, Placer]:
    """All methods by name, in alphabetical order, or those that serve an objective."""
    return {
        name: placer
        for name, placer in sorted(_registry.items())
        if objective is None or objective in placer.objectives
    }


def find_placer(name: str) -> Placer:
    """The method of a name.

    Raises
    ------
    EnplaceError
        If there is no such method.
    """
    if name not in _registry:
        raise EnplaceError(f"there is no method '{name}'; {instead(name, placers())}")
    return _registry[name]


def methods_with(capability: str) -> list[str]:
    """Names of the methods that have a capability."""
    return [name for name, placer in placers().items() if placer.can(capability)]


def methods_with_option(name: str) -> list[str]:
    """Names of the methods that have an option."""
    return [m for m, placer in placers().items() if name in {o.name for o in placer.options}]
