"""What all our pictures share: the frame, texts, and a row of colours with their meaning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from enplace.pictures.palette import picture_style
from enplace.text import elide_middle

CHARACTER = 6.6
"""A typical width of a character of 12 px, in px; the reader's font is not known."""

MARGIN = 16
"""Left of every picture's texts."""

Meaning = tuple[str, str, str]
"""The CSS class of a colour, the text beside it, and its tooltip."""


def frame(title: str, width: float, height: float, parts: Iterable[str]) -> str:
    """Make a picture of its parts, on a panel."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'font-family="Inter, system-ui, sans-serif" font-size="12" role="img">'
    )
    style = f"<title>{escape(title)}</title><style>{picture_style()}</style>"
    panel = f'<rect class="bg" width="{width:g}" height="{height:g}" rx="8"/>'
    return "\n".join([head, style, panel, *parts, "</svg>"]) + "\n"


def heading(text: str) -> str:
    """Draw the title of a picture."""
    return (
        f'<text class="text" x="{MARGIN}" y="26" font-size="15" font-weight="600">'
        f"{escape(text)}</text>"
    )


def fitted(text: str, width: float, size: int = 12) -> str:
    """Elide the middle of a text that is too wide, and escape it."""
    return escape(elide_middle(text, max(int(width / CHARACTER * 12 / size), 3)))


def legend(items: Iterable[Meaning], left: float, y: float, right: float) -> Iterator[str]:
    """Draw what each colour means, in as many lines as needed."""
    x = left
    for colour, text, tip in items:
        width = len(text) * CHARACTER + 34
        if x > left and x + width > right:
            x, y = left, y + 20
        mark = (
            f'<path class="{colour}" stroke-width="2" d="M{x:g} {y - 4:g}h10"/>'
            if colour in ("cut", "edge", "path", "limit")
            else f'<rect class="{colour}" x="{x:g}" y="{y - 9:g}" width="10" height="10" rx="2"/>'
        )
        yield (
            f"<g><title>{escape(tip)}</title>{mark}"
            f'<text class="text" x="{x + 16:g}" y="{y:g}">{escape(text)}</text></g>'
        )
        x += width


def legend_height(items: Iterable[Meaning], left: float, right: float) -> float:
    """Return the height of all lines of a legend."""
    x, lines = left, 1
    for _, text, _ in items:
        width = len(text) * CHARACTER + 34
        if x > left and x + width > right:
            x, lines = left, lines + 1
        x += width
    return 20.0 * lines
