"""Linear programs as messages to the processes of solvers, which must import nothing slow."""

from __future__ import annotations

from dataclasses import fields

from enplace.linear import FloatArray, Model
from enplace.processes.wire import Message


def model_message(
    model: Model, start: FloatArray | None, limit_s: float, threads: int, solver: str = ""
) -> Message:
    """Write a job for a solver's process: a model, and a solution to start from.

    Parameters
    ----------
    start : float array, shape (n_variables,), optional
        NaN if the solver has to find the value.
    solver : str
        The solver, for processes that can run several.
    """
    arrays = {field.name: getattr(model, field.name) for field in fields(Model)}
    if start is not None:
        arrays["start"] = start
    details = {"limit_s": limit_s, "threads": threads, "solver": solver}
    return Message("solve", details, arrays)


def model_from(message: Message) -> tuple[Model, FloatArray | None]:
    """Read the model and the start from a message of :func:`model_message`."""
    model = Model(**{field.name: message.arrays[field.name] for field in fields(Model)})
    return model, message.arrays.get("start")
