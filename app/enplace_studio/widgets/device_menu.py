"""The menu of a device, for every view that shows one."""

from __future__ import annotations

import numpy as np
from PySide6.QtWidgets import QMenu, QWidget

from enplace.text import count
from enplace_studio.model.document import Document
from enplace_studio.widgets.menu import add_action, new_menu

ABOUT_LOCK = "What runs there stays, and nothing is added, by hand or by Solve, until you unlock it"


def device_menu(document: Document, device: int, parent: QWidget) -> QMenu:
    """Make the menu that selects what runs on a device, and locks the device."""
    menu = new_menu(parent)
    menu.setToolTipsVisible(True)
    project, schedule = document.project, document.schedule
    if project is None:
        return menu
    where = project.device_label(device)
    here = () if schedule is None else np.flatnonzero(schedule.plan.device == device).tolist()
    select = f"Select the {count(len(here), 'op')} on {where}"
    add_action(menu, select, lambda: document.select(here), enabled=bool(here))
    if device in project.problem.locked:
        add_action(menu, f"Unlock {where}", lambda: document.unlock(device))
    else:
        lock = add_action(menu, f"Lock {where} as it is", lambda: document.lock(device))
        lock.setEnabled(schedule is not None)
        lock.setToolTip(ABOUT_LOCK)
    return menu
