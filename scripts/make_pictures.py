"""Make the pictures of the studio in docs/pictures/ from the running program.

Usage: QT_QPA_PLATFORM=offscreen python scripts/make_pictures.py [FOLDER]. It takes two minutes.

``session.webp`` moves: the real window, driven with real mouse events. The search runs in its own
time; only what is shown of it is faster. The script paints the pointer and the line below.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from PySide6.QtCore import QBuffer, QIODevice, QPoint, QPointF, QRectF, QSizeF, Qt
from PySide6.QtGui import QColor, QFont, QPainter, QPen, QPixmap, QPolygonF
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QMenu, QWidget

from enplace.readers.samples import samples
from enplace.values.problem import THROUGHPUT
from enplace_studio.shell.demo import gentlest_move, let_pass, private_window, wait_idle
from enplace_studio.shell.window import TOUR_KEY, MainWindow
from enplace_studio.solve.chosen_method import Choice
from enplace_studio.widgets.theme import theme

SAMPLE, PIPELINED = "rnnlm-2-2048", "vgg-19"
WINDOW, WIDTH, CAPTION = (1060, 700), 900, 46
STILL = (1280, 800)
SEARCH_S, LOOK_MS = 5, 250
GLIDE_FRAMES, FRAME_MS, SEARCH_FRAME_MS = 8, 50, 110
SHARP: dict[str, Any] = {"lossless": True, "quality": 90, "method": 6, "minimize_size": True}
HIDDEN = ("inspector", "memory", "whatif")
"""Panes that the film does without, so that the graph has room."""
ARROW = ((0, 0), (0, 17), (4, 13), (7, 20), (10, 19), (7, 12), (12, 12))
"""The outline of the pointer."""

LEFT = Qt.MouseButton.LeftButton


class Film:
    """Frames of a window, each with the time that it stays."""

    def __init__(self, window: MainWindow) -> None:
        self.window = window
        self.at = QPoint(window.width() // 2, window.height() // 2)
        self.caption = ("", "")
        self.menu: QMenu | None = None
        self.frames: list[Image.Image] = []
        self.times_ms: list[int] = []

    def say(self, title: str, text: str) -> None:
        """Change the line below the window."""
        self.caption = title, text

    def hold(self, milliseconds: int) -> None:
        """Show what is there now for a while."""
        self._add(milliseconds)

    def glide(self, to: QPoint, widget: QWidget | None = None) -> None:
        """Move the pointer; a widget gets the moves as a drag."""
        start = QPointF(self.at)
        for step in range(1, GLIDE_FRAMES + 1):
            share = step / GLIDE_FRAMES
            eased = share * share * (3 - 2 * share)
            self.at = (start + (QPointF(to) - start) * eased).toPoint()
            if widget is not None:
                QTest.mouseMove(widget, widget.mapFrom(self.window, self.at))
            let_pass(15)
            self._add(FRAME_MS)

    def click(self, widget: QWidget) -> None:
        """Go to the middle of a widget and press it."""
        self.glide(widget.mapTo(self.window, widget.rect().center()))
        self.hold(250)
        QTest.mouseClick(widget, LEFT)

    def watch_search(self) -> None:
        """Show a search while it runs."""
        while self.window.solver.busy or self.window.solver.is_asked:
            let_pass(LOOK_MS)
            self._add(SEARCH_FRAME_MS)

    def _add(self, milliseconds: int) -> None:
        picture = as_image(self._paint())
        if self.frames and picture.tobytes() == self.frames[-1].tobytes():
            self.times_ms[-1] += milliseconds
        else:
            self.frames.append(picture)
            self.times_ms.append(milliseconds)

    def _paint(self) -> QPixmap:
        shot = self.window.grab()
        height = round(shot.height() * WIDTH / shot.width())
        smooth = Qt.TransformationMode.SmoothTransformation
        scaled = shot.scaled(WIDTH, height, Qt.AspectRatioMode.IgnoreAspectRatio, smooth)
        page = QPixmap(WIDTH, height + CAPTION)
        page.fill(theme.tokens.panel)
        with QPainter(page) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.drawPixmap(0, 0, scaled)
            if self.menu is not None:
                self._paint_menu(painter, self.menu, WIDTH / shot.width())
            self._paint_caption(painter, height)
            painter.translate(QPointF(self.at) * WIDTH / shot.width())
            painter.setPen(QPen(QColor("white"), 1.5))
            painter.setBrush(QColor("black"))
            painter.drawPolygon(QPolygonF([QPointF(*corner) for corner in ARROW]))
        return page

    def _paint_menu(self, painter: QPainter, menu: QMenu, scale: float) -> None:
        """Paint an open menu, which is a window of its own."""
        shot = menu.grab()
        corner = self.window.mapFromGlobal(menu.pos())
        area = QRectF(QPointF(corner) * scale, QSizeF(shot.size()) * scale)
        painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform)
        painter.drawPixmap(area, shot, QRectF(shot.rect()))

    def _paint_caption(self, painter: QPainter, top: int) -> None:
        area = QRectF(0, top, WIDTH, CAPTION)
        painter.fillRect(area, theme.tokens.accent)
        painter.setPen(theme.tokens.on_accent)
        painter.setFont(theme.font(17, QFont.Weight.DemiBold))
        inner = area.adjusted(18, 0, -18, 0)
        title, text = self.caption
        middle = Qt.AlignmentFlag.AlignVCenter
        taken = painter.boundingRect(inner, middle, title)
        painter.drawText(inner, middle, title)
        painter.setFont(theme.font(15))
        painter.drawText(inner.adjusted(taken.width() + 16, 0, 0, 0), middle, text)

    def save(self, path: Path) -> None:
        """Write an animated WebP that repeats for ever."""
        first, *others = self.frames
        first.save(
            path, save_all=True, append_images=others, duration=self.times_ms, loop=0, **SHARP
        )
        seconds, size = sum(self.times_ms) / 1000, path.stat().st_size / 1e6
        print(f"{path}: {len(self.frames)} frames, {seconds:.1f} s, {size:.2f} MB")


def as_image(pixmap: QPixmap) -> Image.Image:
    """Turn Qt's picture into one of Pillow."""
    buffer = QBuffer()
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    pixmap.save(buffer, "PNG")
    return Image.open(io.BytesIO(buffer.data().data())).convert("RGB")


