"""The colours of cards, and the legend that explains them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from PySide6.QtGui import QColor

from enplace.text import count, ms
from enplace.values.profile import FloatArray, IntArray
from enplace_studio.views.graph.graph_facts import WORK_KINDS, Facts, StageFact
from enplace_studio.widgets.theme import blend, theme

_SHORTEST_US = 10.0

_MOST_NUMBERS, _MOST_IN_TIP = 3, 20
"""Largest number of stage numbers per device and pass, on its chip and in the chip's tip."""

Stripes = tuple[tuple[QColor, float], ...]
"""Colours side by side on one card, and the share of its width for each."""


@dataclass(frozen=True)
class Meaning:
    """One entry of a legend: a colour, solid or ``hatched``, and its meaning.

    Attributes
    ----------
    to : QColor or None
        The other end of a scale that begins with ``color``.
    device : int or None
        The device whose chip shows it; None for a separate entry.
    tip : str
        A longer text for the tooltip.
    """

    color: QColor
    text: str
    hatched: bool = False
    device: int | None = None
    tip: str = ""
    to: QColor | None = None


Legend = list[Meaning]


@dataclass(frozen=True)
class Look:
    """The colours of a card, and the text below its name.

    Attributes
    ----------
    notes : tuple of str
        Candidates for the right end of the line; the first that fits is drawn.
    short : str
        Replaces the line if no note fits; empty to keep the line.
    full : bool
        Whether the card is filled with the colour itself, not with a tint of it.
    """

    stripes: Stripes
    line: str
    notes: tuple[str, ...] = ()
    short: str = ""
    hatched: bool = False
    full: bool = False


@dataclass(frozen=True)
class Mode:
    """A colour mode: ``looks`` colours every card, ``legend`` explains the colours.

    ``shows_devices`` tells whether cards have the colours of devices.
    """

    title: str
    looks: Callable[[Facts], list[Look]]
    legend: Callable[[Facts], Legend]
    shows_devices: bool = False


def _by_device(facts: Facts) -> list[Look]:
    looks = []
    for group, shares in enumerate(facts.share.tolist()):
        stripes = _of_devices(facts, enumerate(shares))
        notes = (f"on {len(stripes)}",) if len(stripes) > 1 else ()
        looks.append(Look(stripes or _plain(), _short_ms(facts.time_us[group]), notes))
    return looks


def _short_ms(time_us: float) -> str:
    """Format milliseconds with few digits, because a card is narrow."""
    return "< 0.01 ms" if 0 < time_us < _SHORTEST_US else ms(time_us)


def _by_time(facts: Facts) -> list[Look]:
    return _shaded(facts.time_us, theme.tokens.accent)


def _shaded(time_us: FloatArray, color: QColor, without: str = "") -> list[Look]:
    """Fill each card with a shade for its time; one without any says so, if there is a word."""
    # Square roots, because most times are short.
    shares = np.sqrt(time_us / (time_us.max(initial=0.0) or 1.0)).tolist()
    return [
        Look(_plain(), without)
        if without and not time
        else Look(((_shade(color, share), 1.0),), _short_ms(time), full=True)
        for share, time in zip(shares, time_us.tolist(), strict=True)
    ]


def _by_work(facts: Facts) -> list[Look]:
    return [Look(((_work_color(kind), 1.0),), WORK_KINDS[kind][1]) for kind in facts.work.tolist()]


def _by_pins(facts: Facts) -> list[Look]:
    def line(pinned: int, n_ops: int) -> str:
        return "pinned" if pinned == n_ops else f"{pinned} of {n_ops}" if pinned else "free"

    return _parts(facts, facts.n_pinned, theme.tokens.accent, line)


def _parts(
    facts: Facts, numbers: IntArray, color: QColor, line: Callable[[int, int], str]
) -> list[Look]:
    """Colour the part of each card that some of its ops are; the rest is grey."""
    looks = []
    for number, n_ops in zip(numbers.tolist(), facts.n_ops.tolist(), strict=True):
        part = number / n_ops
        stripes = ((color, part), (theme.tokens.faint, 1 - part))
        looks.append(Look(tuple(s for s in stripes if s[1]), line(number, n_ops)))
    return looks


def _by_critical_path(facts: Facts) -> list[Look]:
    return _shaded(facts.critical_us, theme.tokens.bad, "not on it")


def _by_contiguity(facts: Facts) -> list[Look]:
    def line(further: int, n_ops: int) -> str:
        return f"{further} of {n_ops} further" if further else "contiguous"

    return _parts(facts, facts.n_further, theme.tokens.bad, line)


def _by_stage(facts: Facts) -> list[Look]:
    """Colour by stage, or by device if the stages are not known."""
    looks = _by_device(facts)
    for group, (stage, n) in enumerate(
        zip(facts.stage.tolist(), facts.n_stages.tolist(), strict=True)
    ):
        if n:
            looks[group] = _stage_look(facts, facts.stages[stage], n - 1)
    return looks


def _stage_look(facts: Facts, stage: StageFact, n_more: int) -> Look:
    """Use the colours of its devices, hatched for backward as in the timeline."""
    stripes = _of_devices(facts, ((d, 1 / len(stage.devices)) for d in stage.devices))
    more = (f"{count(n_more, 'more stage')} · {stage.where}",) if n_more else ()
    return Look(
        stripes,
        f"stage {stage.number}",
        (*more, stage.where),
        f"{stage.number} · {stage.where}",
        stage.backward,
    )


