"""Painting cards, ports, edges and titles, in scene coordinates."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPainter, QPainterPath, QPen

from enplace.names.titles import shorter_titles
from enplace.pictures.graph_layout import CARD_H, TITLE_W
from enplace.text import size
from enplace.values.arrays import BoolArray
from enplace_studio.explain.shortened import brief, by_words, wrapped
from enplace_studio.views.graph.colours import Look
from enplace_studio.views.graph.scene import Scene, touching
from enplace_studio.widgets.drawing import LEFT, RIGHT
from enplace_studio.widgets.hatch import paint_hatching, paint_notches
from enplace_studio.widgets.theme import blend, theme

RADIUS, RING = 7.0, 6.0
"""Of a card's corners; and how far the ring around it reaches."""
TEXT_SCALE = 0.42  # below this scale texts would only be noise
LARGEST_TEXT = 1.22  # how much texts may grow relative to their cards when zoomed out
_PAD = 11.0
_PIN_ROOM = 13.0
_HATCH = 9.0
_FIRST_LINE, _NEXT_LINE = 19.0, 17.0
_BETWEEN = 6.0
_NUMBERED = re.compile(r"(\S+ )(\d[\d.]*(?:–\d[\d.]*)?)")
_FADED = 0.28
_LONG_ALPHA, _LONG_ALPHA_DARK = 0.32, 0.5
_ROUTED_ALPHA = 0.6  # a long edge that passes beside the cards, not behind them


_NOTE_PX = 7
EXTENT_PX = 3


@dataclass(frozen=True)
class Marks:
    """Cards and ports that are selected, hovered or noted on; cards found, or in a rubber band."""

    selected: frozenset[int] = frozenset()
    partly: frozenset[int] = frozenset()
    hovered: frozenset[int] = frozenset()
    taken: frozenset[int] = frozenset()
    matches: frozenset[int] | None = None
    current: int | None = None
    noted: frozenset[int] = frozenset()


def paint_scene(painter: QPainter, scene: Scene, marks: Marks, visible: QRectF) -> None:
    """Paint what is visible; edges lie under the cards."""
    scale = painter.worldTransform().m11()
    text = min(max(1 / scale, 1.0), LARGEST_TEXT) if scale >= TEXT_SCALE else 0.0
    _paint_edges(painter, scene, marks, visible)
    if text:
        _paint_titles(painter, scene, visible, text)
    for node in scene.nodes_in(visible.adjusted(-RING, -RING, RING, RING)):
        faded = marks.matches is not None and node not in marks.matches
        painter.setOpacity(_FADED if faded else 1.0)
        if node < scene.n:
            paint_card(painter, scene, node, text)
        else:
            _paint_port(painter, scene, node, text)
        if node in marks.noted:
            _paint_note(painter, scene.rects[node])
        painter.setOpacity(1.0)
        _paint_ring(painter, scene.rects[node], node, marks)


def _paint_titles(painter: QPainter, scene: Scene, visible: QRectF, text_scale: float) -> None:
    font = theme.font(12, zoom=text_scale)
    painter.setFont(font)
    painter.setPen(theme.tokens.dim)
    titles = scene.arrangement.titles
    ways = shorter_titles((*scene.level.grouping.names, *(text for text, _, _ in titles)))
    for text, x, y in titles:
        if visible.top() - CARD_H < y < visible.bottom() + CARD_H:
            area = QRectF(x, y - CARD_H / 2, TITLE_W - 14, CARD_H)
            painter.fillRect(area.adjusted(-4, 4, 4, -4), theme.tokens.panel)
            shown = in_lines(ways[text], font, area.width())
            flags = Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextDontClip
            painter.drawText(area, int(flags), shown)


