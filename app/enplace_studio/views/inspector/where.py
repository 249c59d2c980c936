"""The device of the selection, and those it could move to: a button for each."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QTimer, Signal
from PySide6.QtWidgets import QMenu, QWidget

from enplace.pictures.palette import colour_numbers
from enplace.text import size
from enplace.values.profile import IntArray
from enplace_studio.model.document import Document
from enplace_studio.model.open_project import OpenProject
from enplace_studio.model.previews import Preview
from enplace_studio.views.inspector.inspector_facts import where
from enplace_studio.widgets.fact_widgets import COLUMN_PX, Columns, DeviceButton
from enplace_studio.widgets.labels import plain_tip
from enplace_studio.widgets.menu import add_action, new_menu, offer_menu

PREVIEW_DELAY_MS = 120
_MOST_WIDE = 9
"""Largest number of devices with wide buttons: eight GPUs and their host."""
_COMPACT_PX = 56
_UNCHANGED_US = 0.5


class DeviceGrid(Columns):
    """Buttons that place the selection; each shows the effect, computed one after the other."""

    chosen = Signal(int)
    """Emitted with the device that the user chose."""
    explained = Signal(int, object)
    """Emitted with a device, and the :class:`Preview` that says why the step would change there."""

    def __init__(
        self,
        document: Document,
        project: OpenProject,
        ops: IntArray,
        parent: QWidget | None = None,
    ) -> None:
        n_devices = project.problem.cluster.n_devices
        compact = n_devices > _MOST_WIDE
        super().__init__(_COMPACT_PX if compact else COLUMN_PX, 4 if compact else 2, parent)
        self._document, self._project, self._ops = document, project, ops
        self._selection = frozenset(ops.tolist())
        self.buttons = [self._make_button(device, compact) for device in range(n_devices)]
        self.fill(self.buttons)
        self._mark_present()
        self._timer = QTimer(self, singleShot=True, interval=PREVIEW_DELAY_MS)
        self._timer.timeout.connect(self._preview_next)
        self._waiting = [b.device for b in self.buttons if not b.isChecked()]
        document.previews.ready.connect(self._show_preview)
        if document.current is not None and self._waiting:
            self._timer.start()

    @property
    def others(self) -> list[int]:
        """The devices that do not run the whole selection."""
        return [button.device for button in self.buttons if not button.isChecked()]

    def _make_button(self, device: int, compact: bool) -> DeviceButton:
        colour = colour_numbers(self._project.problem.cluster)[device]
        button = DeviceButton(device, self._project.device_label(device), colour, compact)
        button.clicked.connect(partial(self.chosen.emit, device))
        offer_menu(button, lambda at: self.menu_of(button))
        button.setEnabled(self._document.current is not None)
        return button

    def _mark_present(self) -> None:
        """Check the button of the device that runs the whole selection."""
        if self._document.schedule is not None:
            counts = where(self._document.schedule, self._ops).tolist()
            for button, n_here in zip(self.buttons, counts, strict=True):
                button.setChecked(n_here == len(self._ops))

    def _preview_next(self) -> None:
        """Start the preview of one device; its result starts the next."""
        if self._waiting and self._document.current is not None:
            self._document.previews.start(self._selection, self._waiting.pop(0))

    def _show_preview(self, ops: frozenset[int], device: int, preview: Preview) -> None:
        button = self.buttons[device]
        if not ops == self._selection == self._document.selection or button.isChecked():
            return  # of another selection, which a drag has just begun with
        self._preview_next()
        if preview.why_not:
            button.setEnabled(False)
            schedule = self._document.schedule
            some_here = schedule is not None and where(schedule, self._ops)[device]
            button.set_note("not all" if some_here else "not here")
            button.setToolTip(plain_tip(preview.why_not))
            self.explained.emit(device, preview)
            return
        if preview.reason:
            self.explained.emit(device, preview)
        change = preview.delta_us
        role = "good" if change < -_UNCHANGED_US else "bad" if change > _UNCHANGED_US else "dim"
        text = preview.change if abs(change) > _UNCHANGED_US else "no change"
        button.set_note(text if preview.fits else "no room", role if preview.fits else "bad")
        peak = size(int(preview.peak_bytes[button.device]))
        fits = "" if preview.fits else "; does not fit"
        tip = f"{button.text()}: {preview.price} ({text}), {peak} at the peak{fits}"
        button.setToolTip(plain_tip(tip))

    def menu_of(self, button: DeviceButton) -> QMenu:
        """Make the menu that moves without a pin, or keeps the selection off the device."""
        menu, name = new_menu(button), button.text()
        document, ops, device = self._document, self._selection, button.device
        move, can_move = partial(document.place, ops, device, pin=False), button.isEnabled()
        add_action(menu, f"Move to {name} without a pin", move, enabled=can_move)
        problem = document.problem
        if problem is not None and any((op, device) in problem.forbidden for op in ops):
            add_action(menu, f"Allow {name} again", lambda: document.allow(ops, device))
        else:
            add_action(menu, f"Keep off {name}", lambda: document.forbid(ops, device))
        return menu