def _by_move(facts: Facts) -> list[Look]:
    looks = []
    for group, shares in enumerate(facts.moved.tolist()):
        moved = sum(shares)
        stripes = _of_devices(facts, enumerate(shares))
        kept = [(theme.tokens.faint, 1 - moved)] if moved < 1 else []
        n_moved = round(moved * int(facts.n_ops[group]))
        line = f"{n_moved:,} moved" if n_moved else "same"
        looks.append(Look((*stripes, *kept), line))
    return looks


def _of_devices(facts: Facts, shares: Iterable[tuple[int, float]]) -> Stripes:
    """Return the colours of devices with a share."""
    return tuple((theme.device_color(facts.colours[d]), share) for d, share in shares if share)


def _plain() -> Stripes:
    return ((theme.tokens.faint, 1.0),)


def _shade(color: QColor, share: float) -> QColor:
    """Return a colour of a scale: pale for the shortest times, never too dark for its text."""
    return blend(color, theme.tokens.panel, 0.1 + 0.5 * share)


def _scale(color: QColor, longest_us: float, what: str) -> Meaning:
    return Meaning(_shade(color, 0.0), f"0 to {ms(longest_us)}{what}", to=_shade(color, 1.0))


def _work_color(kind: int) -> QColor:
    """Choose a muted colour that differs from those of the devices."""
    light = ("#332288", "#882255", "#117733", "#AA4499", "#7A7A52")
    dark = ("#A99BF0", "#E08BB0", "#7CC48B", "#D9A0D3", "#BDBD8F")
    return QColor((dark if theme.dark else light)[kind])


def _time_legend(facts: Facts) -> Legend:
    return [_scale(theme.tokens.accent, float(facts.time_us.max(initial=0.0)), " of compute")]


def _work_legend(facts: Facts) -> Legend:
    kinds = np.unique(facts.work).tolist()
    return [Meaning(_work_color(kind), WORK_KINDS[kind][0]) for kind in kinds]


def _pin_legend(facts: Facts) -> Legend:
    pinned = count(int(facts.n_pinned.sum()), "pinned op")
    return [Meaning(theme.tokens.accent, pinned), Meaning(theme.tokens.faint, "free")]


def _critical_legend(facts: Facts) -> Legend:
    longest_us, total_us = facts.critical_us.max(initial=0.0), facts.critical_us.sum()
    on_path = f" on the critical path, {ms(float(total_us))} in all"
    return [
        _scale(theme.tokens.bad, float(longest_us), on_path),
        Meaning(theme.tokens.faint, "not on it"),
    ]


def _contiguity_legend(facts: Facts) -> Legend:
    further = count(int(facts.n_further.sum()), "op")
    return [
        Meaning(theme.tokens.bad, f"{further} in a device’s further subgraphs"),
        Meaning(theme.tokens.faint, "in a device’s first subgraph"),
    ]


def _move_legend(facts: Facts) -> Legend:
    n_moved = round(float((facts.moved.sum(axis=1) * facts.n_ops).sum()))
    moved = f"{count(n_moved, 'op')} moved to the device of their colour" if n_moved else "all same"
    tip = "Compared with the plan before your edits, or else with the expert's."
    return [Meaning(theme.tokens.faint, f"same ({moved})" if n_moved else moved, tip=tip)]


def _stage_legend(facts: Facts) -> Legend:
    """Put stage numbers on the devices' chips; then explain forward and backward."""
    numbers: dict[tuple[int, bool], list[int]] = {}
    for stage in facts.stages:
        for device in stage.devices:
            numbers.setdefault((device, stage.backward), []).append(stage.number)
    ways = {stage.backward: f"{stage.way} stage".strip() for stage in facts.stages}
    legend = []
    for device, backward in sorted(numbers):
        all_there = numbers[device, backward]
        plural = "s" if len(all_there) > 1 else ""
        tip = f"{ways[backward]}{plural} {_few(all_there, _MOST_IN_TIP)}"
        text, color = _few(all_there, _MOST_NUMBERS), theme.device_color(facts.colours[device])
        legend.append(Meaning(color, text, backward, device, tip))
    return legend + [Meaning(theme.tokens.dim, ways[way], way) for way in sorted(ways)]


def _few(numbers: list[int], most: int) -> str:
    return ", ".join(map(str, numbers[:most])) + (", …" if len(numbers) > most else "")


BY_DEVICE = Mode("device", _by_device, lambda facts: [], shows_devices=True)
BY_STAGE = Mode("stage", _by_stage, _stage_legend, shows_devices=True)

MODES = (
    BY_DEVICE,
    Mode("compute time", _by_time, _time_legend),
    Mode("op type", _by_work, _work_legend),
    Mode("pinned", _by_pins, _pin_legend),
    Mode("critical path", _by_critical_path, _critical_legend),
    Mode("moved", _by_move, _move_legend, shows_devices=True),
    Mode("contiguity", _by_contiguity, _contiguity_legend),
    BY_STAGE,
)
