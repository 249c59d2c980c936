"""Short questions and reports: whether code may run, and why a worker ended."""

from __future__ import annotations

from typing import Any

from PySide6.QtGui import QFontDatabase, QGuiApplication
from PySide6.QtWidgets import QDialog, QPlainTextEdit, QWidget

from enplace.frameworks.source import Source, is_program
from enplace.frameworks.trust import place_of
from enplace.frameworks.wishes import PIPELINE_OPTIONS
from enplace.text import capital, elide_middle
from enplace_studio.frameworks.option_fields import field_of, offer, value_of
from enplace_studio.model.window_words import in_window_words
from enplace_studio.widgets.form import Form, number_field
from enplace_studio.widgets.labels import label, plain_tip
from enplace_studio.widgets.layouts import vbox
from enplace_studio.widgets.messages import DialogButtons, button
from enplace_studio.widgets.theme import theme

WIDTH = 460
MARGIN = 20
NAME_LENGTH = 64
LINES_WIDTH, LINES_HEIGHT = 680, 180
COMMAND_LETTERS = 45
COMMAND_PAD = 22
"""Frame, padding and margins of a field of text, above and below."""
STEPS, MOST_STEPS = 20, 10_000


class Question(QDialog):
    """A heading, some sentences and a row of buttons; the accent button accepts."""

    def __init__(self, title: str, heading: str, accept: str, leave: str, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle(title)
        self.setMinimumWidth(round(WIDTH * theme.scale))
        first = label(heading, "heading", wraps=True)
        self.buttons = DialogButtons(self, accept, reject=leave)
        self.body, margins = vbox(spacing=8), (MARGIN, MARGIN, MARGIN, MARGIN - 4)
        vbox(first, (self.body, 1), 4, self.buttons, on=self, spacing=12, margins=margins)

    def add_text(self, text: str, role: str = "") -> None:
        """Add a sentence."""
        self.body.addWidget(label(text, role, wraps=True))

    def add_lines(self, text: str, name: str, height: int) -> QPlainTextEdit:
        """Add text in a field that scrolls, so that all of it can be read."""
        lines = QPlainTextEdit(text, readOnly=True)
        lines.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        lines.setFont(QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont))
        lines.setAccessibleName(name)
        lines.setMinimumHeight(round(height * theme.scale))
        self.body.addWidget(lines, 1)
        return lines

    def quote(self, text: str) -> None:
        """Add a name that may be long."""
        made = label(elide_middle(text, NAME_LENGTH), "title")
        made.setToolTip(plain_tip(text))
        self.body.addWidget(made)


class TrustQuestion(Question):
    """Asks once whether code may run: for each place, and for each command that a file brought.

    Parameters
    ----------
    purpose : str
        What the user wants to do.
    brought : bool
        Whether a file brought the command.
    """

    def __init__(self, source: Source, purpose: str, brought: bool, parent: QWidget) -> None:
        place = place_of(source)
        what = "folder" if is_program(source) else "model"
        super().__init__(
            f"Trust this {what}?",
            f"Do you trust the code in this {what}?",
            f"Trust the {what} and continue",
            "Don’t run it",
            parent,
        )
        self.quote(str(place))
        if is_program(source):
            self.add_text(f"To {purpose}, Enplace runs this command in it:")
            command = self.add_lines(source.command, "The command", 0)
            command.setLineWrapMode(QPlainTextEdit.LineWrapMode.WidgetWidth)
            # All of a short command is in view, and most of a long one.
            rows = 1 + len(source.command) // COMMAND_LETTERS
            line, most = command.fontMetrics().lineSpacing(), round(LINES_HEIGHT * theme.scale)
            command.setFixedHeight(min(rows * line + COMMAND_PAD, most))
            if brought and source.words:
                self.add_text("The open file brought this command with its arguments.")
        else:
            self.add_text(f"To {purpose}, Enplace loads {place.name}, which can contain code.")
        self.add_text(
            "It runs with your rights: it can read and change your files and use the network, "
            f"just as if you started it yourself. Enplace remembers your answer for this {what}."
        )
        self.buttons.reject.setDefault(True)


class FailureReport(Question):
    """Why a worker ended, its last lines, and a button to start again."""

    def __init__(self, doing: str, why: str, last_lines: str, parent: QWidget) -> None:
        super().__init__("It did not work", doing, "Start again", "Close", parent)
        # A sentence begins with a capital letter, but a file name keeps its case.
        starts_with_file = "." in why.split(" ", 1)[0]
        why = in_window_words(why)
        begun = why if starts_with_file else capital(why)
        self.why = begun + ("" if why.endswith(".") else ".")
        self.add_text(self.why)
        self.add_text("The studio and your work are not affected.", "dim")
        if last_lines.strip():
            self._add_lines(last_lines)

    def _add_lines(self, text: str) -> None:
        self.body.addWidget(label("The last lines it wrote", "dim"))
        lines = self.add_lines(text, "The last lines it wrote", LINES_HEIGHT)
        self.setMinimumWidth(round(LINES_WIDTH * theme.scale))
        lines.verticalScrollBar().setValue(lines.verticalScrollBar().maximum())
        clipboard = QGuiApplication.clipboard()
        self.buttons.insertWidget(0, button("Copy", lambda: clipboard.setText(text), kind="link"))


RUN, TUNE = "Run", "Tune"
_WHAT_HAPPENS = {
    RUN: "Runs training steps with and without the plan, on the same batches; then shows the time, "
    "device and order of each op, and whether the result is the same.",
    TUNE: "Runs the plan, solves again with the measured op times, and runs the new plan, up to "
    "three times. Keeps the plan with the fastest measured step and drops the others.",
}


class RunQuestion(Question):
    """Asks how many steps to run a plan for, and what else the framework can be wished.

    The views of a run show one step, so runs as a pipeline are left to the command line.

    Parameters
    ----------
    what : str
        :data:`RUN` or :data:`TUNE`.
    """

    def __init__(
        self,
        plan: str,
        source: Source,
        where: str,
        remark: str,
        parent: QWidget,
        what: str = RUN,
    ) -> None:
        heading = f"{what} “{elide_middle(plan, 40)}” on this machine"
        super().__init__(f"{what} on this machine", heading, what, "Cancel", parent)
        self.add_text(_WHAT_HAPPENS[what])
        if remark:
            self.add_text(remark, "dim")
        self.steps = number_field(1, MOST_STEPS, STEPS)
        command = source.command
        fields = Form()
        model = label(elide_middle(command, NAME_LENGTH))
        model.setToolTip(plain_tip(command))
        fields.add("Model", model)
        fields.add("Devices", label(where))
        fields.add("Steps", self.steps)
        self._options = [o for o in source.framework.run_options if o not in PIPELINE_OPTIONS]
        self.fields = {option.key: field_of(option) for option in self._options}
        for option in self._options:
            field = self.fields[option.key]
            offer(field, option)
            fields.add(option.title, field, option.help)
        self.body.addLayout(fields)

    @property
    def wishes(self) -> dict[str, Any]:
        """What is wished of the run, besides what is usual."""
        said = {option.key: value_of(self.fields[option.key]) for option in self._options}
        usual = {option.key: option.default for option in self._options}
        return {key: value for key, value in said.items() if value not in (None, "", usual[key])}
