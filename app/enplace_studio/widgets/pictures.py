"""Pictures of views: what a widget paints, with a title above, as SVG, PNG or PDF."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import (
    QBuffer,
    QByteArray,
    QIODevice,
    QMarginsF,
    QPoint,
    QPointF,
    QRect,
    QRectF,
    QSize,
    QSizeF,
    Qt,
)
from PySide6.QtGui import (
    QFont,
    QFontMetricsF,
    QImage,
    QImageWriter,
    QPageSize,
    QPaintDevice,
    QPainter,
    QPdfWriter,
    QPicture,
)
from PySide6.QtSvg import QSvgGenerator
from PySide6.QtWidgets import QPushButton, QScrollBar, QToolButton, QWidget

from enplace.errors import FileError
from enplace.files.writing import write_atomically
from enplace_studio.widgets.theme import theme

SUFFIXES = (".svg", ".png", ".pdf")
SHARPNESS = 2
"""Pixels of a PNG for each pixel on screen."""

_CHILDREN = Qt.FindChildOption.FindDirectChildrenOnly
_AS_SHOWN = QWidget.RenderFlag.DrawChildren
_DPI = 96
_MARGIN = 16
_TITLE_PX = 24


@dataclass(frozen=True)
class Drawing:
    """The picture of a view; painting it reads no widget, so any thread may do it.

    Attributes
    ----------
    title : str
        What is written above it; if it is empty, the name and what is open.
    """

    name: str
    size: QSize
    paint: Callable[[QPainter], object]
    title: str = ""


def draw_widget(name: str, widget: QWidget, area: QRect | None = None) -> Drawing:
    """Record what is in a widget, or in a part of it; its own frame and background stay away.

    So do buttons, scroll bars and hints, which are of no use on paper.
    """
    area = widget.rect() if area is None else area
    hidden = _hide_controls(widget)
    record = QPicture()
    painter = QPainter(record)
    for child in widget.findChildren(QWidget, options=_CHILDREN):
        if child.isVisible() and area.contains(child.geometry().center()):
            child.render(painter, child.pos() - area.topLeft(), renderFlags=_AS_SHOWN)
    painter.end()
    for control in hidden:
        control.show()
    return Drawing(name, area.size(), lambda painter: painter.drawPicture(QPointF(), record))


def _hide_controls(widget: QWidget) -> list[QWidget]:
    """Hide what can only be pressed; what is around it stays in its place."""
    kinds = QPushButton | QToolButton | QScrollBar
    found = [child for child in widget.findChildren(QWidget) if isinstance(child, kinds)]
    shown: list[QWidget] = [child for child in found if child.isVisible()]
    for child in shown:
        child.hide()
    return shown


def write_picture(path: Path, drawing: Drawing, title: str) -> None:
    """Write a drawing below its title, in the format that the file name ends with.

    Raises
    ------
    FileError
        If the name has another ending, or the file cannot be written.
    """
    name = QFontMetricsF(_title_font()).horizontalAdvance(title)
    width = max(drawing.size.width(), round(name)) + 2 * _MARGIN
    size = QSize(width, drawing.size.height() + _TITLE_PX + 2 * _MARGIN)
    suffix = path.suffix.lower()
    content = QByteArray()
    buffer = QBuffer(content)
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    if suffix == ".svg":
        _paint(_svg(buffer, size, title), size, drawing, title)
    elif suffix == ".pdf":
        _paint(_pdf(buffer, size, title), size, drawing, title)
    elif suffix == ".png":
        image = QImage(size * SHARPNESS, QImage.Format.Format_ARGB32)
        image.setDevicePixelRatio(SHARPNESS)
        _paint(image, size, drawing, title)
        QImageWriter(buffer, QByteArray(b"png")).write(image)
    else:
        raise FileError(f"{path}: a picture is one of {', '.join(SUFFIXES)}; rename it")
    buffer.close()
    write_atomically(path, bytes(content.data()))


def _svg(buffer: QBuffer, size: QSize, title: str) -> QSvgGenerator:
    made = QSvgGenerator(QSvgGenerator.SvgVersion.Svg11)  # version 1.2 Tiny cannot clip
    made.setOutputDevice(buffer)
    made.setResolution(_DPI)
    made.setSize(size)
    made.setViewBox(QRect(QPoint(), size))
    made.setTitle(title)
    return made


def _pdf(buffer: QBuffer, size: QSize, title: str) -> QPdfWriter:
    made = QPdfWriter(buffer)
    made.setResolution(_DPI)
    made.setPageSize(QPageSize(QSizeF(size) * 72 / _DPI, QPageSize.Unit.Point))
    made.setPageMargins(QMarginsF())
    made.setTitle(title)
    return made


def _title_font() -> QFont:
    return theme.font(15, QFont.Weight.DemiBold)


def _paint(device: QPaintDevice, size: QSize, drawing: Drawing, title: str) -> None:
    painter = QPainter(device)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.fillRect(QRectF(0, 0, size.width(), size.height()), theme.tokens.panel)
    painter.setFont(_title_font())
    painter.setPen(theme.tokens.text)
    painter.drawText(QPointF(_MARGIN, _MARGIN + 12), title)
    painter.translate(_MARGIN, _MARGIN + _TITLE_PX)
    drawing.paint(painter)
    painter.end()
