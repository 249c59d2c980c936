"""Colours and type of the studio, light and dark."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QColor, QFont, QFontDatabase, QGuiApplication

from enplace.pictures.palette import DARK, DEVICES_DARK, DEVICES_LIGHT, LIGHT

MODES = {"system": "Light or dark like the system", "light": "Light", "dark": "Dark"}
"""Titles of the modes."""

TEXT_SIZES = {0.9: "Smaller", 1.0: "As your system has it", 1.15: "Larger", 1.3: "Much larger"}
"""Titles of the sizes of texts, relative to the system's."""


@dataclass(frozen=True)
class Tokens:
    """The colours by purpose. ``faint`` is for decoration only; text uses ``text`` and ``dim``."""

    bg: QColor
    panel: QColor
    line: QColor
    text: QColor
    dim: QColor
    faint: QColor
    accent: QColor
    on_accent: QColor
    lane: QColor
    good: QColor
    bad: QColor
    hover: QColor


def _tokens(values: dict[str, str]) -> Tokens:
    return Tokens(**{name: QColor(value) for name, value in values.items()})


_LIGHT, _DARK = _tokens(LIGHT), _tokens(DARK)
_DEVICES, _DEVICES_DARK = (tuple(map(QColor, c)) for c in (DEVICES_LIGHT, DEVICES_DARK))
_NOTCHES, _NOTCHES_DARK = (
    {color.rgb(): number for number, color in enumerate(colors)}
    for colors in (_DEVICES, _DEVICES_DARK)
)
_LARGEST_USUAL_POINTS = 11.0


class Theme(QObject):
    """The current colours and fonts; ``changed`` is sent when they must be read again."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._mode = "system"
        self._dark = False
        self._family: str | None = None
        self._scale: float | None = None
        self._text_size = 1.0

    @property
    def mode(self) -> str:
        """The user's choice: one of :data:`MODES`."""
        return self._mode

    @property
    def dark(self) -> bool:
        return self._dark

    @property
    def tokens(self) -> Tokens:
        return _DARK if self._dark else _LIGHT

    def device_color(self, number: int) -> QColor:
        """Return the colour of the devices that ``colour_numbers`` gives this number."""
        return (_DEVICES_DARK if self._dark else _DEVICES)[number]

    def notches(self, color: QColor) -> int:
        """Return how many notches mark a device's colour, for eyes that see too few colours.

        It is the number of the colour.
        """
        return (_NOTCHES_DARK if self._dark else _NOTCHES).get(color.rgb(), 0)

    def set_mode(self, mode: str) -> None:
        """Switch to light, dark or the system's theme."""
        self._mode = mode
        self._update()

    def follow_system(self) -> None:
        """Follow changes of the system's theme; call once after making the application."""
        QGuiApplication.styleHints().colorSchemeChanged.connect(self._update)
        self._update()

    def font(
        self, size: int = 12, weight: QFont.Weight = QFont.Weight.Normal, zoom: float = 1.0
    ) -> QFont:
        """Return a font of ``size`` pixels, scaled with the system's text size and zoomed.

        All painters share it, as a copy for each text would take time: do not change it.
        """
        pixels = max(1, round(size * self.scale))
        return _make_font(self.family, round(pixels * zoom), weight)

    @property
    def family(self) -> str:
        """Inter if the system has it, else the system's default font."""
        if self._family is None:
            system = QGuiApplication.font().family()
            self._family = "Inter" if "Inter" in QFontDatabase.families() else system
        return self._family

    @property
    def scale(self) -> float:
        """The size of texts at the start, as in the style sheet, relative to the usual one."""
        if self._scale is None:
            system = max(1.0, QGuiApplication.font().pointSizeF() / _LARGEST_USUAL_POINTS)
            self._scale = system * self._text_size
        return self._scale

    def set_text_size(self, text_size: float) -> None:
        """Show texts larger or smaller than the system asks for; call before making a window."""
        if text_size != self._text_size:
            self._text_size, self._scale = text_size, None
            self.changed.emit()

    def _update(self) -> None:
        system_dark = QGuiApplication.styleHints().colorScheme() == Qt.ColorScheme.Dark
        dark = self._mode == "dark" or (self._mode == "system" and system_dark)
        if dark != self._dark:
            self._dark = dark
            self.changed.emit()


@lru_cache(maxsize=64)  # painting needs thousands of fonts a second, of a dozen kinds
def _make_font(family: str, pixels: int, weight: QFont.Weight) -> QFont:
    font = QFont(family)
    # Inter would show the x between two digits of a name as ×.
    font.setFeature(QFont.Tag("calt"), 0)
    font.setPixelSize(pixels)
    font.setWeight(weight)
    return font


def blend(color: QColor, ground: QColor, share: float) -> QColor:
    """Blend ``share`` of one colour over another."""
    rest = 1 - share
    return QColor(
        round(color.red() * share + ground.red() * rest),
        round(color.green() * share + ground.green() * rest),
        round(color.blue() * share + ground.blue() * rest),
    )


def css_colors(tokens: Tokens) -> dict[str, str]:
    """Return each token's name and its value in style sheet syntax."""
    return {field.name: getattr(tokens, field.name).name() for field in fields(tokens)}


theme = Theme()