def in_lines(ways: Sequence[str], font: QFont, width: float) -> str:
    """Break a title into two lines, or else three; the first of several ways that needs no cut."""
    length = QFontMetricsF(font).horizontalAdvance
    # No line begins with a slash.
    broken = [wrapped(way.replace(" /", "\N{NO-BREAK SPACE}/"), length, width) for way in ways]
    whole = [lines for lines in broken if max(map(length, lines)) <= width]
    found = next((lines for most in (2, 3) for lines in whole if len(lines) <= most), None)
    if found is None:
        first, *rest = broken[-1]
        found = [fitted(line, font, width) for line in (first, " ".join(rest)) if line]
    return "\n".join(found)


def paint_extent(painter: QPainter, area: QRectF, visible: QRectF, bounds: QRectF) -> None:
    """Show at two edges which part of the scene is visible, as scroll bars do; none for all."""
    whole = visible.united(bounds)
    part = visible.translated(-whole.topLeft())
    across, down = area.width() / whole.width(), area.height() / whole.height()
    bars = []
    if whole.width() > part.width():
        left, width = part.left() * across, part.width() * across
        bars.append(QRectF(left, area.bottom() - EXTENT_PX, width, EXTENT_PX))
    if whole.height() > part.height():
        top, height = part.top() * down, part.height() * down
        bars.append(QRectF(area.right() - EXTENT_PX, top, EXTENT_PX, height))
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(theme.tokens.line)
    for bar in bars:
        painter.drawRoundedRect(bar, EXTENT_PX / 2, EXTENT_PX / 2)


# ---------------------------------------------------------------- cards


def paint_card(painter: QPainter, scene: Scene, group: int, text_scale: float) -> None:
    """Paint a card: tint and border in its colours, a bar at the left, its texts, its pin.

    ``text_scale`` is the size of the texts relative to the card; 0 leaves them out.
    """
    rect, look = scene.rects[group], scene.looks[group]
    color = look.stripes[0][0]
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(color if look.full else tinted(color, look.hatched))
    if len(look.stripes) > 1:
        _paint_stripes(painter, rect, look)
        painter.setBrush(Qt.BrushStyle.NoBrush)
    elif look.hatched:
        painter.drawRoundedRect(rect, RADIUS, RADIUS)
        painter.setBrush(Qt.BrushStyle.NoBrush)
    if look.hatched:
        paint_hatching(painter, rect, theme.tokens.panel, _HATCH, RADIUS)
    plain = look.full or len(look.stripes) > 1
    painter.setPen(QPen(theme.tokens.dim if plain else color, 1.2))
    painter.drawRoundedRect(rect, RADIUS, RADIUS)
    if not look.full:
        _paint_bar(painter, rect, look)
    inner = rect.adjusted(_PAD, 3, -4, 0)
    is_pinned = bool(scene.facts.n_pinned[group])
    is_high = is_pinned and not has_room_for_pin(scene, group, text_scale)
    if is_pinned:
        corner = rect.topRight() + QPointF(0, 24) if is_high else rect.bottomRight()
        paint_pin(painter, corner + QPointF(-9, -15))
    if text_scale:
        pins = (_PIN_ROOM if is_high else 0.0, _PIN_ROOM if is_pinned and not is_high else 0.0)
        paint_texts = _paint_op_texts if scene.level.of_ops else _paint_texts
        paint_texts(painter, inner, scene, group, text_scale, pins)


def has_room_for_pin(scene: Scene, group: int, text_scale: float) -> bool:
    """Whether the last line of a card keeps its number beside a pin; else the pin is higher up."""
    if scene.level.of_ops or not text_scale:
        return True
    look, width = scene.looks[group], scene.rects[group].width() - _PAD - 4 - _PIN_ROOM
    line = look.short or look.line
    return line[:1].isalpha() or fitted(line, theme.font(11, zoom=text_scale), width) == line


def tinted(color: QColor, hatched: bool) -> QColor:
    """Return the background of a card; stronger if hatching hides half of it."""
    return blend(color, theme.tokens.panel, 0.27 if theme.dark else 0.36 if hatched else 0.15)


