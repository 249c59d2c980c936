"""Apply a plan in the process of a training script: ``enplace.apply("plan.json")``.

The model that has the plan's parameters gets its modules placed as it is called first, and its
parameters wherever the script moves it. Everything else runs as it is. With a ``pipeline``, this
process, which ``torchrun`` started beside others, runs one stage of the model instead.
"""

from __future__ import annotations

import atexit
import os
import sys
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.modules import module as hooks

from enplace.frameworks.microbatches import Microbatches, find_microbatches
from enplace.frameworks.torch.pipelines.pipelines import check_schedule
from enplace.frameworks.torch.pipelines.rank import Pipeline
from enplace.frameworks.torch.record.modules import unwrapped
from enplace.frameworks.torch.run.hooks import PlacedModules, place_model, torch_devices
from enplace.frameworks.torch.run.matching import check_plan, planned_devices
from enplace.readers.plans import read_plan_alone
from enplace.text import count, listed, percent
from enplace.values.plan import Plan
from enplace.values.problem import Problem


class Application:
    """A plan that is applied to the model with its parameters, and a report of how that went.

    Attributes
    ----------
    path : str
        The plan's file.
    placed : list of PlacedModules
        The models that it places; none before they are called.
    """

    def __init__(self, path: str, problem: Problem, plan: Plan) -> None:
        self.path = path
        self.placed: list[PlacedModules] = []
        self._devices = torch_devices(problem.cluster, plan)
        self._on_labels = len({*self._devices.values()}) < len(self._devices)
        self._planned = planned_devices(problem, plan)
        self._others: list[str] = []
        self._is_refused = False
        self._known: dict[int, torch.nn.Module] = {}

    def __str__(self) -> str:
        lines = [str(each) for each in self.placed]
        if lines and self._on_labels:
            lines[-1] += "; the devices are labels of one CPU"
        if not lines:
            called = f"; it ran {listed(self._others[:3])}" if self._others else ""
            lines = [f"{self.path}: no model with the plan's parameters has run yet{called}"]
        return "\n".join(lines)

    def report(self) -> None:
        """Print which modules ran where, or that the plan was not used."""
        head = "enplace: " if self.placed else "enplace: not used: "
        for line in [] if self._is_refused else str(self).splitlines():
            print(f"{head}{line}", file=sys.stderr)

    def place(self, model: torch.nn.Module) -> None:
        """Place a model if the plan is for it."""
        model = unwrapped(model)
        if id(model) in self._known or not any(True for _ in model.parameters()):
            return
        self._known[id(model)] = model
        self._is_refused = True  # then nothing more is to be said
        placed = place_model(model, self._planned, self._devices)
        self._is_refused = False
        if placed is None:
            self._others.append(type(model).__name__)
        else:
            self.placed.append(placed)

    def keep(self, model: torch.nn.Module) -> None:
        """Put a model where it is planned, after the script has moved it."""
        for each in self.placed:
            if each.model is unwrapped(model):
                each.move()


class PipelineApplication:
    """A plan of which this process runs a stage, and a report of how that went.

    Attributes
    ----------
    path : str
        The plan's file.
    pipeline : Pipeline
    """

    def __init__(self, path: str, pipeline: Pipeline) -> None:
        self.path, self.pipeline = path, pipeline

    def __str__(self) -> str:
        pipeline = self.pipeline
        if pipeline.cut is None:
            return f"{self.path}: no model with the plan's parameters has been trained yet"
        steps = count(len(pipeline.step_us), "step")
        busy = sum(pipeline.busy_us) / sum(pipeline.step_us)
        stages = listed([str(stage) for stage in pipeline.stages])
        return (
            f"stage {stages} of {len(pipeline.cut.devices)}, {pipeline.planned_on}: {steps}, busy "
            f"{percent(busy)} of them, at most {pipeline.in_flight} micro-batches in flight"
        )

    def report(self) -> None:
        """Print which stage ran here and how busy it was, or that the plan was not used."""
        head = "enplace: " if self.pipeline.cut is not None else "enplace: not used: "
        print(f"{head}{self}", file=sys.stderr)


def _apply_pipeline(path: str, wanted: Microbatches) -> PipelineApplication:
    check_schedule(wanted)
    lone = read_plan_alone(path)
    check_plan(lone.problem, lone.plan)
    pipeline = Pipeline(lone.problem, lone.plan, wanted, Path(path).read_bytes())
    pipeline.stay()
    made = PipelineApplication(path, pipeline)
    atexit.register(made.report)
    return made


def apply(path: str | os.PathLike[str], **wishes: Any) -> Application | PipelineApplication:
    """Run the training of this process as a plan says, from now on.

    Call it before the model is called; it may be moved to a device before or after.

    Parameters
    ----------
    path : path-like
        A ``plan.json``.
    **wishes
        ``pipeline``: run the model's stage of this process, in the order of ``"1f1b"``,
        ``"gpipe"``, ``"interleaved"`` or ``"zb-h1"``; ``torchrun`` starts a process for each
        device of the plan. ``microbatches``: into how many to cut each batch.

    Raises
    ------
    FileError, ClusterError
        If the file is damaged or no plan, or this machine does not have its devices.
    PlanError
        If it splits ops or has replicas; when the model is called, if it divides a module.
    EnplaceError
        If these are not the processes of a pipeline; in training, if the step cannot be one.
    """
    wanted = find_microbatches(wishes)
    if wanted is not None:
        return _apply_pipeline(os.fspath(path), wanted)
    lone = read_plan_alone(path)
    check_plan(lone.problem, lone.plan)
    made = Application(os.fspath(path), lone.problem, lone.plan)
    depth = [0]

    def begin(module: torch.nn.Module, args: Any) -> None:
        depth[0] += 1
        if depth[0] == 1:
            made.place(module)

    def end(module: torch.nn.Module, args: Any, out: Any) -> None:
        depth[0] -= 1

    hooks.register_module_forward_pre_hook(begin)
    hooks.register_module_forward_hook(end, always_call=True)
    usual = torch.nn.Module._apply

    @wraps(usual)
    def moved(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = usual(module, *args, **kwargs)
        made.keep(module)
        return result

    patch.object(torch.nn.Module, "_apply", moved).start()
    atexit.register(made.report)
    return made
