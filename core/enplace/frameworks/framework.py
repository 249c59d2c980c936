"""The interface of a framework.

A framework is a package in this folder with a module ``framework`` that holds a :class:`Framework`
under the name ``FRAMEWORK``. That module must not import the framework itself: a framework runs
only in workers.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NoReturn

from enplace.errors import ClusterError, EnplaceError, FileError
from enplace.frameworks.devices import LOCAL, has_gpus
from enplace.option import Option, read_values
from enplace.processes.worker import CRASHES, WorkerProgram, signal_name
from enplace.text import listed, one_line, shortened
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import Profile
from enplace.writers.registry import Exporter

Grain = Callable[[Profile], Sequence[Sequence[int]]]

_DATA_PARALLEL = re.compile(r"[Dd]ata parallel(ism)?")

OPS = "op"
"""The grain that keeps nothing together, of every framework."""


def explain_script_end(name: str, code: int, less_memory: str) -> str:
    """Explain why a framework's worker that ran a script ended without an answer; "" if unknown.

    Parameters
    ----------
    less_memory : str
        What to do where memory is full.
    """
    ended_by = signal_name(code)
    if ended_by == "SIGKILL":
        return (
            f"the {name} process was killed (signal 9); unless you ended it, this machine most "
            f"likely ran out of memory: {less_memory}"
        )
    if ended_by in CRASHES:
        return f"{name} crashed ({ended_by}); its last lines may say why"
    if code == 0:
        return (
            f"the {name} process ended without a result (exit status 0); a script must not end "
            f"its process itself"
        )
    return ""


@dataclass(frozen=True)
class ModelKind:
    """A kind of model that a framework opens.

    Attributes
    ----------
    name : str
        As in :class:`enplace.frameworks.source.Source`. Only ``script`` and ``module``, programs
        in Python, may be opened by several frameworks.
    description : str
        What it is, and what happens to it when it is profiled.
    fields : tuple of Option
        What the user may say of such a model; ``arguments`` are those of a program.
    together : tuple of tuple of str
        Keys of fields of which the user sets all or none.
    is_recorded : bool
        Whether opening it runs no code: it holds measurements, or only a graph.
    why_no_run : str
        Why plans for such a model cannot run, and the fix; empty if they can.
    """

    name: str
    description: str
    fields: tuple[Option, ...] = ()
    together: tuple[tuple[str, ...], ...] = ()
    is_recorded: bool = False
    why_no_run: str = ""

    @property
    def is_program(self) -> bool:
        """Whether it is a program with arguments."""
        return any(field.key == "arguments" for field in self.fields)


@dataclass(frozen=True)
class NarrowStates:
    """How people of a framework keep an optimiser's states in fewer bits.

    Attributes
    ----------
    bits : int
    about : str
        What to do, in a sentence; ``{}`` stands for the name of the optimiser.
    optimisers : tuple of str
        Types of the ops of the optimisers that can do it; empty if all can.
    overhead : float
        Memory that such states take besides their numbers, as a share of these.
    least_numbers : int
        Variables with states of fewer numbers stay as they are.
    """

    bits: int
    about: str
    optimisers: tuple[str, ...] = ()
    overhead: float = 0.0
    least_numbers: int = 0


@dataclass(frozen=True)
class Framework:
    """A framework, as the rest of Enplace sees it.

    Attributes
    ----------
    name : str
        Its name on screen.
    module : str
        A module that exists wherever it is installed; empty if Enplace does not know the framework.
    extra : str
        The extra of Enplace that installs it.
    worker : WorkerProgram
        Does the jobs of :mod:`enplace.frameworks.jobs`.
    kinds : tuple of ModelKind
        The kinds of model that it opens.
    models : str
        What can be opened, as a list for people.
    suffixes : tuple of str
        Endings of the names of its models' files.
    recognise : callable
        Takes a path that exists; returns the path of the model, and its kind. Raises
        :class:`enplace.errors.FileError` if it is not a model of this framework.
    runs : bool
        Whether it runs and measures models; one that does not only reads their graphs.
    server : WorkerProgram or None
        Serves one task of a cluster of several hosts; None if it runs on one host only.
    host_lines : callable or None
        Takes a problem, a plan and a script; returns the command that a person starts on each host
        of the plan. None if servers run there.
    has_logical_devices : bool
        Whether it divides a CPU or a GPU into several devices.
    estimates_batches : bool
        Whether it profiles a batch that fits nowhere by smaller ones and a run.
    recomputes : bool
        Whether a stage of a pipeline can run its forward ops again.
    has_labels : bool
        Whether a run takes ``cpu:N`` for labels of one CPU, where the ops run one after another.
    plain_apart : bool
        Whether a run is compared with one in a worker of its own, in which a script starts anew.
    applier : str
        Function that applies a plan to the training of this process, ``MODULE:FUNCTION``; it takes
        the plan's path and ``apply_options`` by their keys. Empty if it runs no models.
    apply_options, run_options, tune_options : tuple of Option
        What a person may wish of :func:`enplace.apply`, of a run that is measured, and of tuning.
    about_compiled, about_plain_kernels : str
        Sentences that warn the user if a step was compiled as a whole, or ran on slower kernels
        than usual, because the run without a plan then differs from the user's own.
    imports : tuple of str
        What programs import that train with this framework.
    grains : mapping of str to callable
        Coarser units than ops, by name, such as ``module``. Each takes a profile and returns the
        groups of ops, by their numbers, which then stay together.
    usual_grains : mapping of str to str
        The grain of an objective if nobody asks for another.
    exporters : tuple of Exporter
        Write a plan as code of this framework.
    data_parallel : str
        What its people call data parallelism; empty if they have no other name for it.
    alternatives : str
        Function that predicts what its people pick instead of a plan, data parallelism apart,
        ``MODULE:FUNCTION``: it takes a problem, an objective, the rule of its pipelines, and
        whether to stop. Empty if there is none.
    narrow_states : NarrowStates or None
        None if Enplace knows of none.
    bundled : tuple of Path
        Small scripts that ship with Enplace, by which ``verify`` judges a machine.
    """

    name: str
    module: str
    extra: str
    worker: WorkerProgram
    kinds: tuple[ModelKind, ...]
    models: str
    suffixes: tuple[str, ...]
    recognise: Callable[[Path], tuple[Path, str]]
    runs: bool = False
    server: WorkerProgram | None = None
    host_lines: Callable[[Problem, Plan, str], list[str]] | None = None
    has_logical_devices: bool = False
    estimates_batches: bool = False
    has_labels: bool = False
    recomputes: bool = False
    plain_apart: bool = False
    applier: str = ""
    apply_options: tuple[Option, ...] = ()
    run_options: tuple[Option, ...] = ()
    tune_options: tuple[Option, ...] = ()
    about_compiled: str = ""
    about_plain_kernels: str = ""
    imports: tuple[str, ...] = ()
    grains: Mapping[str, Grain] = field(default_factory=dict)
    usual_grains: Mapping[str, str] = field(default_factory=dict)
    exporters: tuple[Exporter, ...] = ()
    data_parallel: str = ""
    alternatives: str = ""
    narrow_states: NarrowStates | None = None
    bundled: tuple[Path, ...] = ()

    @property
    def is_installed(self) -> bool:
        """Whether it is installed here; looks for it without importing it."""
        return bool(self.module) and _is_found(self.module)

    def check_installed(self) -> None:
        """Refuse what needs it where it is not installed.

        Raises
        ------
        EnplaceError
            With the command that installs it.
        """
        if not self.is_installed:
            raise EnplaceError(f"{self.name} is not installed; run: {self.install_command}")

    @property
    def alone(self) -> str:
        """What happens without a plan, as a heading."""
        return f"{self.name if self.runs else 'the model'} alone: everything on one device"

    def usual_devices(self) -> str:
        """Return the devices on which a model is most likely profiled here."""
        return "gpu:all" if has_gpus() else "cpu:2" if self.has_logical_devices else "cpu:1"

    def check_devices(self, text: str, *, for_run: bool = False) -> None:
        """Refuse devices that this framework cannot have, whatever the machine.

        Parameters
        ----------
        for_run : bool
            Whether a plan runs there, which may need labels only.

        Raises
        ------
        ClusterError
            With the reason.
        """
        local = LOCAL.fullmatch(text.strip())
        if local is None and self.server is None:
            raise ClusterError(f"'{text}': {self.name} runs on one host; use gpu:all, for example")
        if local is None or self.has_logical_devices:
            return
        if for_run and self.uses_labels(text) and not local[3]:
            if not local[2].isdecimal():
                raise ClusterError(
                    f"'{text}': CPUs are labels in a run of {self.name}; write how many, such as "
                    f"cpu:2"
                )
            return
        if local[3] or (local[1].lower() == "cpu" and local[2] != "1"):
            raise ClusterError(
                f"'{text}': {self.name} does not divide a device into logical ones; use cpu:1 or "
                f"whole GPUs"
            )

    def check_hosts(self, problem: Problem, plan: Plan, script: str) -> None:
        """Refuse to run a plan on several hosts where a person starts each of them.

        Raises
        ------
        ClusterError
            With what to start.
        """
        lines = self.host_lines(problem, plan, script) if self.host_lines else []
        if len(lines) > 1:
            raise ClusterError(
                f"the plan is for {len(lines)} hosts, each of which starts its own part: let "
                f"{script} call enplace.apply with this plan and a pipeline, and start there: "
                f"{'; '.join(lines)}"
            )

    def uses_labels(self, devices: str) -> bool:
        """Return whether devices are labels of one CPU for a run, which then measures no step."""
        return self.has_labels and devices.strip().lower().startswith("cpu:")

    def in_own_words(self, text: str) -> str:
        """Call data parallelism in a text as the people of this framework do."""
        return _DATA_PARALLEL.sub(self.data_parallel, text) if self.data_parallel else text

    def opens(self, kind: str) -> bool:
        """Return whether it opens models of a kind."""
        return any(each.name == kind for each in self.kinds)

    def kind(self, name: str) -> ModelKind:
        """Return one of its kinds of model."""
        return next(each for each in self.kinds if each.name == name)

    @property
    def install_command(self) -> str:
        """The command that installs it."""
        return f"pip install 'enplace[{self.extra}]'"

    def grain(self, name: str, profile: Profile) -> list[tuple[int, ...]]:
        """Return the groups of a profile's ops that a grain keeps together.

        Raises
        ------
        EnplaceError
            If it is none of ``grains``.
        """
        if not self.module:
            raise EnplaceError(f"there is no grain '{name}': {self.state}")
        if name not in self.grains:
            known = f"; use {listed([*self.grains, OPS])}" if self.grains else ", nor any other"
            raise EnplaceError(f"{self.name} has no grain '{name}'{known}")
        return [tuple(group) for group in self.grains[name](profile) if len(group) > 1]

    def run_wishes(self, wishes: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is wished of a run.

        Raises
        ------
        EnplaceError
            If ``run_options`` has no such wish, or it cannot have the value.
        """
        return read_values(self.run_options, wishes, f"{self.name}'s run")

    def apply(self, path: str | os.PathLike[str], **wishes: Any) -> Any:
        """Apply a plan to the training of this process; only this imports the framework.

        Raises
        ------
        EnplaceError
            If ``wishes`` has what ``apply_options`` does not, or a wrong value.
        """
        wanted = read_values(self.apply_options, wishes, f"{self.name}'s apply")
        return resolve_name(self.applier)(path, **wanted)

    @property
    def state(self) -> str:
        """A sentence that says whether it is installed and, if not, how to install it."""
        if not self.module:
            return f"Enplace does not know the framework {self.name}; update Enplace."
        if self.is_installed:
            return f"{self.name} is installed."
        return f"{self.name} is not installed. To add it, run: {self.install_command}"


def unknown_framework(name: str) -> Framework:
    """Return what stands for a framework that a file names and Enplace does not know."""
    shown = one_line(shortened(name))
    return Framework(shown, "", "", WorkerProgram((), shown), (), "", (), _recognise_nothing)


def _recognise_nothing(path: Path) -> NoReturn:
    raise FileError(f"{path}: no framework opens it")


@lru_cache(maxsize=16)  # the studio's menus ask at every edit
def _is_found(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
