"""Numbers and names for people, with units, a real minus sign and sensible digits."""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Collection, Sequence
from contextlib import suppress

UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ud800-\udfff\U000e0000-\U000e0fff]"
)
"""Characters that control a terminal, end a line, turn the text around or are invisible."""

WORDS = "[a-z][a-z0-9]*(-[a-z0-9]+)*"
"""A regex of names that people type: lower-case words joined by hyphens."""

MINUS = "−"
AS_FAST = "as fast"
"""What a time is called whose change from another shows as 0.0 %."""

MAX_WORD = 120
MOST_OPS = 3
MAX_LISTED = 24
_LONG_WORD = re.compile(rf"\S{{{MAX_WORD + 1},}}")
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SIZE = re.compile(r"(?i)(\d+(?:\.\d+)?) ?([KMGT])(i?)B")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?) ?%")
_CELL_START = r"(?:^|(?<=[,;|:\s]))"
"""A cell of a spreadsheet may start here: its separators include what a person may choose."""

_SKIPPED = (
    r"[\x22\xad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0]*"
)
"""Quotes, and characters without a width, after which a spreadsheet may still find a formula."""

_FORMULA = re.compile(rf"{_CELL_START}(?={_SKIPPED}[=+@＝＋＠－\t\r-])")
_AMOUNT = rf"\+[\d,.]+ (?:ms|%|{'|'.join(_SIZES)})(?![^\s,;|:)])"
_FORMULA_BUT_NO_AMOUNT = re.compile(rf"(?!{_CELL_START}{_AMOUNT}){_FORMULA.pattern}")


def one_line(text: str) -> str:
    """Return text without line breaks and other control characters."""
    return " ".join(filter(None, UNPRINTABLE.split(text))).strip()


def printable(text: str) -> str:
    """Return text of several lines without other control characters."""
    return "\n".join(UNPRINTABLE.sub(" ", line) for line in text.split("\n"))


def cell_text(text: str, *, keep_amounts: bool = False) -> str:
    """Put an apostrophe before whatever a spreadsheet would take for a formula.

    It may split a line at commas, semicolons, tabs, bars, colons or blanks, inside of a name too.

    Parameters
    ----------
    keep_amounts : bool
        Whether a change that we show, such as ``+2.1 ms``, stays as it is.
    """
    return (_FORMULA_BUT_NO_AMOUNT if keep_amounts else _FORMULA).sub("'", text)


def finite(value: object) -> float | None:
    """Return the finite number in a value from a file; None if it is not one."""
    with suppress(OverflowError):  # an integer beyond every float
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    return None


def ms(time_us: float, signed: bool = False) -> str:
    """Show a time in milliseconds: ``148.9 ms``, ``0.012 ms``; with ``signed``, ``+2.1 ms``.

    Below a thousandth it is shown in a smaller unit, ``0.44 ns``: nobody counts zeros.
    """
    value = round(time_us / 1000, 9)  # the difference of equal times may be an error of rounding
    units = ["ms", "µs", "ns"]
    while 0 < abs(value) < 0.000995 and len(units) > 1:
        value, units = 1000 * value, units[1:]
    digits = 1 if abs(value) >= 0.995 else _decimals(value, significant=2)
    return f"{_number(value, digits, signed)} {units[0]}"


def ms_changes(levels_us: Sequence[float]) -> tuple[list[str], list[str]]:
    """Show times and the changes from each to the next, such that the numbers shown add up.

    Returns
    -------
    levels, changes : lists of str
        Of lengths n and n - 1.
    """
    largest = max(map(abs, levels_us)) / 1000
    digits = 1 if largest >= 0.995 else _decimals(largest, significant=2)
    shown = [round(us / 1000, digits) for us in levels_us]
    steps = [after - before for before, after in itertools.pairwise(shown)]
    return (
        [f"{_number(level, digits, False)} ms" for level in shown],
        [f"{_number(step, digits, True)} ms" for step in steps],
    )


def size(n_bytes: float, signed: bool = False) -> str:
    """Show bytes in binary units: ``512 B``, ``1.0 MiB``, ``61 MiB``, ``11.9 GiB``."""
    value, unit = float(n_bytes), 0
    while abs(value) >= 1023.5 and unit < len(_SIZES) - 1:
        value, unit = value / 1024, unit + 1
    limit = 100 if _SIZES[unit] in ("GiB", "TiB", "PiB") else 9.95
    digits = 1 if unit and abs(value) < limit else 0
    return f"{_number(value, digits, signed)} {_SIZES[unit]}"


