"""How the panes share the window: a width for each side, and a height for each pane.

What the user asked for last has the room. A pane that would be too low to be of use is folded to
its title; one press on that, and it has the room. No fold outlasts the session: the next one may
have more room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from PySide6.QtCore import QEvent, QObject, QSettings, Qt, QTimer
from PySide6.QtWidgets import QApplication, QMainWindow, QStyle

from enplace_studio.jobs.call_later import call_later
from enplace_studio.shell.docks import GRIP_HEIGHT, Dock
from enplace_studio.views.view import View
from enplace_studio.widgets.panel import NO_LIMIT, Need, Panel
from enplace_studio.widgets.theme import theme

USUAL_WIDTH = 1440
"""The width of a window in which each side has the width that its views prefer."""
SIDE_SHARE, LOW_SHARE, ASKED_LOW_SHARE = 0.28, 0.3, 0.5
"""Largest shares of the window's width for a side, and of its height for the panes below.

The last is for panes with something that the user asked for.
"""
SLACK_PX = 150
"""As long as a pane has less than this to spare, none moves because it needs less."""
RETRY_MS = 100

_BY_HAND_KEY = "window/by-hand"
_Area = Qt.DockWidgetArea
_LEFT, _RIGHT, _LOW = (
    _Area.LeftDockWidgetArea,
    _Area.RightDockWidgetArea,
    _Area.BottomDockWidgetArea,
)
_SIDES = (_LEFT, _RIGHT)


def share(
    room: int, needs: Sequence[Need], closed: Sequence[bool], first_asked: bool = False
) -> list[int]:
    """Divide a height among panes, the most important first; a folded one gets its title's.

    Parameters
    ----------
    closed : sequence of bool
        Whether the user has folded a pane, which then stays folded.
    first_asked : bool
        Whether the first pane gets what it wants before the others get anything; it leaves them
        the least that they need if that is up to half of the room, for it can scroll.
    """
    heights = [need.title for need in needs]
    left = room - sum(heights)
    opened: list[int] = []

    def grow(at: int, height: int) -> None:
        nonlocal left
        more = min(max(height - heights[at], 0), max(left, 0))
        heights[at] += more
        left -= more

    others = sum(
        n.least - n.title for n, shut in zip(needs[1:], closed[1:], strict=True) if not shut
    )
    first_px = max(left - others, room // 2) + heights[0] if needs else 0
    for at, need in enumerate(needs):
        if not closed[at] and (not opened or need.least - need.title <= left):
            grow(at, min(need.wanted, first_px) if first_asked and not at else need.least)
            opened.append(at)
    for aim in ("wanted", "most"):
        for at in opened:
            grow(at, getattr(needs[at], aim))
    if opened:
        grow(opened[0], room)
    return heights


class PaneSizes(QObject):
    """Sets the sizes of the docks whenever the window, or what they show, has changed.

    Sizes that the user sets by dragging a separator stay, until the layout is reset.
    """

    def __init__(
        self, window: QMainWindow, views: Sequence[View], docks: Mapping[str, Dock], kept: QSettings
    ) -> None:
        super().__init__(window)
        self._window, self._docks, self._settings = window, docks, kept
        self._views = {view.id: view for view in views if view.id in docks}
        self._order = list(self._views)
        self._folded: set[str] = set()
        self._by_hand = set(saved_names(kept.value(_BY_HAND_KEY)))
        self._pressed: dict[str, tuple[int, int]] | None = None
        self._timer = call_later(self, self._settle)
        window.installEventFilter(self)
        for name, dock in docks.items():
            dock.visibilityChanged.connect(self._follow_visibility)
            dock.toggleViewAction().triggered.connect(partial(self._ask_if_shown, name))
            dock.topLevelChanged.connect(self._timer.start)
            dock.dockLocationChanged.connect(self._timer.start)
            if isinstance(panel := dock.view, Panel):
                panel.make_foldable()
                panel.asked.connect(partial(self.ask, name))
                panel.released.connect(self._timer.start)
                panel.fold_pressed.connect(partial(self.toggle, name))
                panel.need_changed.connect(partial(self._follow_need, name))

    # Requests

    def ask(self, name: str) -> None:
        """Give a pane the room that it needs."""
        self._open(name)
        self._timer.start()

    def toggle(self, name: str) -> None:
        """Fold a pane until the user opens it or the session ends, or open it."""
        panel = self._docks[name].view
        if isinstance(panel, Panel) and panel.is_folded:
            panel.holds_room = True
            self._open(name)
        elif isinstance(panel, Panel):
            panel.holds_room = False
            self._folded.add(name)
        self.share()

    def _open(self, name: str) -> None:
        self._folded.discard(name)
        self._order.remove(name)
        self._order.insert(0, name)

    def reset(self) -> None:
        """Forget what the user has folded or sized."""
        self._folded, self._by_hand = set(), set()
        self._order = list(self._views)
        self._settings.remove(_BY_HAND_KEY)
        self.share()

    def _follow_visibility(self, visible: bool) -> None:
        if visible:
            self._timer.start()

    def give_room(self, name: str) -> None:
        """Give a pane that the user has just opened the room that it needs."""
        if isinstance(panel := self._docks[name].view, Panel):
            panel.holds_room = True
            self.ask(name)

    def _ask_if_shown(self, name: str) -> None:
        if not self._docks[name].isHidden():
            self.give_room(name)

    def _follow_need(self, name: str) -> None:
        """Share the room anew, unless a pane just needs a little less than it has."""
        panel = self._docks[name].view
        if isinstance(panel, Panel) and panel.isVisible() and not panel.is_folded:
            spare = panel.height() - panel.need().wanted
            if not 0 <= spare < SLACK_PX:
                self._timer.start()

    def _settle(self) -> None:
        """Share the room, but move nothing while the user presses a button of the mouse."""
        if QApplication.mouseButtons() != Qt.MouseButton.NoButton:
            QTimer.singleShot(RETRY_MS, self, self._timer.start)
        else:
            self.share()

    # Sharing

    def share(self) -> None:
        """Set all widths, then all heights."""
        if not self._window.isVisible():
            return
        for name, dock in self._docks.items():
            if dock.isFloating():
                self._fold(name, False)
        for area in _SIDES:
            self._share_width(area)
        for area in _SIDES:
            self._share_height(area)
        self._share_low()

    def _in(self, area: Qt.DockWidgetArea) -> list[str]:
        """Return the docks of an area, from top to bottom."""
        found = [
            name
            for name, dock in self._docks.items()
            if dock.isVisible()
            and not dock.isFloating()
            and self._window.dockWidgetArea(dock) == area
            and not self._window.tabifiedDockWidgets(dock)
        ]
        return sorted(found, key=lambda name: self._docks[name].y())

    def _share_width(self, area: Qt.DockWidgetArea) -> None:
        names, width = self._in(area), self._window.width()
        if not names:
            return
        wanted = max(self._views[name].width or 0 for name in names)
        px = round(wanted * theme.scale * min(max((1 + width / USUAL_WIDTH) / 2, 0.9), 1.4))
        if f"{_name(area)} width" in self._by_hand or not wanted:
            px = self._docks[names[0]].width()
        self._resize(names[:1], [min(px, round(SIDE_SHARE * width))], Qt.Orientation.Horizontal)

    @property
    def _height(self) -> int:
        """Height of the panes between the header and the status line."""
        central, status = self._window.centralWidget(), self._window.statusBar()
        bottom = status.y() if status.isVisible() else self._window.height()
        return bottom - (central.y() if central is not None else 0)

    def _share_height(self, area: Qt.DockWidgetArea) -> None:
        names = self._in(area)
        if not names or len({self._docks[name].x() for name in names}) > 1:
            return
        extent = QStyle.PixelMetric.PM_DockWidgetSeparatorExtent
        between = self._window.style().pixelMetric(extent, None, self._window)
        room = self._height - len(names) * GRIP_HEIGHT - (len(names) - 1) * between
        ranked = sorted(names, key=self._rank)
        needs = [self._need(name) for name in ranked]
        first = self._docks[ranked[0]].view
        asked = isinstance(first, Panel) and first.holds_room
        heights = share(room, needs, [name in self._folded for name in ranked], asked)
        by_hand = _name(area) in self._by_hand
        open_ones: dict[str, int] = {}
        for name, need, height in zip(ranked, needs, heights, strict=True):
            fold = name in self._folded if by_hand else height <= need.title < need.wanted
            self._fold(name, fold)
            if not fold and not by_hand:
                open_ones[name] = height + GRIP_HEIGHT
        self._resize(list(open_ones), list(open_ones.values()), Qt.Orientation.Vertical)

    def _rank(self, name: str) -> int:
        """Rank panes: first the one asked for last, then the one in use, then the others."""
        focused = QApplication.focusWidget()
        at = self._order.index(name) * 2
        return min(at, 1) if focused and self._docks[name].isAncestorOf(focused) else at

    def _need(self, name: str) -> Need:
        view = self._docks[name].view
        if isinstance(view, Panel):
            return view.need()
        height = self._views[name].height or view.sizeHint().height()
        return Need(height, height, height, height)

    def _share_low(self) -> None:
        names = self._in(_LOW)
        if not names or _name(_LOW) in self._by_hand:
            return
        usual = max(self._views[name].height or 0 for name in names)
        views = [self._docks[name].view for name in names]
        asked = any(isinstance(view, Panel) and view.holds_room for view in views)
        most = max(usual, round((ASKED_LOW_SHARE if asked else LOW_SHARE) * self._height))
        for name in names:
            self._fold(name, name in self._folded)
        wanted = max(self._need(name).wanted for name in names)
        height = min(max(wanted, usual), most)
        self._resize(names[:1], [height + GRIP_HEIGHT], Qt.Orientation.Vertical)

    def _fold(self, name: str, fold: bool) -> None:
        dock, view = self._docks[name], self._docks[name].view
        if isinstance(view, Panel):
            if view.is_folded != fold:
                view.set_folded(fold)
            title = view.title_height + GRIP_HEIGHT
            dock.setMaximumHeight(title if fold else NO_LIMIT)
            dock.setMinimumHeight(title if fold else 0)

    def _resize(self, names: list[str], sizes: list[int], side: Qt.Orientation) -> None:
        if names:
            self._window.resizeDocks([self._docks[name] for name in names], sizes, side)

    # Sizes set by hand

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.MouseButtonPress and watched is self._window:
            self._pressed = self._sizes()
        elif event.type() == QEvent.Type.MouseButtonRelease and watched is self._window:
            QTimer.singleShot(0, self, self._note_sizes)
        return False

    def _sizes(self) -> dict[str, tuple[int, int]]:
        return {name: (dock.width(), dock.height()) for name, dock in self._docks.items()}

    def _note_sizes(self) -> None:
        """Remember which sizes the user has just changed by dragging a separator."""
        before, self._pressed = self._pressed, None
        if before is None:
            return
        for area in (*_SIDES, _LOW):
            for name in self._in(area):
                dock, (width, height) = self._docks[name], before[name]
                if dock.height() != height:
                    self._by_hand.add(_name(area))
                if dock.width() != width and area != _LOW:
                    self._by_hand.add(f"{_name(area)} width")
        self._settings.setValue(_BY_HAND_KEY, sorted(self._by_hand))


def _name(area: Qt.DockWidgetArea) -> str:
    return area.name or ""


def saved_names(found: object) -> list[str]:
    """Return a list of names as settings keep it, one name alone as itself."""
    names = [found] if isinstance(found, str) else found
    return [each for each in names if isinstance(each, str)] if isinstance(names, list) else []
