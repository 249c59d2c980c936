"""Fixtures that open a pane."""

from collections.abc import Callable

import pytest
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from enplace_studio.document import Document


@pytest.fixture(autouse=True)
def _application(qapp: object) -> None:
    """Make the studio's application for every test, whatever test runs first."""


@pytest.fixture
def opener(qtbot: QtBot) -> Callable[..., QWidget]:
    """Return a function that opens a pane on a document and keeps it for the test."""
    kept = []

    def open_it(pane: type[QWidget], document: Document, width: int, height: int) -> QWidget:
        view = pane(document)
        qtbot.addWidget(view)
        kept.append(view)
        view.resize(width, height)
        view.show()
        return view

    return open_it