def read_size(text: str) -> int:
    """Return the bytes of a size such as ``12GiB`` or ``800 MB``; 0 if it is none."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return 0
    base = 1024 if found[3] else 1000
    return int(float(found[1]) * base ** (1 + "KMGT".index(found[2].upper())))


def read_percent(text: str) -> float | None:
    """Return the share that a text such as ``5%`` means, from 0 to 1; None if it is none."""
    found = _PERCENT.fullmatch(text.strip())
    share = float(found[1]) / 100 if found else math.inf
    return share if share <= 1 else None


def percent(fraction: float, signed: bool = False) -> str:
    """Show a fraction in percent with one decimal: ``8.1 %``; with ``signed``, ``−19.8 %``."""
    return f"{_number(fraction * 100, 1, signed)} %"


def shows_tie(change: float) -> bool:
    """Return whether a change of a time shows as 0.0 %: nobody calls that faster or slower."""
    return float(f"{change * 100:.1f}") == 0


def change_text(change: float) -> str:
    """Show the change of a time from another: ``−19.8 %``, ``129 times``; or :data:`AS_FAST`."""
    if change >= 9:
        return f"{change + 1:,.0f} times"
    return AS_FAST if shows_tie(change) else percent(change, signed=True)


def gap_text(gap: float | None, fits: bool) -> str:
    """Show a plan's gap to the lower bound; a dash for a plan that does not fit."""
    return percent(gap) if fits and gap is not None else "—"


def rate(bytes_per_s: float) -> str:
    """Show a bandwidth in decimal units, as in data sheets: ``25 GB/s``, ``850 MB/s``."""
    value, unit = (bytes_per_s / 1e9, "GB/s") if bytes_per_s >= 1e9 else (bytes_per_s / 1e6, "MB/s")
    digits = min(_decimals(value, significant=3), 1)
    return f"{_number(value, digits, False).removesuffix('.0')} {unit}"


def quantity(value: float, unit: str = "") -> str:
    """Show a large number with a decimal prefix: ``3.9 GFLOP``, ``512``."""
    prefixes = ["", "k", "M", "G", "T", "P"]
    while abs(value) >= 999.5 and len(prefixes) > 1:
        value, prefixes = value / 1000, prefixes[1:]
    return f"{value:.3g} {prefixes[0]}{unit}".strip()


def factor(value: float) -> str:
    """A factor: ``1 ×``, ``1.5 ×``, ``0.25 ×``."""
    return f"{value:.3g} ×"


def seconds(time_s: float) -> str:
    """Show a waiting time: ``0.4 s``, ``12 s``, ``3 min 20 s``."""
    if time_s >= 60:
        return f"{int(time_s) // 60} min {int(time_s) % 60} s"
    return f"{time_s:.1f} s" if time_s < 10 else f"{time_s:.0f} s"


def count(number: int, noun: str) -> str:
    """Show a number of things: ``1 op``, ``3,776 ops``, ``2 processes``."""
    ending = "es" if noun.endswith(("s", "ch")) else "s"
    return f"{number:,} {noun}{'' if number == 1 else ending}"


def as_clause(sentence: str) -> str:
    """Return a sentence as a part of one, such as of notes that a semicolon joins."""
    return sentence[:1].lower() + sentence[1:].rstrip(".")


def as_sentence(note: str) -> str:
    """Return a note, which may be a clause or several, with a capital and a full stop.

    >>> as_sentence("stopped early; the rest is known"), as_sentence("")
    ('Stopped early; the rest is known.', '')
    """
    return f"{capital(note).rstrip('.')}." if note else ""


def capital(text: str) -> str:
    """Return a text with a capital first letter."""
    return text[:1].upper() + text[1:]


def elide_middle(text: str, length: int) -> str:
    """Shorten a text to at most ``length`` characters by leaving out its middle."""
    if len(text) <= length:
        return text
    tail = (length - 1) // 2
    return f"{text[: length - 1 - tail]}…{text[len(text) - tail :]}"


def shortened(text: str) -> str:
    """Shorten every word of a message that is too long to read, such as a name from a file."""
    return _LONG_WORD.sub(lambda word: elide_middle(word[0], MAX_WORD), text)


def instead(name: str, known: Collection[str]) -> str:
    """Suggest the known name that is nearest to an unknown one, or list some of them."""
    near = difflib.get_close_matches(name[:MAX_WORD], known, n=1)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"use one of {listed(known)}"


def listed(names: Collection[str]) -> str:
    """Join names with commas; of very many, only the first."""
    some = list(names)[:MAX_LISTED]
    return f"{', '.join(some)}{', ...' if len(names) > MAX_LISTED else ''}"


def joined(names: Sequence[str]) -> str:
    """Join names as a sentence does: ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def listed_ops(names: Collection[str]) -> str:
    """Name the first few ops, and say how many others there are."""
    some = listed([f"'{name}'" for name in list(names)[:MOST_OPS]])
    more = len(names) - MOST_OPS
    return some + (f" and {count(more, 'other op')}" if more > 0 else "")


def table(rows: list[list[str]], numbers: str) -> str:
    """Align columns; the first row is the heading.

    Parameters
    ----------
    numbers : str
        One letter for each column: ``r`` aligns it right, ``l`` left.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(row, widths, numbers, strict=True)
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def _decimals(value: float, significant: int) -> int:
    """Count the decimals that show a number with this many significant digits."""
    if value == 0 or not math.isfinite(value):
        return 0
    return max(0, significant - 1 - math.floor(math.log10(abs(value))))


def _number(value: float, digits: int, signed: bool) -> str:
    shown = f"{abs(value):,.{digits}f}"
    if float(shown.replace(",", "")) == 0:
        return shown if digits <= 1 else "0"
    sign = MINUS if value < 0 else "+" if signed else ""
    return sign + shown
