"""The dialog that plans how to serve a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QFontDatabase, QGuiApplication
from PySide6.QtWidgets import (
    QComboBox,
    QDialog,
    QFileDialog,
    QLayout,
    QLineEdit,
    QPlainTextEdit,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from enplace.errors import DoesNotFitError, EnplaceError
from enplace.serving.answer import PROGRAMS, Serving, find_serving
from enplace.serving.decoder import CACHES
from enplace.serving.machine import CARDS
from enplace.serving.search import LATENCY_PER_TOKEN, TOKENS_PER_SECOND
from enplace.serving.weights import bundled
from enplace.text import as_clause
from enplace_studio.jobs.background import Background
from enplace_studio.serving.bars import CardBar
from enplace_studio.serving.sliders import StepSlider
from enplace_studio.widgets.column import Column
from enplace_studio.widgets.drawing import LEFT, RIGHT
from enplace_studio.widgets.labels import BETWEEN_FACTS, label, paragraph, set_role
from enplace_studio.widgets.layouts import STRETCH, hbox, vbox
from enplace_studio.widgets.messages import DialogButtons, button
from enplace_studio.widgets.panel import Panel
from enplace_studio.widgets.sizes import give_size
from enplace_studio.widgets.tables import show_rows
from enplace_studio.widgets.theme import theme

SIZE, ASKED_WIDTH = (1120, 600), 290
ROW_HEIGHT, TEXT_HEIGHT, MOST_TABLE_WIDTH = 24, 118, 520
MODEL, FIRST_CARDS = "llama-3.1-8b", "rtx-4090,rtx-3060"
CONTEXT, MOST_CONTEXT, MOST_REQUESTS = 4096, 131_072, 512
PAUSE_MS = 120
"""While a slider moves, nothing is computed until it rests for this long."""

OBJECTIVES = {
    TOKENS_PER_SECOND: "Most tokens per second",
    LATENCY_PER_TOKEN: "Least time per token, alone",
}
WEIGHTS_FILTER = "Weights (*.safetensors *.gguf *.index.json *.json)"
PROFILE_FILTER = "Enplace profiles (*.enplace)"
LEGEND = "solid: weights   ·   hatched: cache   ·   pale: activations"
COLUMNS = ("Split", "Layers", "Tokens/s", "Alone")


class ServingDialog(QDialog):
    """Model and cards on the left; on the right what they come to, and what to take along.

    Parameters
    ----------
    open_plan : callable
        Opens a profile and a plan for it, by their paths.

    Attributes
    ----------
    found : Serving or None
        The answer that is shown.
    """

    def __init__(
        self, open_plan: Callable[[Path, Path], object], parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setWindowTitle("Serve a model")
        give_size(self, SIZE)
        self._open_plan, self.background = open_plan, Background(self)
        self.found: Serving | None = None
        self._make_questions()
        self._make_answers()
        self._lay_out()
        self._timer = QTimer(self, interval=PAUSE_MS, singleShot=True)
        self._timer.timeout.connect(self.ask)
        self._connect()
        self.ask()

    def _make_questions(self) -> None:
        self.model = QComboBox(editable=True)
        self.model.addItems([*bundled()])
        self.model.setCurrentText(MODEL)
        typed = self.model.lineEdit()
        assert typed is not None, "the box can be edited"
        for each in (self.model, typed):
            each.setAccessibleName("Model")
        self.cards = QLineEdit(FIRST_CARDS)
        self.cards.setAccessibleName("Cards")
        self.objective = QComboBox()
        self.objective.setAccessibleName("Best for")
        for key, title in OBJECTIVES.items():
            self.objective.addItem(title, key)
        self.cache = QComboBox()
        self.cache.setAccessibleName("Cache")
        self.cache.addItems([*CACHES])
        self.context = StepSlider("Context", "tokens", 256, MOST_CONTEXT, CONTEXT)
        self.requests = StepSlider("Requests at once", "", 1, MOST_REQUESTS, 1)

    def _make_answers(self) -> None:
        self.speed, self._facts = label("", "welcome"), paragraph("")
        self._bars = Column("Memory of each card")
        self.others = _make_table()
        self.program = QComboBox()
        self.program.addItems([*PROGRAMS.values()])
        self.program.setAccessibleName("Program")
        self.text = QPlainTextEdit(readOnly=True)
        self.text.setAccessibleName("What to paste")
        self.text.setFont(QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont))
        self.text.setFixedHeight(round(TEXT_HEIGHT * theme.scale))

    def _lay_out(self) -> None:
        asked = QWidget()
        asked.setFixedWidth(round(ASKED_WIDTH * theme.scale))
        vbox(*self._questions(), on=asked, spacing=6, margins=(0, 0, 8, 0))
        memory, others, taken = (
            Panel("Memory of each card", LEGEND),
            Panel("Other splits"),
            Panel("Take it with you"),
        )
        memory.body.addWidget(self._bars)
        others.body.addWidget(self.others)
        others.body.addStretch(1)
        taken.body.addLayout(hbox(self.program, STRETCH, button("Copy", self._copy)))
        taken.body.addWidget(self.text)
        below = hbox((others, 1), (taken, 1), spacing=8)
        answers = vbox(self.speed, self._facts, (memory, 1), below, spacing=8)
        self.buttons = DialogButtons(self, "Open as a plan…", reject="Close")
        middle = hbox(asked, (answers, 1), spacing=14)
        vbox((middle, 1), self.buttons, on=self, spacing=12, margins=(16, 14, 16, 14))

    def _questions(self) -> list[QWidget | QLayout | int]:
        files = button("File…", self._ask_file), button("Folder…", self._ask_folder)
        return [
            label("Model", "title"),
            self.model,
            vbox(hbox(*files, STRETCH, spacing=6)),
            paragraph("Names and shapes are read, never the weights."),
            10,
            label("Cards", "title"),
            self.cards,
            paragraph(f"For example {CARDS.replace(',', ', ')}, or a preset."),
            10,
            label("Best for", "title"),
            self.objective,
            10,
            self.context,
            4,
            self.requests,
            4,
            hbox(label("Cache"), STRETCH, self.cache),
            STRETCH,
        ]

    def _connect(self) -> None:
        self.model.currentTextChanged.connect(lambda: self._timer.start())
        self.cards.textChanged.connect(lambda: self._timer.start())
        for box in (self.objective, self.cache):
            box.currentIndexChanged.connect(lambda: self._timer.start())
        for slider in (self.context, self.requests):
            slider.changed.connect(self._timer.start)
        self.program.currentIndexChanged.connect(self._show_text)

    def ask(self) -> None:
        """Compute the answer to what is asked now; an earlier question is forgotten."""
        self._timer.stop()
        model, cards = self.model.currentText().strip(), self.cards.text().strip()
        context, requests = self.context.value, self.requests.value
        objective, cache = self.objective.currentData(), self.cache.currentText()

        def work() -> Serving:
            found = find_serving(model, cards, context, requests, objective, cache=cache)
            found.pasted()  # computes the commands here, in the thread, and keeps them
            return found

        self.background.forget()
        self.background.start(work, self._show, self._fail)

    def _show(self, found: Serving) -> None:
        self.found, served = found, found.served
        wanted = served.costs.wanted
        self.context.set_most(found.decoder.most_context or MOST_CONTEXT)
        if wanted.context != self.context.value:  # the model was made for fewer tokens
            self._timer.start()
        set_role(self._facts, "dim")
        self.speed.setText(f"{found.tokens_per_s:.3g} tokens per second")
        self._facts.setText(
            BETWEEN_FACTS.join(["estimated", *found.facts, *map(as_clause, found.notes)])
        )
        self._show_limits(found)
        column = self._bars.fill(10)
        most_bytes = max(each["capacity_bytes"] for each in found.devices)
        for share, held in zip(served.split, found.devices, strict=True):
            column.addWidget(CardBar(held, share.device, most_bytes))
        self._show_others(found)
        self._show_text()
        self.buttons.accept.setEnabled(True)

    def _show_limits(self, found: Serving) -> None:
        longest, most = found.longest_context, found.most_requests
        self.context.set_note(f"longest that fits the cards: {longest:,}" if longest else "")
        self.requests.set_note(f"most that fit the cards: {most:,}" if most else "")

    def _show_others(self, found: Serving) -> None:
        rows = found.compared()[1:]
        self.others.setRowCount(len(rows))
        for at, row in enumerate(rows):
            for column, text in enumerate(row):
                item = QTableWidgetItem(text)
                item.setToolTip(text)
                item.setTextAlignment(_side(column))
                self.others.setItem(at, column, item)
        header, frame = self.others.horizontalHeader(), 2 * self.others.frameWidth()
        high = header.height() + sum(self.others.rowHeight(at) for at in range(len(rows)))
        self.others.setFixedHeight(high + frame)
        wide = sum(
            max(self.others.sizeHintForColumn(at), header.sectionSizeHint(at))
            for at in range(len(COLUMNS))
        )
        self.others.setMinimumWidth(min(wide + frame, round(MOST_TABLE_WIDTH * theme.scale)))

    def _show_text(self) -> None:
        if self.found is None:
            return
        title = self.program.currentText()
        why = self.found.why_not.get(title, "")
        shown = f"Not for {title}: {why}." if why else self.found.short_commands[title]
        self.text.setPlainText(shown)

    def _fail(self, error: EnplaceError) -> None:
        self.found = None
        does_not_fit = isinstance(error, DoesNotFitError)
        self.speed.setText("Does not fit" if does_not_fit else "Check what is asked")
        set_role(self._facts, "bad")
        self._facts.setText(str(error))
        self._bars.fill()
        self.others.setRowCount(0)
        self.text.clear()
        for slider in (self.context, self.requests):
            slider.set_note("")
        self.buttons.accept.setEnabled(False)

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.text.toPlainText())

    def _ask_file(self) -> None:
        name, _ = QFileDialog.getOpenFileName(self, "Weights", "", WEIGHTS_FILTER)
        if name:
            self.model.setCurrentText(name)

    def _ask_folder(self) -> None:
        if name := QFileDialog.getExistingDirectory(self, "Folder of a model"):
            self.model.setCurrentText(name)

    def accept(self) -> None:
        """Write the answer as a profile with a plan, and open both."""
        if self.found is None:
            return
        name, _ = QFileDialog.getSaveFileName(self, "Save as a profile", "", PROFILE_FILTER)
        if not name:
            return
        path = Path(name).with_suffix(".enplace")
        plan = path.with_suffix(".plan.json")
        try:
            self.found.write(f"{path}", f"{plan}")
        except EnplaceError as error:
            self._fail(error)
            return
        super().accept()
        self._open_plan(path, plan)


def _side(column: int) -> Qt.AlignmentFlag:
    """Return on which side of a column its texts are: numbers on the right."""
    return LEFT if column < 2 else RIGHT


def _make_table() -> QTableWidget:
    made = QTableWidget(0, len(COLUMNS))
    made.setAccessibleName("Other splits")
    show_rows(made, ROW_HEIGHT, wide=1)
    for column, title in enumerate(COLUMNS):
        heading = QTableWidgetItem(title)
        heading.setTextAlignment(_side(column))
        made.setHorizontalHeaderItem(column, heading)
    made.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    return made
