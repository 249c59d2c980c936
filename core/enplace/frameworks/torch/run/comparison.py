"""What runs with and without a plan computed, as the arrays of messages, and how it differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from enplace.frameworks.batches import about_other_batches
from enplace.frameworks.comparing import Values, Way
from enplace.frameworks.measured import MeasuredRun
from enplace.frameworks.torch.open.following import SEED, Follower
from enplace.processes.wire import Message

LOSS, WEIGHTS, AFTER_FIRST, GRADIENTS = "loss", "weights", "first", "gradients"
"""Begin the names of arrays."""


def about_run(devices: str, compared_steps: int, is_compiled: bool) -> dict[str, Any]:
    """Collect the details that all runs of a plan share."""
    return {
        "devices": devices,
        "ordered": False,
        "compared_steps": compared_steps,
        "seed": SEED,
        "compiled": is_compiled,
        "torch": torch.__version__,
    }


def about_batches(run: MeasuredRun, plain: Message) -> str:
    """Say how the batches of the run without a plan differ from those of the profile.

    A pipeline may have its plan's samples, whether or not the plan's file says that they are parts.
    """
    measured, rule = run.profile.measured, run.plan.load_rule
    parts = [measured.parts_of_batch, *([rule.microbatches] if run.pipeline and rule else [])]
    rows = next((shape[:1] for shape in measured.batch_shapes if shape), None)
    found = [
        about_other_batches(
            [(s[0] * n, *s[1:]) if s[:1] == rows else s for s in measured.batch_shapes],
            plain.details["batch_shapes"],
        )
        for n in parts
    ]
    return found[0] * all(found)


def results_of(follower: Follower) -> dict[str, Any]:
    """Return what a run computed as the arrays of a message."""
    groups = {
        WEIGHTS: follower.weights, AFTER_FIRST: follower.after_first,
        GRADIENTS: follower.gradients,
    }  # fmt: skip
    found = {f"{group}:{name}": each for group, own in groups.items() for name, each in own.items()}
    losses = {
        f"{LOSS}:{step}:{number}": value
        for step, values in enumerate(follower.losses)
        for number, value in enumerate(values)
    }
    return found | losses


def group_of(arrays: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Return the arrays of a group, by their own names."""
    start = f"{group}:"
    return {k.removeprefix(start): v for k, v in arrays.items() if k.startswith(start)}


def way_of(losses: Sequence[Values], after_first: Mapping[str, Any]) -> Way:
    """Return what is compared of a run's first steps."""
    return Way(what="", losses=[*losses], after_first=after_first)


def steps_of(arrays: Mapping[str, Any]) -> list[Values]:
    """Return the losses of each step from the arrays of a message."""
    found: dict[int, Values] = {}
    for name, value in group_of(arrays, LOSS).items():
        found.setdefault(int(name.partition(":")[0]), []).append(value)
    return [found.get(step, []) for step in range(max(found, default=-1) + 1)]
