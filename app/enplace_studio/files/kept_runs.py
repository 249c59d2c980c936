"""Measured runs in the form a project file stores them: plain JSON."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from enplace.errors import EnplaceError
from enplace.frameworks.measured import COUNTS, MeasuredRun, run_from, run_message
from enplace.processes.wire import Message
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray

_OF_PLAN = ("device", "position")
_DIGITS = 3
"""Decimals of times in µs; finer ones are noise."""


def run_to_json(run: MeasuredRun) -> dict[str, Any]:
    """Convert a run to JSON, without its profile and plan, which the project stores anyway."""
    message = run_message(run)
    arrays = {name: _plain(array) for name, array in message.arrays.items() if name not in _OF_PLAN}
    figures = {name: _known(value) for name, value in message.details["run"].items()}
    return {**message.details, "run": figures, "arrays": arrays}


def run_from_json(data: Any, problem: Problem, plan: Plan) -> MeasuredRun | None:
    """Read the run of a plan; None if it is damaged or belongs to other ops."""
    try:
        arrays = {name: _array(values) for name, values in data["arrays"].items()}
        arrays |= {name: getattr(plan, name) for name in _OF_PLAN}
        figures = {
            name: math.nan if value is None and name not in COUNTS else value
            for name, value in data["run"].items()
        }
        run = run_from(Message("done", {**data, "run": figures}, arrays), problem)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError, EnplaceError):
        return None
    by_op = (run.op_time_us, run.op_start_us, run.op_finish_us, run.op_device)
    fits = all(array.shape == (problem.profile.n_ops,) for array in by_op)
    return run if fits and len(run.step_times_us) else None


def _plain(array: Any) -> list[Any]:
    """Convert numbers, with null for NaN, which JSON does not have."""
    if array.dtype.kind != "f":
        return list(array.tolist())
    return [_known(value) for value in array.round(_DIGITS).tolist()]


def _known(value: Any) -> Any:
    """Return the value, or null for NaN."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _array(values: list[Any]) -> FloatArray | Any:
    """Read whole numbers as integers, anything else as floats with NaN for null."""
    if all(type(value) is int for value in values):
        return np.array(values, dtype=np.int64)
    return np.array(values, dtype=np.float64)
