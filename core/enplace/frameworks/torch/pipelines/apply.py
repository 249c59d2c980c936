"""Apply a plan in the process of a training script: ``enplace.apply("plan.json")``.

With a ``pipeline``, this process, which ``torchrun`` started beside others, runs one stage of the
model; without, modules are placed (:mod:`enplace.frameworks.torch.run.apply`).
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enplace.frameworks.microbatches import Microbatches, find_microbatches
from enplace.frameworks.torch.pipelines.pipelines import check_schedule
from enplace.frameworks.torch.run.apply import Application, apply_modules, print_report
from enplace.frameworks.torch.run.matching import check_plan
from enplace.readers.plans import LonePlan, read_plan_alone
from enplace.text import count, listed, percent

if TYPE_CHECKING:
    from enplace.frameworks.torch.pipelines.rank import Pipeline


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
        cut, times = self.pipeline.cut, self.pipeline.times
        if cut is None or not times.step_us:
            return (
                f"{self.path}: no model with the plan's parameters has been trained, and all else "
                f"runs whole in each process"
            )
        steps = count(len(times.step_us), "step")
        busy = sum(times.busy_us) / sum(times.step_us)
        stages = listed([str(stage) for stage in cut.stages_of(self.pipeline.member.rank)])
        return (
            f"stage {stages} of {len(cut.devices)}, {self.pipeline.planned_on}: {steps}, busy "
            f"{percent(busy)} of them, at most {count(times.in_flight, 'micro-batch')} in flight"
        )

    def report(self) -> None:
        """Print which stage ran here and how busy it was, or that the plan was not used."""
        if hasattr(sys, "last_value"):
            return  # an error has ended the script, and has been told
        print_report(str(self), is_used=bool(self.pipeline.times.step_us))


def apply(path: str | os.PathLike[str], **wishes: Any) -> Application | PipelineApplication:
    """Run the training of this process as a plan says, from now on.

    Call it before the model is called; it may be moved to a device before or after.

    Parameters
    ----------
    path : path-like
        A ``plan.json``.
    **wishes
        ``pipeline``: run the model's stages of this process, in the order of ``"1f1b"``,
        ``"gpipe"``, ``"interleaved"``, ``"zb-h1"`` or ``"zbv"``; ``torchrun`` starts a process for
        each device of the plan. ``microbatches``: into how many to cut each batch.

    Raises
    ------
    FileError, ClusterError
        If the file is damaged or no plan, or this machine does not have its devices.
    PlanError
        If it splits ops or has replicas; when the model is called, if it divides a module.
    EnplaceError
        If these are not the processes of a pipeline; in training, if the step cannot be one.
    """
    wanted, name = find_microbatches(wishes), os.fspath(path)
    if wanted is not None:
        check_schedule(wanted)
    lone = read_plan_alone(path)
    check_plan(lone.problem, lone.plan, in_stages=wanted is not None)
    made: Application | PipelineApplication
    if wanted is None:
        made = apply_modules(name, lone.problem, lone.plan)
    else:
        made = _apply_stages(name, lone, wanted)
    atexit.register(made.report)
    return made


def _apply_stages(path: str, lone: LonePlan, wanted: Microbatches) -> PipelineApplication:
    from enplace.frameworks.torch.pipelines.joining import tell_once  # a build may not have it
    from enplace.frameworks.torch.pipelines.rank import Pipeline

    tell_once()
    pipeline = Pipeline(lone.problem, lone.plan, wanted, Path(path).read_bytes())
    pipeline.stay()
    return PipelineApplication(path, pipeline)
