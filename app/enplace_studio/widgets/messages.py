"""Messages of the studio: errors in the banner, news in the toast."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable
from html import escape
from pathlib import Path
from types import TracebackType

from PySide6.QtCore import QEvent, QObject, Qt, QTimer
from PySide6.QtWidgets import (
    QApplication,
    QDialog,
    QFrame,
    QHBoxLayout,
    QMessageBox,
    QPushButton,
    QSizePolicy,
    QWidget,
)

from enplace.text import capital, shortened
from enplace_studio.widgets.labels import label, plain_tip
from enplace_studio.widgets.layouts import Part, hbox

log = logging.getLogger(__name__)

TOAST_MS = 6000
MARGIN = 18
WHAT_MAKES_FIT = "What would make it fit?"
"""The question that every place asks where a plan exceeds memory."""


def button(
    text: str, clicked: Callable[[], object] | None = None, *, kind: str = "", tip: str = ""
) -> QPushButton:
    """Make a button; ``kind`` is empty, ``accent``, ``link`` or ``quiet``."""
    made = QPushButton(text)
    made.setToolTip(plain_tip(tip))
    made.setCursor(Qt.CursorShape.PointingHandCursor)
    if kind:
        made.setProperty(kind, True)
    if clicked is not None:
        made.clicked.connect(lambda: clicked())
    return made


class DialogButtons(QHBoxLayout):
    """The last row of a dialog: reject and accept on the right, other buttons on the left.

    A dialog that may be accepted with Enter calls ``accept.setDefault(True)``.
    """

    def __init__(
        self, dialog: QDialog, accept: str, *others: QPushButton, reject: str = "Cancel"
    ) -> None:
        super().__init__()
        self.accept = button(accept, dialog.accept, kind="accent")
        self.reject = button(reject, dialog.reject)
        for other in others:
            self.addWidget(other)
        self.addStretch(1)
        self.addWidget(self.reject)
        self.addWidget(self.accept)


def close_row(dialog: QDialog) -> Part:
    """Make the last part of a dialog that only shows something."""
    return button("Close", dialog.accept), Qt.AlignmentFlag.AlignRight


class Banner(QFrame):
    """An error above the panes, shown until it is closed or something succeeds."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("banner")
        self._text = label("", wraps=True)
        self._text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        close = button("Close", self.hide, kind="link")
        hbox((self._text, 1), close, on=self, margins=(12, 8, 8, 8))
        self.hide()

    @property
    def text(self) -> str:
        return self._text.text()

    def show_error(self, text: str) -> None:
        """Show one clear line."""
        text = shortened(text)
        self._text.setText(capital(text) + ("" if text.endswith(".") else "."))
        self.show()


class _Floating(QFrame):
    """A box that floats above the lower edge of a widget, as wide as its text if that fits."""

    above_px = MARGIN
    """Its distance from that edge."""

    def __init__(self, parent: QWidget, left_px: Callable[[], int] = lambda: 0) -> None:
        super().__init__(parent)
        self._left_px = left_px
        self.setObjectName("toast")
        self._text = label("")
        self._around = parent
        parent.installEventFilter(self)
        self.hide()

    @property
    def text(self) -> str:
        return self._text.text()

    def float_up(self) -> None:
        """Show it above everything else."""
        self._settle()
        self.show()
        self.raise_()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Resize:
            self._settle()
        return False

    def _settle(self) -> None:
        free = self._around.size()
        self._text.setWordWrap(False)
        self.adjustSize()
        left = max(self._left_px(), MARGIN)
        width = free.width() - left - MARGIN
        if self.width() > width:
            self._text.setWordWrap(True)
            self.resize(width, self.heightForWidth(width))
        x = (free.width() - self.width()) // 2
        self.move(max(left, x), free.height() - self.height() - self.above_px)


class Offer(_Floating):
    """Something about to be done, shown until the user accepts or cancels it."""

    def __init__(
        self, parent: QWidget, accept: Callable[[], object], cancel: Callable[[], object]
    ) -> None:
        super().__init__(parent)
        self.accept, self.cancel = button("", accept, kind="accent"), button("Cancel", cancel)
        for made in (self.cancel, self.accept):
            made.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        parts = (self._text, 1), self.cancel, self.accept
        hbox(*parts, on=self, spacing=10, margins=(14, 10, 10, 10))

    def show_offer(self, title: str, text: str, accept: str) -> None:
        """Show what would be done, what it costs, and a button with a name."""
        self._text.setTextFormat(Qt.TextFormat.RichText)
        self._text.setText(f"<b>{escape(title)}</b><br>{escape(text)}")
        self.accept.setText(accept)
        self.float_up()


class Toast(_Floating):
    """A line about what was just done, shown for a few seconds; Undo takes back that edit.

    While another application is in front, it stays, and the task bar points to the studio. It lies
    upon the status line, right of ``left_px``, where it covers nothing that the user works on.
    """

    above_px = 3

    def __init__(
        self, parent: QWidget, undo: Callable[[], object], left_px: Callable[[], int] = lambda: 0
    ) -> None:
        super().__init__(parent, left_px)
        self._undo = button("Undo", undo, kind="link")
        self._undo.clicked.connect(self.hide)
        hbox(self._text, self._undo, on=self, margins=(14, 8, 10, 8))
        self._timer = QTimer(self, interval=TOAST_MS, singleShot=True)
        self._timer.timeout.connect(self.hide)
        application = QApplication.instance()
        assert isinstance(application, QApplication)
        application.applicationStateChanged.connect(self._start_timer)

    def show_text(self, text: str, undo: bool = False) -> None:
        """Show a line; ``undo`` adds the Undo button."""
        self._text.setText(text + ".")
        self._undo.setVisible(undo)
        self.float_up()
        QApplication.alert(self.window())
        self._start_timer()

    def _start_timer(self) -> None:
        if QApplication.applicationState() == Qt.ApplicationState.ApplicationActive:
            self._timer.start()

    def drop_undo(self) -> None:
        """Hide an offered Undo: another edit would be taken back."""
        if not self._undo.isHidden():
            self.hide()


def install_excepthook(log_file: Path) -> None:
    """Log every unexpected exception and report it in a box; the studio keeps running."""
    showing = False

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        nonlocal showing
        if issubclass(kind, KeyboardInterrupt):
            QApplication.quit()
            return
        details = "".join(traceback.format_exception(kind, error, trace))
        log.error("unexpected error\n%s", details)
        if showing or QApplication.instance() is None:
            return
        showing = True
        try:
            _show_fault(details, log_file)
        finally:
            showing = False

    sys.excepthook = hook


def _show_fault(details: str, log_file: Path) -> None:
    box = QMessageBox(QApplication.activeWindow())
    box.setIcon(QMessageBox.Icon.NoIcon)
    box.setWindowTitle("Something went wrong")
    box.setText("The studio had an internal error. Your work is safe; you can continue.")
    box.setInformativeText(f"If it happens again, please send the log:\n{log_file}")
    box.setDetailedText(details)
    box.exec()
