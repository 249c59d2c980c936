"""Apply a plan in the process of a training script: ``enplace.apply("plan.json")``.

The model that has the plan's parameters gets its modules placed as it is called first, and its
parameters wherever the script moves it. Everything else runs as it is.
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.modules import module as hooks

from enplace.errors import PlanError
from enplace.frameworks.torch.record.modules import unwrapped
from enplace.frameworks.torch.run.hooks import PlacedModules, place_model, torch_devices
from enplace.frameworks.torch.run.matching import planned_devices
from enplace.text import listed
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.splits import rewriting


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
        self._planned, self._splits = planned_devices(problem, plan), plan.splits
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
        if not self._is_refused:
            print_report(str(self), is_used=bool(self.placed))

    def place(self, model: torch.nn.Module) -> None:
        """Place a model if the plan is for it."""
        is_compiled, model = hasattr(model, "_orig_mod"), unwrapped(model)
        if id(model) in self._known or not any(True for _ in model.parameters()):
            return
        self._known[id(model)] = model
        self._is_refused = True  # then nothing more is to be said
        placed = place_model(model, self._planned, self._devices, self._splits)
        if placed is not None and is_compiled and self._splits:
            raise PlanError(
                f"the plan {rewriting(self._splits)}, which Enplace does op by op, and the model "
                f"is compiled as a whole; leave out torch.compile, or make a plan that keeps all"
            )
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


def print_report(text: str, *, is_used: bool) -> None:
    """Print what is to be said of a plan at the end of a script."""
    head = "enplace: " if is_used else "enplace: not used: "
    for line in text.splitlines():
        print(f"{head}{line}", file=sys.stderr)


def apply_modules(path: str, problem: Problem, plan: Plan) -> Application:
    """Run the modules of this process where a plan puts them, from now on.

    Raises
    ------
    ClusterError
        If this machine does not have the plan's devices.
    PlanError
        When the model is called, if the plan divides a module.
    """
    made = Application(path, problem, plan)
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
    return made
