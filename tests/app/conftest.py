"""Fixtures of the studio's tests: one that opens a pane, and a bot that waits long enough."""

from collections.abc import Callable, Iterator
from functools import partialmethod

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from enplace.placers.enplace.kernels import load_all_kernels
from enplace_studio.jobs import call_later
from enplace_studio.model.document import Document

GUARD_MS = 300_000
"""Longer than the slowest machine takes; nothing that has not happened by then will."""


class PatientBot(QtBot):
    """A bot whose waits fail only if what they wait for never happens."""

    waitExposed = partialmethod(QtBot.waitExposed, timeout=GUARD_MS)  # noqa: N815
    waitSignal = partialmethod(QtBot.waitSignal, timeout=GUARD_MS)  # noqa: N815
    waitUntil = partialmethod(QtBot.waitUntil, timeout=GUARD_MS)  # noqa: N815


@pytest.fixture
def qtbot(qapp: object, request: pytest.FixtureRequest) -> PatientBot:
    return PatientBot(request)


@pytest.fixture(autouse=True)
def _application(qapp: object) -> None:
    """Make the studio's application for every test, whatever test runs first."""


@pytest.fixture(autouse=True)
def without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin at once what waits until the user pauses."""
    monkeypatch.setattr(call_later, "PAUSE_MS", 0)


@pytest.fixture(autouse=True)
def no_button_stays_pressed(qapp: object) -> Iterator[None]:
    """Release the mouse's button after a test that stops in the middle of a drag.

    The application knows which buttons are pressed, whatever widget was pressed; as long as one is,
    the studio moves no pane.
    """
    yield
    if QApplication.mouseButtons() != Qt.MouseButton.NoButton:
        QTest.mouseRelease(QWidget(), Qt.MouseButton.LeftButton)
    assert QApplication.mouseButtons() == Qt.MouseButton.NoButton


@pytest.fixture(scope="session")
def loaded_kernels() -> None:
    """Load the kernels that each worker of a solver needs; workers that are forked have them."""
    load_all_kernels(lambda _: None)


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
