"""The menus of ops, transfers and idle times, for every view that shows them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from PySide6.QtWidgets import QMenu, QWidget

from enplace.text import count
from enplace.values.schedule import Schedule
from enplace_studio.explain.start_times import Gap
from enplace_studio.model.document import Document
from enplace_studio.model.open_project import OpenProject
from enplace_studio.model.relations import RELATIONS
from enplace_studio.widgets.menu import add_action, new_menu

KEYS = 8  # number of devices with a number key


def op_menu(
    document: Document,
    project: OpenProject,
    parent: QWidget,
    open_card: Callable[[], object] | None = None,
) -> QMenu:
    """Make the menu of the selection; ``open_card`` opens the card under the pointer."""
    ops = sorted(document.selection)
    menu = new_menu(parent)
    if open_card is not None:
        add_action(menu, "Open\tEnter", open_card)
        add_action(menu, "Open or close in place\tX", lambda: document.turn_groups(ops))
    if project.current is not None:
        add_action(menu, "Why here?", lambda: document.ask_why(ops))
    _add_select(menu, document, project, ops)
    menu.addSeparator()
    place, forbid = menu.addMenu("Place on"), menu.addMenu("Forbid on")
    move = menu.addMenu("Move without a pin to")
    for device in range(project.problem.cluster.n_devices):
        name = project.device_label(device)
        _add_place(place, document, name, ops, device)
        add_action(move, name, partial(document.place, ops, device, pin=False))
        kept_off = all((op, device) in project.problem.forbidden for op in ops)
        _add_forbid(forbid, document, name, ops, device, kept_off)
    add_action(menu, "Pin here\tP", lambda: document.pin_here(ops))
    add_action(menu, "Unpin\tU", lambda: document.unpin(ops))
    several = len(ops) > 1
    add_action(menu, "Colocate\tG", lambda: document.colocate(ops), enabled=several)
    add_action(menu, "Separate\tShift+G", lambda: document.separate(ops))
    add_action(menu, "Apply to all layers like this\tL", lambda: document.offer_stamp(ops))
    add_action(menu, "Note…\tN", partial(document.requests.run_action.emit, "note"))
    menu.addSeparator()
    add_action(menu, "Run earlier\tAlt+Left", lambda: document.run_next(ops, earlier=True))
    add_action(menu, "Run later\tAlt+Right", lambda: document.run_next(ops, earlier=False))
    ordered = any(op in document.selection for p in project.problem.before for op in p)
    add_action(menu, "Forget the order", lambda: document.forget_order(ops), enabled=ordered)
    return menu


def transfer_menu(document: Document, schedule: Schedule, transfer: int, parent: QWidget) -> QMenu:
    """Make the menu of a transfer: its producer, its consumers, and all that its link carries."""
    profile, menu = schedule.problem.profile, new_menu(parent)
    tensor = int(schedule.transfer_tensor[transfer])
    ends = int(schedule.transfer_from[transfer]), int(schedule.transfer_to[transfer])
    readers = profile.edge_op[profile.edge_tensor == tensor]
    there = np.unique(readers[schedule.plan.device[readers] == ends[1]]).tolist()
    producer = int(profile.tensor_op[tensor])
    add_action(menu, "Select its producer", lambda: document.select([producer]))
    consumers = f"Select its {count(len(there), 'consumer')}"
    add_action(menu, consumers, lambda: document.select(there), enabled=bool(there))
    add_action(menu, "Select both ends", lambda: document.select([producer, *there]))
    menu.addSeparator()
    same = (schedule.transfer_from == ends[0]) & (schedule.transfer_to == ends[1])
    senders = np.unique(profile.tensor_op[schedule.transfer_tensor[same]]).tolist()
    project = document.project
    if project is not None:
        link = " → ".join(project.device_label(end) for end in ends)
        sent = f"Select all {count(len(senders), 'op')} that send over {link}"
        add_action(menu, sent, lambda: document.select(senders))
    return menu


def gap_menu(document: Document, gap: Gap, parent: QWidget) -> QMenu:
    """Make the menu of an idle time."""
    menu = new_menu(parent)
    add_action(menu, "Why this gap, and what fits?", lambda: document.select([], gap=gap))
    if gap.op is not None:
        op = gap.op
        add_action(menu, "Select the op that ends it", lambda: document.select([op]))
        add_action(menu, "Why does that op not run earlier?", lambda: document.ask_why([op]))
    return menu


def _add_select(menu: QMenu, document: Document, project: OpenProject, ops: list[int]) -> None:
    """Add the ways from the selection to related ops."""
    select = menu.addMenu("Select")
    members = project.whole_groups(ops)
    is_more, text = members != document.selection, "Select the whole group\tShift+W"
    add_action(select, text, lambda: document.select(members), enabled=is_more)
    for relation in RELATIONS:
        text = f"{relation.title}\t{relation.keys}"
        add_action(select, text, partial(document.select_related, relation))


def _add_place(menu: QMenu, document: Document, name: str, ops: list[int], device: int) -> None:
    key = f"\t{device + 1}" if device < KEYS else ""
    add_action(menu, name + key, lambda: document.place(ops, device))


def _add_forbid(
    menu: QMenu, document: Document, name: str, ops: list[int], device: int, kept_off: bool
) -> None:
    """Add an item, ticked if the selection is kept off the device; a second click allows it."""
    change = document.allow if kept_off else document.forbid
    action = add_action(menu, name, lambda: change(ops, device))
    action.setCheckable(True)
    action.setChecked(kept_off)
