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
"""Capabilities: respects memory; can begin from a plan."""

EVERY = (STEP_TIME, THROUGHPUT, LATENCY)
"""Objectives of a baseline that can be compared with others under any of them."""

Run = Callable[[Problem, PlaceOptions], Plan]


@dataclass(frozen=True)
class Placer:
    """A method in the registry.

    Attributes
    ----------
    name, title : str
        The name on the command line, and the name that people read.
    source : str
        The paper it comes from, or empty.
    run : callable
        Problem and options in, plan out; a pure function, deterministic for a seed.
    objectives : tuple of str
        The objectives that it can be asked for, its own first.
    capabilities : tuple of str
        What it respects beyond device kinds, pins and colocation.
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

    @property
    def installed(self) -> bool:
        return not self.why_not

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
    source: str = "",
    objectives: tuple[str, ...] = (STEP_TIME,),
    capabilities: tuple[str, ...] = (),
    options: tuple[Option, ...] = (),
    why_not: str = "",
) -> Callable[[Run], Run]:
    """Register a function as a method; :mod:`enplace.placers` imports all modules that do so."""
    if THROUGHPUT in objectives:
        options += tuple(option for option in LOAD_OPTIONS if option not in options)

    def register(run: Run) -> Run:
        _registry[name] = Placer(
            name, title, source, run, objectives, capabilities, options, why_not
        )
        return run

    return register


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


def methods_with_option(name: str) -> list[str]:
    """Return the names of the methods that have an option."""
    return [m for m, placer in placers().items() if name in {o.name for o in placer.options}]
