"""The card of one plan in the list."""

from __future__ import annotations

from functools import cached_property, partial

from PySide6.QtCore import QRectF, QSize, QSizeF, Qt, Signal, SignalInstance
from PySide6.QtGui import (
    QColor,
    QEnterEvent,
    QFont,
    QFontMetricsF,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import QAbstractButton, QPushButton, QSizePolicy, QWidget

from enplace.placing.incumbents import PROVEN_GAP
from enplace.text import ms, percent, size
from enplace.values.measurement import ESTIMATED
from enplace.values.splits import rewriting
from enplace_studio.explain.differences import sent_bytes
from enplace_studio.explain.shortened import by_words, wrapped
from enplace_studio.model.bounds import Bounds
from enplace_studio.model.open_project import MOVED, OpenProject, PlanEntry
from enplace_studio.model.plan_facts import brief_standing, standing, tooltip, why_stale
from enplace_studio.model.previews import full_text, lack
from enplace_studio.model.prices import headline, what_if_text
from enplace_studio.widgets.drawing import RIGHT, draw_text
from enplace_studio.widgets.labels import plain_tip
from enplace_studio.widgets.messages import WHAT_MAKES_FIT, button
from enplace_studio.widgets.theme import theme

LINES_PX, LINE_PX, LINK_PX, BRIEF_PX = 52, 17, 20, 30
"""Heights of a card of two lines, of a third line, of a link, and of a card of one line."""
PAD, GAP = 12, 8
GO_ON_S = 30


class PlanCard(QAbstractButton):
    """Name and step time above, gap and standing against the expert below; checked if current.

    A name too long for its line continues below: ``Enplace``, and ``2 pins, 30 s``. Figures and
    warnings are always shown, on as many lines as they take; other notes if there is room for them.
    A brief card has one line, or two for a long name. A name that is too long even so leaves out
    words, but not those that tell it from the other plans.
    """

    renew_wanted = Signal()
    """The user wants the plan's method to run again, on the problem as it is now."""
    go_on_wanted = Signal()
    """The user wants a better plan to be searched, starting from this one."""
    fit_wanted = Signal()
    """The user wants to know what would make the model fit."""

    def __init__(
        self,
        project: OpenProject,
        bounds: Bounds,
        entry: PlanEntry,
        parent: QWidget | None = None,
        *,
        brief: bool = False,
        can_go_on: bool = False,
        found_by: str = "",
    ) -> None:
        super().__init__(parent)
        self.entry = entry
        self.is_compared, self.is_brief = False, brief
        self._names = [each.name for each in project.plans]
        self._tell = partial(tooltip, project, bounds, entry)
        self._found_by = found_by
        self._lines: dict[float, list[tuple[str, str]]] = {}
        self.setCheckable(True)
        policy = QSizePolicy(
            QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Preferred
        )  # may shrink
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)
        self.setChecked(entry is project.current)
        self._gap = bounds.gap(entry.schedule)
        some_split = any(each.plan.splits for each in project.plans)
        self._of_what = ", ops whole" if some_split and not entry.plan.splits else ""
        self._what_if = "" if entry.cluster is not None else what_if_text(*project.scale)
        self.step = headline(entry.plan, entry.schedule)
        self.standing, self._standing_role = standing(project, entry)
        self.stale = why_stale(project.problem_of(entry), entry, project.locks)
        star = ", starred" if entry.starred else ""
        self.setText(f"{entry.name}{star}, {self.step}, {self.notes[0]}, {self.standing}")
        self.setAccessibleName(self.text())
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAttribute(Qt.WidgetAttribute.WA_Hover)
        fits, holds = entry.schedule.fits, not self.stale and not brief
        has_best = self._gap is not None and self._gap <= PROVEN_GAP
        self.renew = self._link("Solve again here", self.renew_wanted)
        self.renew.setVisible(bool(self.stale) and not brief)
        self.go_on = self._link(f"Continue for {GO_ON_S} s", self.go_on_wanted)
        self.go_on.setToolTip("Search for a better plan, starting from this one; pins stay")
        self.go_on.setVisible(can_go_on and holds and fits and not has_best)
        self.make_fit = self._link(WHAT_MAKES_FIT, self.fit_wanted)
        self.make_fit.setVisible(holds and not fits)
        self._has_link = any(link.isVisibleTo(self) for link in self._links)
        theme.changed.connect(self.update)

    def tip(self) -> str:
        """Describe the plan in full."""
        return "\n".join(filter(None, [self._tell(self.stale), self._found_by]))

    def enterEvent(self, event: QEnterEvent) -> None:
        super().enterEvent(event)
        self.setToolTip(plain_tip(self.tip()))  # only now: it takes longer than the card itself

    def _link(self, text: str, wanted: SignalInstance) -> QPushButton:
        """Make the link below the texts; at most one is shown."""
        made = button(text, wanted.emit, kind="link")
        made.setProperty("flush", True)
        made.setParent(self)
        return made

    @property
    def _links(self) -> tuple[QPushButton, ...]:
        return self.renew, self.go_on, self.make_fit

    @property
    def notes(self) -> list[str]:
        """Texts below the name, most important first."""
        return [*self._always, *self._if_room]

    @cached_property
    def _always(self) -> list[str]:
        """The notes that are shown whatever room there is."""
        schedule, run, first = self.entry.schedule, self.entry.run, ""
        if schedule.fits and self._gap is not None:
            # Other ways to split ops might be better than any plan with these.
            is_best = self._gap <= PROVEN_GAP and not self.entry.plan.splits
            first = ("optimal" if is_best else f"gap {percent(self._gap)}") + self._of_what
        if self.entry.plan.value_us is not None:
            first = f"one step {ms(schedule.makespan_us)}"
        measured = ""
        if run is not None:
            measured = "ran on labels" if run.on_labels else f"measured {ms(run.step_time_us)}"
        is_estimated = run is None and schedule.problem.measured_profile.measured.estimated
        found = [lack(schedule), self.stale, measured, first, self.entry.remark]
        found = [*filter(None, [self._what_if, *found])]
        if is_estimated and not schedule.fits:  # in one line, the device's name would be cut
            return [*found, ESTIMATED]
        if is_estimated:
            return [", ".join([ESTIMATED, *found[:1]]), *found[1:]]
        return found

    @cached_property
    def _if_room(self) -> list[str]:
        entry, schedule = self.entry, self.entry.schedule
        moved = entry.note.endswith(MOVED)
        found = [
            entry.note if moved else "",
            full_text(schedule),
            rewriting(entry.plan.splits),
            "" if moved else entry.note,
            f"{size(sent_bytes(schedule))} sent",
            f"peak {size(int(schedule.peak_bytes.max()))}",
        ]
        return [*filter(None, found)]

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        if self.is_brief:
            rest = LINE_PX if self.name_lines(width)[1] else 0
            return round((BRIEF_PX + rest) * theme.scale)
        more = LINE_PX * (len(self.lines(width)) - 1)
        return round((LINES_PX + more + (LINK_PX if self._has_link else 0)) * theme.scale)

    def sizeHint(self) -> QSize:
        width = round(220 * theme.scale)
        return QSize(width, self.heightForWidth(width))

    def minimumSizeHint(self) -> QSize:
        least = BRIEF_PX if self.is_brief else LINES_PX
        return QSize(round(150 * theme.scale), round(least * theme.scale))

    def name_lines(self, width: float) -> tuple[str, str]:
        """Return the name as far as it fits beside the time, and what of it continues below."""
        width -= 2 * PAD
        if self.is_brief:
            right = QFontMetricsF(_name_font()).horizontalAdvance(self._brief_right)
            return self._in_lines(theme.font(12), width - right - GAP, width)
        number, _, unit = self.step.partition("/")
        right = QFontMetricsF(_step_font()).horizontalAdvance(number) + GAP
        if unit:
            right += QFontMetricsF(theme.font(11)).horizontalAdvance(f"/{unit}")
        return self._in_lines(_name_font(), width - right, width)

    def _in_lines(self, font: QFont, free: float, width: float) -> tuple[str, str]:
        """Break the name in two lines, one in a font and of a width, then one of small letters."""
        length, below = (QFontMetricsF(f).horizontalAdvance for f in (font, theme.font(11)))
        name, star = self.entry.name, "★ " if self.entry.starred else ""
        free -= length(star)
        if length(name) <= free:
            return star + name, ""
        first, _, rest = name.partition(", ")
        if length(first) > free or not rest:
            first = wrapped(name, length, free)[0]
            rest = name[len(first) :].strip()
        others = [each.removeprefix(first).lstrip(", ") for each in self._names]
        rest = by_words(rest, others, below, width)
        return star + by_words(first, self._names, length, free), rest

    @property
    def _brief_right(self) -> str:
        """What a brief card says on the right: the time, or why it is of no use."""
        usable = self.entry.schedule.fits and self.entry.cluster is None
        return self.step if usable else self.standing

    def lines(self, width: float) -> list[tuple[str, str]]:
        """Return each line below the name: its text, and the standing at the right of one."""
        if width not in self._lines:  # a layout asks a dozen times, and measures many texts
            self._lines[width] = self._find_lines(width)
        return self._lines[width]

    def _find_lines(self, width: float) -> list[tuple[str, str]]:
        length = QFontMetricsF(theme.font(11)).horizontalAdvance
        standing = QFontMetricsF(_standing_font()).horizontalAdvance(self.standing) + GAP
        free, found = width - 2 * PAD, list[str]()
        for note in filter(None, (self.name_lines(width)[1], *self._always)):
            joined = f"{found[-1]} · {note}" if found else note
            if found and length(joined) <= free:
                found[-1] = joined
            else:
                found.append(note)
        if not found:
            found = [self._if_room[0]]
        if length(found[-1]) + standing > free and self.standing:
            return [*((text, "") for text in found), ("", self.standing)]
        for note in self._if_room:
            joined = f"{found[-1]} · {note}"
            if note in found[-1]:
                continue
            if length(joined) + standing > free:
                break
            found[-1] = joined
        return [*((text, "") for text in found[:-1]), (found[-1], self.standing)]

    def resizeEvent(self, event: QResizeEvent) -> None:
        for link in self._links:
            link.adjustSize()
            link.move(PAD, self.height() - link.height() - 6)

    def mark_compared(self, compared: bool) -> None:
        """Mark this plan as the one the current plan is compared with."""
        self.is_compared = compared
        self.update()

    def nextCheckState(self) -> None:
        """Do nothing: the document, not the click, decides which plan is shown."""

    # Drawing

    def paintEvent(self, event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            self._paint(painter)

    def _paint(self, painter: QPainter) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self._paint_frame(painter)
        if self.is_brief:
            self._paint_brief(painter)
            return
        inner = QRectF(self.rect()).adjusted(PAD, 8, -PAD, -8)
        inner.setHeight(LINES_PX * theme.scale - 16)
        upper, lower = QRectF(inner), QRectF(inner)
        upper.setHeight(inner.height() * 0.56)
        lower.setTop(upper.bottom())
        tokens = theme.tokens
        number, _, unit = self.step.partition("/")
        left, width = QRectF(upper), upper.width()
        if unit:
            width = self._right(painter, upper, f"/{unit}", theme.font(11), tokens.dim) + GAP
            left.setWidth(width)
        width = self._right(painter, left, number, _step_font(), tokens.text)
        name = self.name_lines(self.width())[0]
        self._left(painter, upper, width, name, _name_font(), tokens.text)
        color, quiet = self._color(self._standing_role), theme.font(11)
        tint = tokens.dim if self.entry.schedule.fits else tokens.bad
        for text, change in self.lines(self.width()):
            width = lower.width()
            if text and change:
                width = self._right(painter, lower, change, _standing_font(), color)
            if text:
                self._left(painter, lower, width, text, quiet, tint)
            else:
                self._left(painter, lower, width, change, _standing_font(), color)
            lower.translate(0, LINE_PX * theme.scale)

    def _paint_brief(self, painter: QPainter) -> None:
        """Draw the name, the standing if there is room for it, and the time; or why it has none."""
        inner = QRectF(self.rect()).adjusted(PAD, 0, -PAD, 0)
        name, rest = self.name_lines(self.width())
        if rest:
            lines = inner.adjusted(0, 5, 0, -5)
            inner, below = QRectF(lines), QRectF(lines)
            inner.setHeight(lines.height() / 2)
            below.setTop(inner.bottom())
            self._left(painter, below, below.width(), rest, theme.font(11), theme.tokens.dim)
        right, color = self._brief_right, self._color(self._standing_role)
        is_time = right == self.step
        tint = theme.tokens.text if is_time else color
        inner.setWidth(self._right(painter, inner, right, _name_font(), tint))
        change = brief_standing(self.standing)
        own = QFontMetricsF(theme.font(12)).horizontalAdvance(name)
        other = QFontMetricsF(_standing_font()).horizontalAdvance(change)
        if is_time and own + other + GAP <= inner.width():
            inner.setWidth(self._right(painter, inner, change, _standing_font(), color))
        self._left(painter, inner, inner.width(), name, theme.font(12), theme.tokens.text)

    def _paint_frame(self, painter: QPainter) -> None:
        tokens = theme.tokens
        hovered = self.underMouse() or self.isChecked()
        strong = self.isChecked() or self.hasFocus() or self.is_compared
        pen = QPen(tokens.accent if strong else tokens.line, 2 if self.isChecked() else 1)
        if self.is_compared:
            pen.setStyle(Qt.PenStyle.DashLine)
        painter.setPen(pen)
        painter.setBrush(tokens.hover if hovered else tokens.panel)
        inset = pen.widthF() / 2
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(inset, inset, -inset, -inset), 6, 6)

    @staticmethod
    def _color(role: str) -> QColor:
        tokens = theme.tokens
        return {"good": tokens.good, "bad": tokens.bad}.get(role, tokens.dim)

    @staticmethod
    def _right(painter: QPainter, area: QRectF, text: str, font: QFont, color: QColor) -> float:
        """Draw at the right edge; return the width left over."""
        draw_text(painter, area, text, font, color, RIGHT)
        return area.width() - QFontMetricsF(font).horizontalAdvance(text) - GAP

    @staticmethod
    def _left(
        painter: QPainter, area: QRectF, width: float, text: str, font: QFont, color: QColor
    ) -> None:
        left = QRectF(area.topLeft(), QSizeF(width, area.height()))
        draw_text(painter, left, text, font, color)


def _standing_font() -> QFont:
    return theme.font(11, QFont.Weight.Medium)


def _name_font() -> QFont:
    return theme.font(12, QFont.Weight.DemiBold)


def _step_font() -> QFont:
    return theme.font(15, QFont.Weight.DemiBold)
