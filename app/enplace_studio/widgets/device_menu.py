"""The menu of a device, for every view that shows one."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QMenu, QWidget

from enplace.text import count
from enplace_studio.model.document import Document

ABOUT_LOCK = "What runs there stays, and nothing is added, by hand or by Solve, until you unlock it"


def device_menu(document: Document, device: int, parent: QWidget) -> QMenu:
    """Make the menu that selects what runs on a device, and locks the device."""
    menu = QMenu(parent)
    menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    menu.setToolTipsVisible(True)
    project, schedule = document.project, document.schedule
    if project is None:
        return menu
    where = project.device_label(device)
    here = () if schedule is None else np.flatnonzero(schedule.plan.device == device).tolist()
    select = menu.addAction(f"Select the {count(len(here), 'op')} on {where}")
    select.setEnabled(bool(here))
    select.triggered.connect(lambda: document.select(here))
    if device in project.problem.locked:
        menu.addAction(f"Unlock {where}").triggered.connect(lambda: document.unlock(device))
    else:
        lock = menu.addAction(f"Lock {where} as it is")
        lock.setEnabled(schedule is not None)
        lock.setToolTip(ABOUT_LOCK)
        lock.triggered.connect(lambda: document.lock(device))
    return menu
