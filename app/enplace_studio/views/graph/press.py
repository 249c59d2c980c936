"""The left mouse button on the graph, from press to release."""

from __future__ import annotations

from PySide6.QtCore import QPointF, Qt

from enplace_studio.widgets.dragging import RubberBand, is_drag


class Press:
    """A press that stays a click, stretches a rubber band, or drags the selected cards.

    Attributes
    ----------
    card : int or None
        The card that was pressed.
    band : RubberBand or None
        Made when the pointer leaves a place without a card.
    is_dragging : bool
        Whether the selected cards follow the pointer.
    """

    def __init__(self, at: QPointF, card: int | None) -> None:
        self._at, self.card = at, card
        self.band: RubberBand | None = None
        self.is_dragging = False

    def move(self, at: QPointF, keys: Qt.KeyboardModifier) -> bool:
        """Follow the pointer; return whether a drag of the cards begins now."""
        if self.is_dragging or (self.band is None and not is_drag(at - self._at)):
            return False
        if self.card is None:
            self.band = self.band or RubberBand(self._at)
            self.band.stretch(at)
            return False
        self.is_dragging = not keys & Qt.KeyboardModifier.ControlModifier
        return self.is_dragging
