"""The graph pane."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from PySide6.QtCore import QPoint, QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QActionGroup, QContextMenuEvent, QPainter
from PySide6.QtWidgets import QMenu, QToolButton, QWidget

from enplace.names.titles import unshared_title
from enplace.text import count
from enplace_studio.jobs.call_later import call_later
from enplace_studio.jobs.solver import Solver
from enplace_studio.model.document import Document
from enplace_studio.views.graph.canvas import Canvas
from enplace_studio.views.graph.colours import MODES
from enplace_studio.views.graph.devices import DeviceBar, paint_items
from enplace_studio.views.graph.drag import PlaceDrag
from enplace_studio.views.graph.minimap import Minimap
from enplace_studio.views.graph.model import GraphModel
from enplace_studio.views.graph.paint import Marks, paint_scene
from enplace_studio.views.graph.search import SearchBar
from enplace_studio.widgets.labels import ElidedLabel, label
from enplace_studio.widgets.layouts import clear, hbox
from enplace_studio.widgets.menu import add_action, new_menu
from enplace_studio.widgets.messages import button
from enplace_studio.widgets.op_menu import op_menu
from enplace_studio.widgets.panel import SAVE_PICTURE, Panel
from enplace_studio.widgets.pictures import Drawing
from enplace_studio.widgets.theme import theme

LEGEND_GAP = 16
"""Distance of the legend and the graph in a picture."""
_MINIMAP_NEEDS = QSize(560, 300)
_CRUMB_STRETCH = 1000
"""How much more space a part of the path gets than the empty end of its line."""


def make_view(document: Document, solver: Solver) -> GraphView:
    """Make the pane; it needs no solver."""
    return GraphView(document)


class GraphView(Panel):
    """Groups as cards in the colours of their devices; select, open or drag them."""

    def __init__(self, document: Document, parent: QWidget | None = None) -> None:
        super().__init__("Graph", parent=parent)
        self.document = document
        self.model = GraphModel(document, self)
        self.devices = DeviceBar(document, self)
        self.canvas = Canvas(self.model, self)
        self.crumbs = QWidget(self)
        self.minimap = Minimap(self.canvas)
        self.search = SearchBar(document, self)
        self.search.hide()
        self.drag = PlaceDrag(document, self.devices, self)
        self._stepped = False
        self.modes = self._mode_button()
        self.header.addWidget(self.modes)
        for widget in (self.devices, self.crumbs, self.search):
            self.body.addWidget(widget)
        self.body.addWidget(self.canvas, 1)
        self.body.setSpacing(4)
        self._crumbs_layout = hbox(on=self.crumbs, margins=(0, 0, 0, 0))
        self._connect()
        self._dress()
        self._show_level()

    def _connect(self) -> None:
        model, canvas = self.model, self.canvas
        model.level_changed.connect(self._show_level)
        model.changed.connect(self._show_found)
        call_later(self, self._show_scene, model.changed)
        call_later(self, canvas.reveal_selection, self.document.grouping_changed)
        theme.changed.connect(self._dress)
        canvas.looked.connect(self._place_overlays)
        # Queued: several resizes in one go arrange the cards once, still before the next paint.
        canvas.resized.connect(self._fill, Qt.ConnectionType.QueuedConnection)
        canvas.escaped.connect(self._escape)
        canvas.search_wanted.connect(self.start_search)
        canvas.drag_began.connect(self.drag.begin)
        canvas.drag_moved.connect(self.drag.move)
        canvas.drag_ended.connect(lambda pos, only_move: self.drag.drop(pos, not only_move))
        canvas.drag_cancelled.connect(self.drag.cancel)
        self.devices.clicked.connect(lambda d: self.document.place(self.document.selection, d))
        self.minimap.looked_at.connect(canvas.centre_on)
        self.search.changed.connect(self._find)
        self.search.stepped.connect(self.step_match)
        self.search.all_wanted.connect(self._select_found)
        self.search.closed.connect(self.end_search)

    def _show_scene(self) -> None:
        """Paint the scene anew, once for the several signals of an edit."""
        self._show_meanings()
        self._place_overlays()
        self.canvas.update()

    # Colours

    def _mode_button(self) -> QToolButton:
        button = QToolButton(self)
        button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        menu = QMenu(button)
        choice = QActionGroup(menu)
        for number, mode in enumerate(MODES):
            action = choice.addAction(mode.title.capitalize())
            action.setCheckable(True)
            action.triggered.connect(lambda _=False, n=number: self.set_mode(n))
        menu.addActions(choice.actions())
        button.setMenu(menu)
        button.setToolTip("What the colours mean")
        return button

    def _dress(self) -> None:
        self.modes.setStyleSheet(
            f"QToolButton {{ border: none; color: {theme.tokens.dim.name()};"
            f" font-size: {theme.font(11).pixelSize()}px; }}"
            "QToolButton::menu-indicator { image: none; width: 0; }"
        )

    def set_mode(self, number: int) -> None:
        """Choose the colour mode: a number in ``colours.MODES``."""
        self.model.set_mode(number)
        self._show_meanings()

    def commands(self) -> list[tuple[str, Callable[[], object]]]:
        """Return a command for each colour mode."""
        return [
            (f"Colour by {mode.title}", partial(self.set_mode, n)) for n, mode in enumerate(MODES)
        ]

    def _show_meanings(self) -> None:
        scene = self.model.scene
        self.modes.setText(f"colour: {self.model.mode.title} ▾")
        mode = self.model.mode
        self.modes.menu().actions()[MODES.index(mode)].setChecked(True)
        self.devices.set_meanings(mode.legend(scene.facts) if scene else [], mode.shows_devices)

    # Levels

    def _show_level(self) -> None:
        """Show the path from the whole model to the open level."""
        clear(self._crumbs_layout)
        levels = self.model.levels
        opened = levels[0].grouping.opened if len(levels) == 1 else ()
        self.crumbs.setVisible(len(levels) > 1 or bool(opened))
        if opened:
            self._add_crumb(f"Open: {', '.join(opened)}", "dim")
            close = partial(self.document.show_groups, ())
            self._crumbs_layout.addWidget(button("Close all", close, kind="link"))
        above = ""
        for depth, level in enumerate(levels[:-1]):
            crumb = QToolButton()
            crumb.setText(unshared_title(level.title, above))
            crumb.setAutoRaise(True)
            crumb.clicked.connect(lambda _=False, d=depth: self.model.go_to(d))
            self._crumbs_layout.addWidget(crumb)
            self._crumbs_layout.addWidget(label("›", "dim"))
            above = level.title
        if len(levels) > 1:
            self._add_crumb(unshared_title(levels[-1].title, above), "title")
            self._add_crumb(levels[-1].extent, "dim")
        self._crumbs_layout.addStretch(1)

    def _add_crumb(self, text: str, role: str) -> None:
        """Add a text that shrinks in a narrow pane."""
        made = ElidedLabel(role)
        made.ensurePolished()
        made.set_text(text)
        self._crumbs_layout.addWidget(made, _CRUMB_STRETCH)

    def _escape(self) -> None:
        """Leave the search, else an offer, else the open group, else clear the selection."""
        if self.search.isVisible():
            self.end_search()
        elif not self.document.drop_stamp() and not self.model.back():
            self.document.select([])

    # Actions

    def fit(self) -> None:
        """Show all cards."""
        self.canvas.fit()

    def focus_selection(self) -> None:
        """Show the selected cards large."""
        self.canvas.focus_selection()

    # Search

    def start_search(self) -> None:
        """Show the search bar, ready to type."""
        self.search.begin()
        self._place_overlays()

    def end_search(self) -> None:
        """Hide the search bar and the highlights."""
        self.search.hide()
        self.model.find("")
        self.canvas.setFocus()

    def _find(self, query: str) -> None:
        self.model.find(query)
        self._stepped = False
        if self.model.matches:
            self.canvas.reveal(min(self.model.matches))

    def step_match(self, step: int) -> None:
        """Go to the next or previous group that matches, and select what is found in it."""
        matches = sorted(self.model.matches or ())
        if not matches:
            return
        at = self.canvas.current
        place = matches.index(at) + step if at in matches and self._stepped else 0
        self._stepped = True
        chosen = matches[place % len(matches)]
        self.canvas.reveal(chosen)
        self.document.select(self._found_in(chosen))

    def _found_in(self, group: int) -> list[int]:
        level, found = self.model.level, self.model.found
        if level is None or found is None:
            return []
        ops = level.grouping.ops(group)
        return [op for op in ops.tolist() if found[op]]

    def _select_found(self) -> None:
        """Select all ops that the query finds, those outside the open level too."""
        if self.model.found is not None:
            self.document.select(np.flatnonzero(self.model.found).tolist())

    def _show_found(self) -> None:
        found, matches = self.model.found, self.model.matches or {}
        n_ops = 0 if found is None else int(np.count_nonzero(found))
        level = self.model.level
        of_ops = level is not None and level.of_ops
        where = f"({len(matches)} here)" if of_ops else f"in {count(len(matches), 'group')}"
        self.search.show_found(n_ops, where, self.model.fault)

    # Layout of the widgets above the canvas

    def _fill(self) -> None:
        """Fit the cards to the canvas, unless the user has moved or zoomed."""
        fitted = self.canvas.fitted
        self.model.set_size(self.canvas.width(), self.canvas.height())
        if fitted is not None:
            self.canvas.fit(fitted)
        self._place_overlays()

    def _place_overlays(self) -> None:
        self._place_minimap()
        self.canvas.shows_extent = self.minimap.isHidden()

    def _place_minimap(self) -> None:
        area = self.canvas.rect()
        scene = self.model.scene
        fits = area.width() >= _MINIMAP_NEEDS.width() and area.height() >= _MINIMAP_NEEDS.height()
        if scene is None or not fits:
            self.minimap.hide()
            return
        visible = self.canvas.visible()
        self.minimap.show_scene(scene, visible)
        corner = self._free_corner()
        if visible.contains(scene.bounds) or corner is None:
            self.minimap.hide()
        else:
            self.minimap.move(corner)
            self.minimap.show()

    def _free_corner(self) -> QPoint | None:
        """Return where the minimap covers no card; None if no corner is free."""
        area = self.canvas.rect().adjusted(4, 4, -4, -4)
        place = QRect(QPoint(), self.minimap.size())
        for corner in ("moveBottomRight", "moveBottomLeft", "moveTopRight", "moveTopLeft"):
            getattr(place, corner)(getattr(area, corner[4].lower() + corner[5:])())
            if self._is_free(place):
                return place.topLeft()
        return None

    def _is_free(self, place: QRect) -> bool:
        """Return whether no card lies under the minimap."""
        covered = QRectF(place)
        area = self.canvas.camera.transform().inverted()[0].mapRect(covered)
        return self.model.scene is not None and not self.model.scene.nodes_in(area)

    # The menu and the picture

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        card = self.canvas.node_at(self.canvas.mapFromGlobal(event.globalPos()))
        if card is not None and card not in self.model.marks(None).selected:
            self.canvas.select([card])
        project = self.document.project
        if self.document.selection and project is not None:
            open_card = None if card is None else lambda: self.canvas.open(card)
            menu = op_menu(self.document, project, self, open_card)
        else:
            menu = new_menu(self)
        menu.addSeparator()
        add_action(menu, SAVE_PICTURE, self._save_picture)
        menu.popup(event.globalPos())

    def _save_picture(self) -> None:
        self.document.requests.save_picture.emit(self.drawing())

    def drawing(self) -> Drawing | None:
        """Return the whole graph with its legend, whatever part of it is on screen."""
        self.model.wait()
        scene = self.model.scene
        if scene is None:
            return None
        legend, bounds = self.devices.legend(), scene.bounds
        high = max((rect.bottom() + 1 for rect, _ in legend), default=0) + LEGEND_GAP
        wide = max(int(bounds.width()), *(rect.right() + 1 for rect, _ in legend))

        def paint(painter: QPainter) -> None:
            paint_items(painter, legend)
            painter.translate(QPointF(0, high) - bounds.topLeft())
            paint_scene(painter, scene, Marks(), bounds)

        return Drawing("Graph", QSize(wide, int(bounds.height()) + high), paint)
