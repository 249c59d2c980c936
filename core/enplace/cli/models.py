"""The model that a command opens, and the question whether its code may run."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from enplace.cli.options import FILE, DeclaredCommand, RegistryType, all_of
from enplace.errors import EnplaceWarning, FileError
from enplace.text import one_line

if TYPE_CHECKING:
    from enplace.frameworks.source import Source
    from enplace.option import Option
    from enplace.values.problem import Problem


def _framework_names() -> dict[str, str]:
    from enplace.frameworks.registry import frameworks

    return {name: each.name for name, each in frameworks().items()}


FRAMEWORK = RegistryType("framework", _framework_names)


class ModelCommand(DeclaredCommand):
    """A command that opens a model, with a flag for all that may be said of one that runs."""

    def declared(self) -> Iterable[Option]:
        from enplace.frameworks.registry import fields

        return fields(recorded=False).values()


def device_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--devices``, ``--gpus`` and ``--gpu-memory``, as one text called ``devices``."""

    @functools.wraps(function)
    def choose(*words: Any, devices: str | None, gpus: str, gpu_memory: str, **more: Any) -> Any:
        from enplace.frameworks.devices import choose_gpus

        return function(*words, devices=choose_gpus(devices, gpus, gpu_memory), **more)

    return all_of(
        click.option(
            "--devices",
            metavar="DEVICES",
            help="gpu:all, gpu:2, cpu:2 (logical CPUs) or a cluster file with hosts.",
        ),
        click.option(
            "--gpus",
            default="",
            metavar="0,2",
            help="Use only these GPUs, by their numbers among those that CUDA shows.",
        ),
        click.option(
            "--gpu-memory",
            default="",
            metavar="12GiB",
            help="Use at most this much memory of each GPU.",
        ),
    )(choose)


model_options = all_of(
    click.argument("model", type=FILE),
    click.option(
        "--framework",
        "framework_name",
        type=FRAMEWORK,
        metavar="NAME",
        help="The framework that opens MODEL. [default: what the script imports]",
    ),
    device_options,
    click.option(
        "--trust", is_flag=True, help="Let MODEL's code run without asking whether you trust it."
    ),
)


def find_source(model: dict[str, Any], trust: bool, problem: Problem | None = None) -> Source:
    """Return the model that the user names, with its profile's arguments, if its code may run.

    Raises
    ------
    FileError, TrustError
        If it is not a model, or nobody allowed its code to run.
    """
    from enplace.files.reading import naming
    from enplace.frameworks.registry import frameworks
    from enplace.frameworks.source import source_from_json, source_of

    options = {key: value for key, value in model.items() if key != "model" and value}
    profiled = problem.profile.measured.source if problem else {}
    wanted = options.get("framework_name", "")
    named = problem.profile.measured.framework_name if problem else ""
    if named and named not in frameworks() and not wanted:
        raise FileError(f"the profile: no framework is called '{named}'; update Enplace")
    found = source_of(model["model"], framework_name=wanted)
    # Another framework may have a kind of this name, with other options.
    is_other = wanted and (profiled.get("framework_name") or wanted) != wanted
    if profiled.get("kind") != found.kind or is_other:
        source = source_of(model["model"], **options)
        _check_trust(source, trust, brought=False)
        return source
    with naming("the profile"):
        known = source_from_json(profiled)
    own = {key: getattr(known, key) for key in ("arguments", "batch_size", "framework_name")}
    source = source_of(model["model"], **own | dict(known.options) | options)
    if replace(known, path=source.path, framework_name=source.framework_name) != source:
        warnings.warn(
            "the model gets other arguments than when it was profiled, and the prediction is "
            "for those it was profiled with",
            EnplaceWarning,
            stacklevel=2,
        )
    _check_trust(source, trust, bool(source.arguments) and not model.get("arguments"))
    return source


def _check_trust(source: Source, trusted: bool, brought: bool) -> None:
    """Ask on a terminal whether a model's code may run; refuse if nobody can be asked."""
    from enplace.frameworks.trust import TrustError, may_run, place_of, trust

    allowed = may_run(source, brought=brought)
    command = f": {source.command}, with the arguments that the profile brings" if brought else ""
    if trusted:
        if brought and not allowed:
            warnings.warn(f"this runs the model's code{command}", EnplaceWarning, stacklevel=3)
        return
    if not allowed:
        what = f"{source.path}: this runs the model's code{command}"
        if not _can_ask():
            raise TrustError(f"{what}; if you trust it, add --trust")
        question = one_line(f"{what}. Do you trust {place_of(source)}?")
        if not click.confirm(question, err=True):
            raise TrustError(f"{source.path}: not trusted, so nothing was run")
    if not source.is_recorded:
        try:
            trust(source)
        except FileError as error:  # it may run; the answer is just not saved
            warnings.warn(f"the answer is not saved: {error}", EnplaceWarning, stacklevel=3)


def _can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
