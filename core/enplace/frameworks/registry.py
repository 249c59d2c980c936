"""The frameworks that Enplace supports: each folder here is one."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from functools import lru_cache
from typing import Any

from enplace import frameworks as package
from enplace import writers
from enplace.errors import EnplaceError, ProblemError
from enplace.frameworks.framework import OPS, Framework, ModelKind, unknown_framework
from enplace.option import Option, merge
from enplace.readers.plans import read_plan_framework
from enplace.values.problem import Problem
from enplace.values.profile import Profile
from enplace.values.result import Result
from enplace.writers.registry import Exporter


def frameworks() -> dict[str, Framework]:
    """Return every framework, by the name of its folder; those that run models come first."""
    found = {name: _import(name).FRAMEWORK for name in _folders(tuple(package.__path__))}
    return dict(sorted(found.items(), key=lambda each: not each[1].runs))


@lru_cache(maxsize=2)  # the studio's menus ask at every edit
def _folders(paths: tuple[str, ...]) -> list[str]:
    return [module.name for module in pkgutil.iter_modules(paths) if module.ispkg]


def _import(folder: str) -> Any:
    return importlib.import_module(f"{package.__name__}.{folder}.framework")


def usual_framework() -> Framework:
    """Return the framework to use where nothing names one: the first that is installed, if any."""
    known = _running()
    return next((each for each in known if each.is_installed), known[0])


def server_framework() -> Framework:
    """Return the usual framework that serves tasks."""
    serving = [each for each in _running() if each.server is not None]
    return next((each for each in serving if each.is_installed), serving[0])


def framework_that_applies(path: str | os.PathLike[str]) -> Framework:
    """Return the framework that a plan's file names, if that runs models; else the one in use.

    Raises
    ------
    EnplaceError
        If Enplace does not know the framework that it names, or if the file is no plan and no
        framework is in use.
    """
    try:
        name = read_plan_framework(path)
    except EnplaceError:
        if not any(each.module in sys.modules for each in _running()):
            raise  # before a framework is imported, which takes long
        name = ""  # the framework says why, or needs no plan because the script is being profiled
    framework = _named(name) if name else framework_in_use()
    if not framework.module:
        raise EnplaceError(f"{os.fspath(path)}: {framework.state}")
    return framework if framework.runs else framework_in_use()


def framework_in_use() -> Framework:
    """Return the framework that this process has imported, if any; else the usual one."""
    return next((each for each in _running() if each.module in sys.modules), usual_framework())


def _running() -> list[Framework]:
    """Return the frameworks that run models."""
    return [each for each in frameworks().values() if each.runs]


def framework_of_kind(kind: str) -> Framework:
    """Return the framework that opens a kind of model, the usual one first."""
    return next(each for each in _usual_first() if each.opens(kind))


def _usual_first() -> list[Framework]:
    usual = usual_framework()
    return sorted(frameworks().values(), key=lambda each: each is not usual)


def framework_of(profile: Profile) -> Framework:
    """Return the framework that a profile names; a guess where it names none."""
    if name := profile.measured.framework_name:
        return _named(name)
    kind = profile.measured.source.get("kind", "")
    opening = (each for each in _usual_first() if each.opens(kind))
    return next(opening, usual_framework())


def _named(name: str) -> Framework:
    return frameworks().get(name) or unknown_framework(name)


def usual_grain(profile: Profile, objective: str) -> str:
    """Return what stays whole for an objective if nobody asks for another grain."""
    return framework_of(profile).usual_grains.get(objective, OPS)


def keep_whole(problem: Problem, grain: str) -> Problem:
    """Return a problem whose plans keep whole what a model's framework knows as one.

    Raises
    ------
    EnplaceError
        If the framework has no such grain, or another constraint divides it.
    """
    if grain == OPS:
        return problem
    groups = framework_of(problem.measured_profile).grain(grain, problem.profile)
    return problem.constrained(together=[*problem.together, *groups])


def at_usual_grain(problem: Problem, objective: str) -> Problem:
    """Keep whole what is usual for an objective, unless another constraint divides it."""
    try:
        return keep_whole(problem, usual_grain(problem.measured_profile, objective))
    except ProblemError:
        return problem


def about_usual_grain(problem: Problem, objective: str) -> str:
    """Say what stays whole because it is usual for an objective; empty if nothing does."""
    grain = usual_grain(problem.measured_profile, objective)
    if grain == OPS:
        return ""
    groups = framework_of(problem.measured_profile).grain(grain, problem.profile)
    if not {*groups} <= {*problem.together}:
        return ""
    return f"{grain.capitalize()}s stay whole; --grain {OPS} divides them."


def kind_of(profile: Profile) -> ModelKind | None:
    """Return the kind of model that a profile was measured on; None if it names none."""
    framework, kind = framework_of(profile), profile.measured.source.get("kind", "")
    return framework.kind(kind) if framework.opens(kind) else None


def kinds() -> list[ModelKind]:
    """Return every kind of model that some framework opens; several have kinds of one name."""
    return [kind for framework in frameworks().values() for kind in framework.kinds]


def fields(recorded: bool) -> dict[str, Option]:
    """Return what the user may say of models that run, or of those that are only read, by key."""
    return merge(*(kind.fields for kind in kinds() if kind.is_recorded is recorded))


def run_options() -> dict[str, Option]:
    """Return what may be wished of a run of some framework, by key."""
    return merge(*(framework.run_options for framework in frameworks().values()))


def tune_options() -> dict[str, Option]:
    """Return what may be wished of tuning with some framework, by key."""
    return merge(*(framework.tune_options for framework in frameworks().values()))


def suffixes() -> tuple[str, ...]:
    """Return the endings of the names of models' files."""
    return tuple(
        dict.fromkeys(suffix for each in frameworks().values() for suffix in each.suffixes)
    )


def exporters() -> dict[str, Exporter]:
    """Return the exporters of all formats, those of frameworks among them, by name.

    Raises
    ------
    ValueError
        If two have the same name; the message is for the developer.
    """
    found = writers.exporters()
    for name, framework in frameworks().items():
        for each in framework.exporters:
            if each.name in found:
                raise ValueError(f"{name}: another exporter is called '{each.name}'; rename one")
            found[each.name] = each
    return dict(sorted(found.items()))


def why_no_export(form: str, result: Result) -> str:
    """Explain why a format is of no use for a result; empty if it is of use."""
    owners = (
        framework
        for framework in frameworks().values()
        if any(each.name == form for each in framework.exporters)
    )
    owner, own = next(owners, None), framework_of(result.schedule.problem.measured_profile)
    if owner is None or owner is own:
        return exporters()[form].why_not(result)
    return f"format '{form}' is for {owner.name}, and this is a model of {own.name}"
