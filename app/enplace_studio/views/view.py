"""The view protocol: how a folder describes its view to the window.

A view is a folder whose ``__init__`` holds a :class:`View` named ``VIEW``, and a module in it with
a function ``make_view(document, solver)``. One line in :mod:`enplace_studio.views` registers it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from importlib.abc import InspectLoader
from importlib.util import find_spec
from typing import Any, Protocol, runtime_checkable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QWidget

from enplace_studio.jobs.solver import Solver
from enplace_studio.model.document import Document
from enplace_studio.widgets.pictures import Drawing

DEVICE_KEYS = 8
"""Number of keys, from 1 on, that pin the selection to a device."""


@runtime_checkable
class Zoomable(Protocol):
    """A view, or a part of one, that the actions "Fit to window" and "Go to selection" work on."""

    def fit(self) -> None:
        """Zoom so that everything is visible."""

    def focus_selection(self) -> None:
        """Zoom to the selection."""


@runtime_checkable
class Pictured(Protocol):
    """A view that can be saved as a picture; every :class:`Panel` can."""

    def drawing(self) -> Drawing | None:
        """Return its picture; None if there is nothing to show."""


@runtime_checkable
class Commanding(Protocol):
    """A view with further commands for the palette."""

    def commands(self) -> Iterable[tuple[str, Callable[[], object]]]:
        """Return the title and the function of each command."""


@dataclass(frozen=True)
class ViewAction:
    """Something the user can do with a view while a model is open.

    Attributes
    ----------
    menu : str
        One of :data:`enplace_studio.shell.actions.MENUS`.
    keys : tuple of str
        Shortcuts as Qt writes them; the first is shown.
    run : callable
        Function that takes the view's widget.
    group : int
        Actions of one menu with the same number are shown together.
    """

    id: str
    title: str
    menu: str
    keys: tuple[str, ...]
    run: Callable[[Any], object]
    group: int = 0


@dataclass(frozen=True)
class View:
    """The description of a view for the window.

    Attributes
    ----------
    module : str
        The module with ``make_view``; imported when the first model opens, not before.
    area : Qt.DockWidgetArea or None
        Its default dock area; None for a view in the middle. The first of these is shown when a
        model opens, another one only when asked for.
    keeps_docks : bool
        Of another one: whether all docks stay around it; otherwise, those on the left do.
    is_used : callable or None
        Says of a document whether it has something for this view. The pane is closed until then;
        afterwards, it is as the user leaves it. None if it is open from the beginning.
    width, height : int or None
        Preferred size in pixels in a window of usual size; None leaves it to the window. A
        :class:`Panel` says itself how high it wants to be.
    """

    id: str
    title: str
    module: str
    area: Qt.DockWidgetArea | None = None
    width: int | None = None
    height: int | None = None
    actions: tuple[ViewAction, ...] = ()
    is_used: Callable[[Document], bool] | None = None
    keeps_docks: bool = False

    @property
    def fault(self) -> str:
        """What is wrong with the module; empty if nothing is. It is not imported for this."""
        if "make_view" in _top_level_names(self.module):
            return ""
        return f"there is no module '{self.module}' with a function make_view(document, solver)"

    def load(self) -> Any:
        """Import the module with its widget."""
        return importlib.import_module(self.module)

    def make(self, document: Document, solver: Solver) -> QWidget:
        """Make the widget, which reads the document and sends requests to it."""
        widget: QWidget = self.load().make_view(document, solver)
        return widget


def _top_level_names(module: str) -> Collection[str]:
    """Return the names at the top level of a module's code; empty if there is no such module."""
    if module in sys.modules:
        return vars(sys.modules[module])
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:  # not even its folder
        return ()
    loader = spec.loader if spec else None
    code = loader.get_code(module) if isinstance(loader, InspectLoader) else None
    return code.co_names if code else ()