@contextmanager
def open_window(size: tuple[int, int], sample: str) -> Iterator[MainWindow]:
    """Show a window with a sample, and fail if the studio reported a fault."""
    with private_window(size) as (window, faults):
        window.studio.settings.setValue(TOUR_KEY, True)
        window.studio.set_theme("light")
        chosen = next(each for each in samples() if each.name == sample)
        window.studio.files.open_sample(chosen)
        window.studio.files.wait()
        wait_idle(window)
        window.studio.chosen.set_time_limit(SEARCH_S)
        let_pass(500)
        yield window
    if faults:
        sys.exit("\n".join(faults))


def film_session(folder: Path) -> None:
    """Solve, drag a group to another GPU, solve around it, compare, export."""
    with open_window(WINDOW, SAMPLE) as window:
        for name in HIDDEN:
            window.panes.docks[name].hide()
        let_pass(500)
        film = Film(window)
        film.say("Open", "a measured profile: the expert's plan is there at once")
        film.hold(1300)
        film.say("Solve", "placement and order together; the step gets shorter as you watch")
        film.click(window.header.solve_button)
        film.watch_search()
        wait_idle(window)
        film.hold(1400)
        _drag(film, window)
        film.say("Solve around it", "your pin stays; everything else may move")
        film.click(window.header.solve_button)
        film.watch_search()
        wait_idle(window)
        film.hold(1000)
        film.say("Compare", "two plans on one axis, and where the time went")
        window.document.select([])
        window.toast.hide()
        window.studio.compare_plans()
        let_pass(900)
        film.hold(2600)
        film.say("Apply", 'import enplace; enplace.apply("plan.json")')
        button = window.header.export_button
        film.glide(button.mapTo(window, button.rect().center()))
        film.menu = button.menu()
        film.menu.popup(button.mapToGlobal(button.rect().bottomLeft() - QPoint(110, -4)))
        let_pass(200)
        film.hold(2600)
        film.menu.close()
        film.save(folder / "session.webp")


def _drag(film: Film, window: MainWindow) -> None:
    """Drag the group whose move costs least onto the chip of another GPU."""
    graph: Any = window.panes.middle_view
    ops, gpu = gentlest_move(window.document)
    canvas, scene = graph.canvas, graph.canvas.scene
    card = next(n for n in range(scene.n) if set(ops) == set(scene.ops([n])))
    at = canvas.camera.transform().map(scene.rects[card].center()).toPoint()
    chip = next(rect for rect, item in graph.devices.legend() if item.device == gpu)
    window.toast.hide()
    film.say("Drag", "a group onto another GPU; the price is shown before you drop it")
    film.glide(canvas.mapTo(window, at))
    QTest.mousePress(canvas, LEFT, pos=at)
    film.hold(300)
    film.glide(graph.devices.mapTo(window, chip.center()), canvas)
    film.hold(1300)
    QTest.mouseRelease(canvas, LEFT, pos=canvas.mapFrom(window, film.at))
    let_pass(600)
    film.hold(1400)


def take_stills(folder: Path) -> None:
    """Take the whole window, two plans side by side, and a pipeline."""
    with open_window(STILL, SAMPLE) as window:
        window.studio.solving.solve()
        wait_idle(window)
        ops, gpu = gentlest_move(window.document)
        window.document.select(ops)
        window.document.place(ops, gpu)
        _save(window, folder / "window.webp")
        window.document.select([])
        window.studio.compare_plans()
        _save(window, folder / "compare.webp")
    with open_window(STILL, PIPELINED) as window:
        window.studio.chosen.use(Choice("max-load-dp", THROUGHPUT, time_limit_s=SEARCH_S))
        window.studio.solving.solve()
        wait_idle(window)
        _save(window, folder / "pipeline.webp")


def _save(window: MainWindow, path: Path) -> None:
    let_pass(1500)
    window.toast.hide()
    as_image(window.grab()).save(path, **SHARP)
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


def main(folder: Path) -> None:
    """Make all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    film_session(folder)
    take_stills(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs/pictures")
