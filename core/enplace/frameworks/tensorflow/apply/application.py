"""A plan that is applied in a user's own process: where it goes, and how it went."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import tensorflow as tf

from enplace.frameworks.batches import (
    Shapes,
    about_other_batches,
    may_be_the_rest,
    shapes_text,
)
from enplace.frameworks.tensorflow.apply.check import Check
from enplace.frameworks.tensorflow.capture import has_replicas
from enplace.frameworks.tensorflow.devices import DevicesError
from enplace.text import count

KINDS = ("CPU", "GPU")

ALIKE = 0.5
"""Share of the plan's ops above which a function was probably meant by the plan."""

_DROPPED = {
    "jit_compile": "XLA does not compile the training step, because a plan places single ops; "
    "the step may be slower than without the plan and round differently",
    "steps_per_execution": "steps_per_execution is 1, because a plan is for one step; callbacks "
    "run after each batch, and Python runs between steps",
}
"""What changes where a wish of the script cannot be obeyed."""


@dataclass(frozen=True, eq=False)
class PlacedFunction:
    """The changes to one traced function.

    Attributes
    ----------
    name : str
        The function's name.
    order_edges, variables_moved : int
        Control edges that keep the order; variables that had to move.
    bound : tuple of str
        Ops that use something that cannot move, such as the iterator that brings the batches.
        They stay with it, whatever the plan says.
    check : Check
        What TensorFlow ran in the first step, compared with the plan.
    pipeline : str
        Its micro-batches and their order; empty if it runs whole.
    """

    name: str
    order_edges: int
    variables_moved: int
    bound: tuple[str, ...]
    check: Check
    pipeline: str = ""

    def __str__(self) -> str:
        kept = f"; kept where their data is: {', '.join(self.bound)}" if self.bound else ""
        return (
            f"{self.name}: {self.check.as_planned} of {self.check.checked} ops run where planned"
            f"{self._elsewhere()}, "
            f"{self.order_edges} control edges keep the order, "
            f"{count(self.variables_moved, 'variable')} moved{kept}"
            f"{'; ' * bool(self.pipeline)}{self.pipeline}"
        )

    def _elsewhere(self) -> str:
        elsewhere = self.check.facts["elsewhere"]
        if not elsewhere["count"]:
            return ""
        others = f" and {count(elsewhere['count'] - 1, 'other')}" * (elsewhere["count"] > 1)
        return f" (TensorFlow moved '{elsewhere['ops'][0]}'{others})"


