"""What the colour of a card means, and the words that say so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PySide6.QtGui import QColor

from enplace.text import count, ms
from enplace_studio.graph.facts import WORK_KINDS, Facts, StageFact
from enplace_studio.theme import blend, theme

_SHORTEST_US = 10.0

_MOST_STAGES = 8
"""So many have a place in the legend; the cards say the numbers of all."""

_FORWARD, _BACKWARD = (1.0, 0.72), (0.52, 0.24)
"""How much of its device's colour the first and the last piece of each pass have."""

Stripes = tuple[tuple[QColor, float], ...]
"""Colours side by side on one card, and the part of its width that each takes."""

Legend = list[tuple[QColor | None, str]]
"""Colours and what they mean; None for words alone."""


@dataclass(frozen=True)
class Look:
    """How one card is coloured, its second line, and a note beside it where there is room."""

    stripes: Stripes
    line: str
    note: str = ""


@dataclass(frozen=True)
class Mode:
    """A meaning of colour: ``looks`` colours every card, ``legend`` explains the colours."""

    title: str
    looks: Callable[[Facts], list[Look]]
    legend: Callable[[Facts], Legend]


def _by_device(facts: Facts) -> list[Look]:
    looks = []
    for group, shares in enumerate(facts.share.tolist()):
        stripes = tuple((theme.device_color(d), share) for d, share in enumerate(shares) if share)
        note = f"on {len(stripes)}" if len(stripes) > 1 else ""
        looks.append(Look(stripes or _plain(), _short_ms(facts.time_us[group]), note))
    return looks


def _short_ms(time_us: float) -> str:
    """Milliseconds in few digits; a card has no room for more."""
    return "< 0.01 ms" if 0 < time_us < _SHORTEST_US else ms(time_us)


def _by_time(facts: Facts) -> list[Look]:
    part = np.sqrt(facts.time_us / (facts.time_us.max() or 1.0))
    return [
        Look(((_shade(share), 1.0),), _short_ms(time))
        for share, time in zip(part.tolist(), facts.time_us.tolist(), strict=True)
    ]


def _by_work(facts: Facts) -> list[Look]:
    return [Look(((_work_color(kind), 1.0),), WORK_KINDS[kind][1]) for kind in facts.work.tolist()]


def _by_pins(facts: Facts) -> list[Look]:
    looks = []
    for pinned, n_ops in zip(facts.n_pinned.tolist(), facts.n_ops.tolist(), strict=True):
        part = pinned / n_ops
        stripes = ((theme.tokens.accent, part), (theme.tokens.faint, 1 - part))
        line = "pinned" if pinned == n_ops else f"{pinned} of {n_ops}" if pinned else "free"
        looks.append(Look(tuple(s for s in stripes if s[1]), line))
    return looks


def _by_critical_path(facts: Facts) -> list[Look]:
    part = facts.critical_us / np.maximum(facts.time_us, 1e-9)
    return [
        Look(
            ((theme.tokens.bad, 1.0),) if share > 0 else _plain(),
            _short_ms(critical) if critical else "not on it",
        )
        for share, critical in zip(part.tolist(), facts.critical_us.tolist(), strict=True)
    ]


def _by_contiguity(facts: Facts) -> list[Look]:
    looks = []
    for further, n_ops in zip(facts.n_further.tolist(), facts.n_ops.tolist(), strict=True):
        part = further / n_ops
        stripes = ((theme.tokens.bad, part), (theme.tokens.faint, 1 - part))
        line = f"{further} of {n_ops} further" if further else "contiguous"
        looks.append(Look(tuple(s for s in stripes if s[1]), line))
    return looks


def _by_stage(facts: Facts) -> list[Look]:
    """By device where the stages are not known."""
    looks = _by_device(facts)
    for group, (stage, n) in enumerate(
        zip(facts.stage.tolist(), facts.n_stages.tolist(), strict=True)
    ):
        if n:
            note = f"and {n - 1} more" if n > 1 else ""
            color = _stage_color(facts.stages[stage])
            looks[group] = Look(((color, 1.0),), f"stage {stage + 1}", note)
    return looks


def _stage_color(stage: StageFact) -> QColor:
    """Backward fainter than forward, as in the timeline, and each further piece fainter still."""
    first, last = _BACKWARD if stage.backward else _FORWARD
    share = first + (last - first) * stage.piece / max(stage.n_pieces - 1, 1)
    return blend(theme.device_color(stage.device), theme.tokens.panel, share)


def _plain() -> Stripes:
    return ((theme.tokens.faint, 1.0),)


def _shade(share: float) -> QColor:
    return blend(theme.tokens.accent, theme.tokens.line, 0.05 + 0.95 * share)


def _work_color(kind: int) -> QColor:
    """Muted colours, apart from those of the devices."""
    light = ("#332288", "#882255", "#117733", "#AA4499", "#7A7A52")
    dark = ("#A99BF0", "#E08BB0", "#7CC48B", "#D9A0D3", "#BDBD8F")
    return QColor((dark if theme.dark else light)[kind])


def _time_legend(facts: Facts) -> Legend:
    return [(_shade(0.0), "0 ms"), (_shade(1.0), ms(float(facts.time_us.max(initial=0.0))))]


def _work_legend(facts: Facts) -> Legend:
    return [(_work_color(kind), WORK_KINDS[kind][0]) for kind in np.unique(facts.work).tolist()]


def _pin_legend(facts: Facts) -> Legend:
    pinned = count(int(facts.n_pinned.sum()), "pinned op")
    return [(theme.tokens.accent, pinned), (theme.tokens.faint, "free")]


def _critical_legend(facts: Facts) -> Legend:
    on_path = f"on the critical path, {ms(float(facts.critical_us.sum()))} of compute"
    return [(theme.tokens.bad, on_path), (theme.tokens.faint, "not on it")]


def _contiguity_legend(facts: Facts) -> Legend:
    further = count(int(facts.n_further.sum()), "op")
    return [
        (theme.tokens.bad, f"{further} in further pieces of a device"),
        (theme.tokens.faint, "in the first piece"),
    ]


def _stage_legend(facts: Facts) -> Legend:
    shown = np.unique(facts.stage[facts.n_stages > 0]).tolist()
    named = [facts.stages[stage] for stage in shown[:_MOST_STAGES]]
    legend: Legend = [(_stage_color(stage), stage.title) for stage in named]
    if len(shown) > len(named):
        legend.append((None, f"and {count(len(shown) - len(named), 'more stage')}"))
    return legend


MODES = (
    Mode("device", _by_device, lambda facts: []),
    Mode("compute time", _by_time, _time_legend),
    Mode("op type", _by_work, _work_legend),
    Mode("pinned", _by_pins, _pin_legend),
    Mode("critical path", _by_critical_path, _critical_legend),
    Mode("contiguity", _by_contiguity, _contiguity_legend),
    Mode("stage", _by_stage, _stage_legend),
)
