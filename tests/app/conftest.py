"""How the tests of the panes open one."""

from collections.abc import Callable

import pytest
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from enplace_studio.document import Document


@pytest.fixture(autouse=True)
def _application(qapp: object) -> None:
    """The studio runs in an application, so every test has one, whichever comes first."""


@pytest.fixture
def opener(qtbot: QtBot) -> Callable[..., QWidget]:
    """Open a pane of some class on a document, at some size, and keep it for the test."""
    kept = []

    def open_it(pane: type[QWidget], document: Document, width: int, height: int) -> QWidget:
        view = pane(document)
        qtbot.addWidget(view)
        kept.append(view)
        view.resize(width, height)
        view.show()
        return view

    return open_it
