"""The page shown while nothing is open: samples, recent files, and buttons to open more."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent, QMouseEvent
from PySide6.QtWidgets import QFrame, QGridLayout, QHBoxLayout, QScrollArea, QVBoxLayout, QWidget

from enplace.frameworks.registry import frameworks
from enplace.readers.samples import Sample, samples
from enplace.text import elide_middle
from enplace_studio.messages import button
from enplace_studio.panel import label, named, plain_tip
from enplace_studio.theme import theme

COLUMNS = 3
CARD_HEIGHT = 116
PAGE_WIDTH = 940


class StartPage(QScrollArea):
    """Cards of samples and a list of recent files."""

    sample_chosen = Signal(object)
    file_chosen = Signal(object)
    open_pressed = Signal()
    model_pressed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setWidgetResizable(True)
        page = named(QWidget(), "page")
        page.setMaximumWidth(PAGE_WIDTH)
        self._recent = QVBoxLayout()
        layout = QVBoxLayout(page)
        layout.setContentsMargins(24, 36, 24, 24)
        layout.setSpacing(10)
        layout.addLayout(self._welcome())
        layout.addSpacing(14)
        layout.addWidget(label("Start from a sample", "title"))
        layout.addLayout(self._cards())
        layout.addSpacing(14)
        layout.addLayout(self._recent)
        layout.addStretch(1)
        outer = named(QWidget(), "page")
        row = QHBoxLayout(outer)
        row.setContentsMargins(0, 0, 0, 0)
        row.addStretch(1)
        row.addWidget(page, 20)
        row.addStretch(1)
        self.setWidget(outer)

    def _welcome(self) -> QHBoxLayout:
        texts = QVBoxLayout()
        texts.addWidget(label("Open a model, or start from a sample", "welcome"))
        for line in (
            "Enplace decides where every op of a model runs, and in what order, on your GPUs.",
            "Press Solve, look at the plan, change what you know better, solve around your "
            "changes, and export it.",
            "It opens Enplace profiles and projects (.enplace), profiles as JSON, GPU profiles "
            "(.json.gz) and operator graphs of Tarnawski et al. 2020 (.json).",
            *(
                f"With {framework.name} installed, it also profiles your own model: "
                f"{framework.models}. Drop it here."
                for framework in frameworks().values()
            ),
        ):
            shown = label(line, "dim")
            shown.setWordWrap(True)
            texts.addWidget(shown)
        row = QHBoxLayout()
        row.addLayout(texts, 1)
        row.addSpacing(24)
        self.open_button = button("Open a profile…", self.open_pressed.emit, kind="accent")
        self.model_button = button("Open a model…", self.model_pressed.emit)
        buttons = QVBoxLayout()
        buttons.addWidget(self.open_button)
        buttons.addWidget(self.model_button)
        buttons.addStretch()
        row.addLayout(buttons)
        return row

    def _cards(self) -> QGridLayout:
        grid = QGridLayout()
        grid.setSpacing(10)
        self.cards = [_Card(sample) for sample in samples()]
        for number, card in enumerate(self.cards):
            card.pressed.connect(self.sample_chosen)
            grid.addWidget(card, number // COLUMNS, number % COLUMNS)
        for column in range(COLUMNS):
            grid.setColumnStretch(column, 1)
        return grid

    def show_recent(self, paths: Iterable[Path]) -> None:
        """List the recently opened files."""
        while (item := self._recent.takeAt(0)) is not None:
            if widget := item.widget():
                widget.deleteLater()
        for number, path in enumerate(paths):
            if number == 0:
                self._recent.addWidget(label("Recent", "title"))
            link = button(f"{path.name}   in {elide_middle(str(path.parent), 80)}", kind="quiet")
            link.clicked.connect(partial(self.file_chosen.emit, path))
            link.setToolTip(plain_tip(str(path)))
            self._recent.addWidget(link, 0, Qt.AlignmentFlag.AlignLeft)


class _Card(QFrame):
    """One sample; click it, or press Enter on it."""

    pressed = Signal(object)

    def __init__(self, sample: Sample) -> None:
        super().__init__()
        self.setProperty("card", True)
        self.setProperty("clickable", True)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAccessibleName(sample.title)
        self.setFixedHeight(round(CARD_HEIGHT * theme.scale))
        self.sample = sample
        description = label(sample.description, "dim")
        description.setWordWrap(True)
        title = label(sample.title, "title")
        title.setWordWrap(True)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(14, 12, 14, 14)
        layout.addWidget(title)
        layout.addWidget(description)
        layout.addStretch()

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        inside = self.rect().contains(event.position().toPoint())
        if event.button() == Qt.MouseButton.LeftButton and inside:
            self.pressed.emit(self.sample)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space):
            self.pressed.emit(self.sample)
        else:
            super().keyPressEvent(event)
