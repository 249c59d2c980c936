"""Previews: the effect of placing ops elsewhere, without changing anything."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from PySide6.QtCore import QObject, Signal

from enplace.errors import EnplaceError
from enplace.text import percent, size
from enplace.values.problem import Problem
from enplace.values.profile import IntArray
from enplace.values.schedule import Schedule
from enplace.values.spare_memory import is_nearly_full
from enplace_studio.explain.reasons import Why, why_not, why_there
from enplace_studio.explain.start_times import explain_step
from enplace_studio.jobs.background import Background
from enplace_studio.jobs.call_later import take_turn
from enplace_studio.model.edits import moved_schedule, unit_ops
from enplace_studio.model.open_project import OpenProject
from enplace_studio.model.prices import change_text, price_text

LIMIT = 64
"""Largest number of previews kept for a project."""

_Key = tuple[frozenset[int], int]


@dataclass(frozen=True, eq=False)
class Preview:
    """The effect of placing some ops on a device.

    Attributes
    ----------
    value_us, delta_us : float
        What the plan minimises after the move, such as its step time, and its change; inf if the
        ops may not run on the device.
    price, change : str
        The same two as texts.
    peak_bytes : int array, shape (n_devices,)
    why_not : str
        Why the ops may not run there; empty if they may.
    reason, whys : str and tuple of Why
        Why the step is longer or shorter, in a sentence and step by step; only for previews made
        by :meth:`Previews.start`.
    """

    value_us: float
    delta_us: float
    peak_bytes: IntArray
    fits: bool
    why_not: str = ""
    reason: str = ""
    whys: tuple[Why, ...] = ()
    price: str = ""
    change: str = ""


class Previews(QObject):
    """The previews of the open project."""

    ready = Signal(object, int, object)
    """Emitted with the ops, the device and the :class:`Preview` after :meth:`start`."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._project: OpenProject | None = None
        self._known: dict[_Key, Preview] = {}
        self._background = Background(self)

    def follow(self, project: OpenProject | None) -> None:
        """Preview edits of this project from now on."""
        self._project = project
        self._known.clear()
        self._background.forget()

    def get(self, ops: Collection[int], device: int) -> Preview | None:
        """Return the effect of running these ops on a device; None without a plan."""
        key = (frozenset(ops), device)
        if (
            key not in self._known
            and self._project is not None
            and self._project.current is not None
        ):
            schedule = self._project.current.schedule
            # A drag waits for this, and shows no reason.
            self._keep(key, find_preview(self._project.problem, schedule, *key, explain=False))
            take_turn()
        return self._known.get(key)

    def start(self, ops: Collection[int], device: int) -> None:
        """Simulate and explain in a thread; :attr:`ready` is sent unless the project changes."""
        project, key = self._project, (frozenset(ops), device)
        known = self._known.get(key)
        if known is not None and (known.reason or known.why_not):
            self.ready.emit(*key, known)
        elif project is not None and project.current is not None:
            problem, schedule = project.problem, project.current.schedule
            self._background.start(
                lambda: find_preview(problem, schedule, *key, explain=True),
                lambda preview: self._keep(key, preview),
            )

    def _keep(self, key: _Key, preview: Preview) -> None:
        if len(self._known) >= LIMIT:
            self._known.clear()
        self._known[key] = preview
        self.ready.emit(*key, preview)


def lack(schedule: Schedule) -> str:
    """Say what memory a schedule lacks: ``GPU 0 needs 1.5 GiB more``; empty if it fits."""
    if schedule.fits:
        return ""
    cluster = schedule.problem.cluster
    over = schedule.peak_bytes - cluster.capacity_bytes
    worst = int(np.argmax(over))
    return f"{cluster.devices[worst].label} needs {size(int(over[worst]))} more"


def unfit_text(schedule: Schedule) -> str:
    """Say what is known about plans that fit, and what this one lacks; empty if it fits."""
    verdict = schedule.fit_verdict
    return verdict and f"{verdict[0].lower()}{verdict[1:]}: {lack(schedule)}"


def full_text(schedule: Schedule) -> str:
    """Name the device that a schedule nearly fills: ``GPU 0 99.6 % full``; empty if none."""
    devices = schedule.problem.cluster.devices
    full = [
        (peak / device.memory_bytes, device.label)
        for device, peak in zip(devices, schedule.peak_bytes.tolist(), strict=True)
        if is_nearly_full(device, peak)
    ]
    return f"{max(full)[1]} {percent(max(full)[0])} full" if full else ""


def peak_text(project: OpenProject, peak_bytes: IntArray, device: int | None = None) -> str:
    """Describe the peak memory of a device, or of the fullest; of one that is too full, if any."""
    capacity_bytes = project.problem.cluster.capacity_bytes
    full = np.flatnonzero(peak_bytes > capacity_bytes).tolist()
    fullest = int(np.argmax(peak_bytes / np.maximum(capacity_bytes, 1)))
    shown = device if device in full or (device is not None and not full) else fullest
    assert shown is not None
    peak, capacity = size(int(peak_bytes[shown])), size(int(capacity_bytes[shown]))
    text = f"{project.device_label(shown)}: {peak} of {capacity} at the peak"
    return text + (", does not fit" if full else "")


def find_preview(
    problem: Problem, before: Schedule, ops: frozenset[int], device: int, explain: bool
) -> Preview:
    """Simulate the plan of a schedule with ops on another device; explain the change if asked."""
    moved = unit_ops(problem, ops)
    asked = np.array(sorted(ops), dtype=np.int64)
    if why := why_not(problem, asked, device) or why_not(problem, moved, device):
        return Preview(np.inf, np.inf, before.peak_bytes, False, why.tip, whys=(why,))
    try:
        after = moved_schedule(problem, before.plan, ops, device)
    except EnplaceError as error:
        return Preview(np.inf, np.inf, before.peak_bytes, False, str(error))
    is_of_step = after.plan.value_us is None
    reason = explain_step(before, after) if explain and is_of_step else ""
    whys = tuple(why_there(before, after, moved, device)) if explain else ()
    return Preview(
        after.value_us,
        after.value_us - before.value_us,
        after.peak_bytes,
        after.fits,
        reason=reason,
        whys=whys,
        price=price_text(after),
        change=change_text(before, after),
    )