def quiet_ink() -> QColor:
    """Return the colour of a card's second line: softer, but readable on every tint."""
    return blend(theme.tokens.text, theme.tokens.dim, 0.5)


def _paint_stripes(painter: QPainter, rect: QRectF, look: Look) -> None:
    shape = QPainterPath()
    shape.addRoundedRect(rect, RADIUS, RADIUS)
    painter.save()
    painter.setClipPath(shape, Qt.ClipOperation.IntersectClip)
    left = rect.left()
    for color, share in look.stripes:
        width = share * rect.width()
        area = QRectF(left, rect.top(), width, rect.height())
        painter.fillRect(area, tinted(color, look.hatched))
        left += width
    painter.restore()


def _paint_bar(painter: QPainter, rect: QRectF, look: Look) -> None:
    """Paint a bar in the card's full colours, from top to bottom."""
    bar = QRectF(rect.left() + 3.5, rect.top() + 7, 3, rect.height() - 14)
    top = bar.top()
    for color, share in look.stripes:
        part = QRectF(bar.left(), top, bar.width(), bar.height() * share)
        painter.fillRect(part, color)
        paint_notches(painter, part, theme.tokens.panel, theme.notches(color))
        top += bar.height() * share
    if look.hatched:
        paint_hatching(painter, bar, theme.tokens.panel, _HATCH)


def _paint_name(
    painter: QPainter, rect: QRectF, texts: tuple[str, ...], at: int, scale: float
) -> QRectF:
    """Paint the name of a card; return the area of the next line, with its font and pen set."""
    first = QRectF(rect.left(), rect.top(), rect.width(), _FIRST_LINE)
    strong = theme.font(12, QFont.Weight.DemiBold, scale)
    painter.setFont(strong)
    painter.setPen(theme.tokens.text)
    painter.drawText(first, LEFT, fitted_name(texts[at], strong, rect.width(), texts))
    painter.setFont(theme.font(11, zoom=scale))
    painter.setPen(quiet_ink())
    return first.translated(0, _NEXT_LINE)


def fitted_name(text: str, font: QFont, width: float, among: tuple[str, ...]) -> str:
    """Elide a name where it stays apart from the others; one that ends in a number, before it.

    ``head 8–15``, if there are more heads and not all fit, is only numbers, as the others are.
    """
    if fitted(text, font, width) == text and not text[-1:].isdigit():
        return text
    return _fitted_name(text, font.pixelSize(), font.weight(), int(width), among)


@lru_cache(maxsize=1024)
def _fitted_name(
    text: str, pixels: int, weight: QFont.Weight, width: int, among: tuple[str, ...]
) -> str:
    font = QFont(theme.font(weight=weight))
    font.setPixelSize(pixels)
    length, numbered = QFontMetricsF(font).horizontalAdvance, _NUMBERED.fullmatch(text)
    family = _families(among).get(numbered[1], ()) if numbered else ()
    if max(map(length, (text, *family))) <= width:
        return text
    if numbered and len(family) > 1 and length(numbered[2]) <= width:
        return numbered[2]
    if length(text) <= width:
        return text
    stem, _, number = text.rpartition(" ")
    if not stem or not number[:1].isdigit():
        return by_words(text, among, length, width)
    room = width - length(f" {number}")
    stem = QFontMetricsF(font).elidedText(stem, Qt.TextElideMode.ElideRight, room)
    return f"{stem.removesuffix('…').rstrip()}… {number}"


