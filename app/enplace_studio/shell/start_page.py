"""The page shown while nothing is open: samples, recent files, and buttons to open more."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from PySide6.QtCore import QRectF, Qt, Signal
from PySide6.QtGui import QKeyEvent, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QFrame, QGridLayout, QHBoxLayout, QScrollArea, QVBoxLayout, QWidget

from enplace.frameworks.registry import frameworks
from enplace.readers.samples import Sample, Thumbnail, samples, thumbnails
from enplace.text import count, elide_middle, size
from enplace_studio.widgets.labels import ElidedLabel, label, named, paragraph, plain_tip
from enplace_studio.widgets.layouts import STRETCH, hbox, vbox
from enplace_studio.widgets.messages import button
from enplace_studio.widgets.theme import theme

COLUMNS = 3
CARD_HEIGHT = 152
PICTURE_HEIGHT = 84
PAGE_WIDTH = 980

SENTENCE = "See where every op of your model should run, and what you gain"
STEPS = (
    "Enplace decides which of your GPUs runs each op, and in what order. Press Solve, overrule "
    "what you know better, and export the plan for your training script."
)
FILES = (
    "Enplace profiles and projects (.enplace), profiles as JSON, GPU profiles (.json.gz) and "
    "operator graphs of Tarnawski et al. 2020 (.json)."
)


class StartPage(QScrollArea):
    """Cards of samples and a list of recent files."""

    sample_chosen = Signal(object)
    file_chosen = Signal(object)
    open_pressed = Signal()
    model_pressed = Signal()
    serve_pressed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setAccessibleName("Start page")
        self.setWidgetResizable(True)
        page = named(QWidget(), "page")
        page.setMaximumWidth(PAGE_WIDTH)
        self._recent, self.opening = vbox(), label("", "title", wraps=True)
        vbox(
            self._welcome(),
            self.opening,
            label("Start from a sample", "title"),
            self._cards(),
            14,
            self._recent,
            14,
            self._formats(),
            STRETCH,
            on=page,
            spacing=10,
            margins=(24, 36, 24, 24),
        )
        outer = named(QWidget(), "page")
        hbox(STRETCH, (page, 20), STRETCH, on=outer, margins=(0, 0, 0, 0))
        self.setWidget(outer)

    def _welcome(self) -> QHBoxLayout:
        sentence, steps = label(SENTENCE, "welcome", wraps=True), label(STEPS, wraps=True)
        texts = vbox(sentence, steps, (STRETCH, 0), spacing=6)
        self.open_button = button("Open a profile…", self.open_pressed.emit, kind="accent")
        self.model_button = button("Open a model…", self.model_pressed.emit)
        self.serve_button = button("Serve a model…", self.serve_pressed.emit)
        buttons = vbox(self.open_button, self.model_button, self.serve_button, (STRETCH, 0))
        return hbox((texts, 1), 24, buttons)

    def _formats(self) -> QVBoxLayout:
        """Say what can be opened."""
        models = [
            paragraph(f"With {framework.name} installed, a model too: {framework.models}.")
            for framework in frameworks().values()
        ]
        return vbox(label("Or drop a file here", "title"), paragraph(FILES), *models, spacing=4)

    def _cards(self) -> QGridLayout:
        grid = QGridLayout()
        grid.setSpacing(10)
        known = thumbnails()
        self.cards = [_Card(sample, known[sample.name]) for sample in samples()]
        for number, card in enumerate(self.cards):
            card.pressed.connect(self.sample_chosen)
            grid.addWidget(card, number // COLUMNS, number % COLUMNS)
        for column in range(COLUMNS):
            grid.setColumnStretch(column, 1)
        return grid

    def show_opening(self, name: str) -> None:
        """Say what is being opened; with an empty name, nothing is."""
        self.opening.setText(f"Opening {elide_middle(name, 80)} …" if name else "")

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

    def __init__(self, sample: Sample, thumbnail: Thumbnail) -> None:
        super().__init__()
        self.setProperty("card", True)
        self.setProperty("clickable", True)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        needs = f"{size(thumbnail.one_gpu_bytes)} on one GPU"
        facts = f"{count(thumbnail.ops, 'op')}  ·  {needs}"
        self.setAccessibleName(f"{sample.title}, {facts}")
        self.setToolTip(plain_tip(sample.description))
        self.setAccessibleDescription(sample.description)
        self.setFixedHeight(round(CARD_HEIGHT * theme.scale))
        self.sample = sample
        title = ElidedLabel("title")
        title.set_text(sample.title)
        parts = _Picture(thumbnail), 6, title, label(facts, "dim"), (STRETCH, 0)
        vbox(*parts, on=self, spacing=4, margins=(14, 14, 14, 12))

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        inside = self.rect().contains(event.position().toPoint())
        if event.button() == Qt.MouseButton.LeftButton and inside:
            self.pressed.emit(self.sample)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space):
            self.pressed.emit(self.sample)
        else:
            super().keyPressEvent(event)


class _Picture(QWidget):
    """The groups of a sample in the colours of the devices that the expert gives them."""

    def __init__(self, thumbnail: Thumbnail) -> None:
        super().__init__()
        self._boxes = thumbnail.boxes
        self.setFixedHeight(round(PICTURE_HEIGHT * theme.scale))

    def paintEvent(self, event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(Qt.PenStyle.NoPen)
            across, down = self.width() / 1000, self.height() / 1000
            for left, top, width, height, colour in self._boxes:
                painter.setBrush(theme.device_color(colour))
                box = QRectF(left * across, top * down, width * across, height * down)
                painter.drawRoundedRect(box, 2, 2)