@dataclass(eq=False)
class Application:
    """A plan that is applied to every function with its ops, and a report of how that went.

    Attributes
    ----------
    path : str
        The plan's file.
    functions : list of PlacedFunction
        One for each traced function that runs placed; none before training begins.
    mismatches : list of str
        One line for each function that has many of the plan's ops, but not exactly these, or that
        trains after the one that has them. It is not changed.
    had_sessions : bool
        Whether the script runs a TensorFlow 1 session, which is not placed.
    had_eager_gradients : bool
        Whether the script takes gradients outside of a graph, where nothing is placed.
    """

    path: str
    functions: list[PlacedFunction] = field(default_factory=list)
    mismatches: list[str] = field(default_factory=list)
    had_sessions: bool = False
    had_eager_gradients: bool = False
    _told_of_batches: bool = False
    _had_profiled_batch: bool = False

    def __str__(self) -> str:
        lines = [*map(str, self.functions), *self.mismatches]
        if lines:
            return "\n".join(lines)
        unused = f"{self.path}: no function with the plan's ops has run yet"
        if self.had_sessions:
            unused += "; TensorFlow 1 sessions run without the plan: run theirs with 'enplace run'"
        if self.had_eager_gradients:
            unused += (
                "; gradients are taken eagerly, where a plan places nothing: put @tf.function "
                "before the function that does a training step, or leave out run_eagerly=True"
            )
        return unused

    def report(self) -> None:
        """Print where the ops ran, or that the plan was not used."""
        for function in self.functions:
            print(f"enplace: {function}", file=sys.stderr)
        if not self.functions and not self.mismatches:
            print(f"enplace: not used: {self}", file=sys.stderr)

    def note(self, line: str) -> None:
        """Add a mismatch, and print it, unless another trace of the function has the same."""
        if line in self.mismatches:
            return
        self.mismatches.append(line)
        print(f"enplace: {line}", file=sys.stderr)

    def note_whole(self, batch: Sequence[tuple[str, Sequence[int]]]) -> None:
        """Say that batches of another shape than a pipeline's run whole."""
        shapes = ", ".join(str(list(shape)) for _, shape in batch)
        print(
            f"enplace: {self.path}: batches of other shapes than {shapes} run whole, where planned",
            file=sys.stderr,
        )

    def note_batches(self, profiled: Shapes, given: Shapes) -> None:
        """Say that batches have other shapes than the profile's: the first time, what to do.

        A shorter batch after one of the right shape is the rest of the data.
        """
        if not (note := about_other_batches(profiled, given)):
            self._had_profiled_batch = True
            return
        if self._had_profiled_batch and may_be_the_rest(profiled, given):
            return
        if self._told_of_batches:
            note = f"other batches than the profile's here, too: {shapes_text(given)}"
        self._told_of_batches = True
        print(f"enplace: {self.path}: {note}", file=sys.stderr)

    def note_scopes(self, n_elsewhere: int) -> None:
        """Say that the plan overrules the script's own ``tf.device`` for some ops."""
        if n_elsewhere:
            print(
                f"enplace: {self.path}: the script puts {count(n_elsewhere, 'op')} elsewhere with "
                f"tf.device; the plan decides instead",
                file=sys.stderr,
            )

    def note_sizes(self, about: str) -> None:
        """Say that ops have other sizes than in the profile."""
        if about:
            print(f"enplace: {self.path}: {about}", file=sys.stderr)

    def note_mismatch(self, what: str, missing: Sequence[str], new: Sequence[str]) -> None:
        """Say which ops of the plan something does not have, or which the plan does not have."""
        kinds = ((missing, " of the plan", "missing"), (new, "", "new"))
        parts = [
            f"{count(len(ops), 'op')}{of} {'is' if len(ops) == 1 else 'are'} {how} ('{ops[0]}')"
            for ops, of, how in kinds
            if ops
        ]
        fix = "profile the model again and make a new plan"
        if self.functions:
            fix = (
                "the plan is for the step that ran before; to place this one as well, profile a "
                "script that begins with it, and apply both plans, or if only its batch is "
                "another, give all batches one size (drop_remainder=True)"
            )
        if has_replicas(new):
            fix = (
                "a plan is for one replica: leave out the tf.distribute strategy, or give it one "
                "device, such as 'CPU:0'"
            )
        self.note(
            f"{self.path} does not fit {what}, which runs unchanged: {', '.join(parts)}; {fix}"
        )


@cache
def say_dropped(argument: str) -> None:
    """Say once that a wish of the script is not obeyed; see :func:`plain_keras`."""
    print(f"enplace: {_DROPPED[argument]}", file=sys.stderr)


def check_devices(wanted: Sequence[str]) -> None:
    """Refuse a plan for devices that TensorFlow does not have here, or will not once it starts."""
    there = [f"/device:{kind}:{i}" for kind in KINDS for i in range(count_devices(kind))]
    if missing := [name for name in wanted if name not in there]:
        raise DevicesError(
            f"the plan uses {missing[0]}, which this process does not have (it has "
            f"{', '.join(there)}); place the model for this machine's devices, and call "
            f"enplace.apply at the start of the script"
        )


def count_devices(kind: str) -> int:
    """Count TensorFlow's devices of a kind, each part of one that the script has split."""
    return sum(map(_n_logical, tf.config.get_visible_devices(kind)))


def _n_logical(physical: Any) -> int:
    return len(tf.config.get_logical_device_configuration(physical) or [physical])