@lru_cache(maxsize=4)
def _families(texts: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Find the names that are alike but for their numbers, by what they share."""
    found: dict[str, tuple[str, ...]] = {}
    for text in set(texts):
        if numbered := _NUMBERED.fullmatch(text):
            found[numbered[1]] = (*found.get(numbered[1], ()), text)
    return found


def _paint_texts(
    painter: QPainter,
    rect: QRectF,
    scene: Scene,
    group: int,
    scale: float,
    pins: tuple[float, float],
) -> None:
    """Paint the name, then the second line and note; leave ``pins`` pixels right of each."""
    first = rect.adjusted(0, 0, -pins[0], 0)
    second = _paint_name(painter, first, scene.arrangement.texts, group, scale)
    second.setRight(rect.right() - pins[1])
    look, plain, width = scene.looks[group], painter.font(), second.width()

    def fits(line: str) -> bool:
        return fitted(line, plain, width) == line

    note = next((note for note in look.notes if fits(f"{look.line}   {note}")), "")
    line = look.short if look.short and not note and fits(look.short) else look.line
    if line[:1].isalpha() or fits(line):  # a number without its digits would mislead
        painter.drawText(second, LEFT, fitted(line, plain, width))
    painter.drawText(second, RIGHT, note)


def _paint_op_texts(
    painter: QPainter,
    rect: QRectF,
    scene: Scene,
    op: int,
    scale: float,
    pins: tuple[float, float],
) -> None:
    """Paint an op's name; its type and lengths; the line of the colour mode and its output.

    The last line leaves the second of ``pins`` pixels at the right.
    """
    second = _paint_name(painter, rect, scene.arrangement.texts, op, scale)
    look, level = scene.looks[op], scene.level
    _paint_pair(painter, second, level.kinds[op], level.lengths[op], keep_left=True)
    third = second.translated(0, _NEXT_LINE).adjusted(0, 0, -pins[1], 0)
    line, sent = look.short or look.line, size(int(scene.facts.output_bytes[op]))
    _paint_pair(painter, third, line, sent)


def _paint_pair(
    painter: QPainter, area: QRectF, left: str, right: str, keep_left: bool = False
) -> None:
    """Paint two texts on one line; one is kept whole, the other has the space that it leaves."""
    font, width = painter.font(), area.width()
    kept = fitted(left if keep_left else right, font, width)
    room = width - QFontMetricsF(font).horizontalAdvance(kept) - _BETWEEN
    other = fitted(right if keep_left else left, font, room)
    painter.drawText(area, LEFT, kept if keep_left else other)
    painter.drawText(area, RIGHT, other if keep_left else kept)


def _paint_port(painter: QPainter, scene: Scene, node: int, scale: float) -> None:
    """Paint where edges come from or go to, and their bytes."""
    rect, port = scene.rects[node], scene.level.ports.ports[node - scene.n]
    painter.setPen(QPen(theme.tokens.line, 1.2))
    painter.setBrush(theme.tokens.lane)
    painter.drawRoundedRect(rect, rect.height() / 2, rect.height() / 2)
    if scale:
        painter.setFont(theme.font(11, zoom=scale))
        painter.setPen(theme.tokens.dim)
        inner, held = rect.adjusted(_PAD, 0, -_PAD, 0), size(port.bytes)
        advance = QFontMetricsF(painter.font()).horizontalAdvance
        name = brief(
            scene.arrangement.texts[node], advance, inner.width() - advance(held) - _BETWEEN
        )
        _paint_pair(painter, inner, name, held)


def paint_pin(painter: QPainter, head: QPointF) -> None:
    """Paint a pin with a round head."""
    painter.setPen(QPen(theme.tokens.text, 1.4))
    painter.drawLine(head, head + QPointF(0, 8))
    painter.setBrush(theme.tokens.text)
    painter.drawEllipse(head, 2.6, 2.6)


def _paint_note(painter: QPainter, rect: QRectF) -> None:
    """Paint a turned-down corner: there is a note."""
    corner = rect.topRight()
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(theme.tokens.text)
    painter.drawPolygon(
        [
            corner + QPointF(-_NOTE_PX - 1, 1),
            corner + QPointF(-1, 1),
            corner + QPointF(-1, _NOTE_PX + 1),
        ]
    )


def _paint_ring(painter: QPainter, rect: QRectF, node: int, marks: Marks) -> None:
    """Paint a strong ring if selected, a broken one if partly selected, a thin one if hovered."""
    painter.setBrush(Qt.BrushStyle.NoBrush)
    accent, radius = theme.tokens.accent, min(RADIUS, rect.height() / 2)
    if node in marks.selected or node in marks.partly or node in marks.taken:
        whole = node in marks.selected or node in marks.taken
        style = Qt.PenStyle.SolidLine if whole else Qt.PenStyle.DashLine
        painter.setPen(QPen(accent, 2.2, style))
        painter.drawRoundedRect(rect, radius, radius)
    elif node in marks.hovered or (marks.matches and node in marks.matches):
        painter.setPen(QPen(accent, 1.2))
        painter.drawRoundedRect(rect, radius, radius)
    if node == marks.current:
        painter.setPen(QPen(theme.tokens.text, 1.0, Qt.PenStyle.DotLine))
        painter.drawRoundedRect(rect.adjusted(-4, -4, 4, 4), radius + 3, radius + 3)


@lru_cache(maxsize=4096)
def _fitted(text: str, pixels: int, weight: QFont.Weight, width: int) -> str:
    font = QFont(theme.font(weight=weight))
    font.setPixelSize(pixels)
    return QFontMetricsF(font).elidedText(text, Qt.TextElideMode.ElideMiddle, width)


def fitted(text: str, font: QFont, width: float) -> str:
    """Elide the middle of a text, in a font of the theme, that is too wide."""
    return _fitted(text, font.pixelSize(), font.weight(), int(width))


# ---------------------------------------------------------------- edges


def _paint_edges(painter: QPainter, scene: Scene, marks: Marks, visible: QRectF) -> None:
    edges = scene.level.edges
    chosen = np.array(sorted(marks.selected | marks.hovered), dtype=np.int64)
    lit = touching(edges, chosen)
    painter.setBrush(Qt.BrushStyle.NoBrush)
    alone = marks.selected if len(marks.selected) == 1 else marks.hovered
    wanted = touching(edges, np.array(sorted(alone), dtype=np.int64))
    shown = np.flatnonzero(_worth_painting(scene, wanted, marks.matches))
    above = scene.crossing[shown] + 2 * lit[shown]
    for edge in shown[np.argsort(above, kind="stable")].tolist():
        path = scene.paths[edge]
        if path.controlPointRect().adjusted(-4, -4, 4, 4).intersects(visible):
            painter.setPen(edge_pen(scene, edge, bool(lit[edge])))
            painter.drawPath(path)


def _worth_painting(scene: Scene, wanted: BoolArray, matches: Collection[int] | None) -> BoolArray:
    """Leave out quiet edges but those of one card: those of many would be a fan."""
    shown = ~scene.quiet | wanted
    if matches is None:
        return shown
    return shown & touching(scene.level.edges, np.array(sorted(matches), dtype=np.int64))


def edge_pen(scene: Scene, edge: int, lit: bool) -> QPen:
    """Return a red dashed pen across devices, else grey; fewer bytes make it fainter."""
    width = float(scene.edge_width[edge])
    if scene.crossing[edge]:
        pen = QPen(theme.tokens.bad, max(1.3, width))
        pen.setDashPattern([4.2 / pen.widthF() * 1.2, 3.0 / pen.widthF() * 1.2])
    else:
        pen = QPen(theme.tokens.faint, width)
    pen.setCapStyle(Qt.PenCapStyle.FlatCap)
    color = QColor(pen.color())
    long_alpha = _LONG_ALPHA_DARK if theme.dark else _LONG_ALPHA
    if scene.arrangement.routes:
        long_alpha = _ROUTED_ALPHA
    color.setAlphaF(1.0 if lit else long_alpha if scene.long[edge] else 0.85)
    pen.setColor(color)
    return pen
