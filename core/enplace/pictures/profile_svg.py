"""A profile as a picture: where the time of a step goes, before any plan."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

import numpy as np

from enplace.names.groups import group_ops
from enplace.pictures.svg import MARGIN, fitted, frame, heading
from enplace.text import count, elide_middle, ms, percent, size
from enplace.values.profile import Profile

WIDTH, TOP, ROW, BAR = 760, 48, 22, 14
LEFT, RIGHT = 220, 540
MOST_ROWS = 10


def profile_svg(profile: Profile) -> str:
    """Draw a bar for each of the groups whose ops take longest, one after another.

    An op counts with its time on a GPU, or on a CPU if no GPU can run it.
    """
    grouping = group_ops(profile)
    gpu_us, cpu_us = profile.time_us.T
    time_us = np.where(np.isnan(gpu_us), cpu_us, gpu_us)
    spent_us = np.bincount(grouping.group, weights=time_us, minlength=grouping.n_groups)
    held = np.bincount(
        grouping.group, weights=profile.persistent_bytes, minlength=grouping.n_groups
    )
    order = np.argsort(-spent_us, kind="stable")
    shown = order[:MOST_ROWS].tolist()
    total_us = float(spent_us.sum())
    estimated = "estimated " if profile.measured.estimated else ""
    title = f"{elide_middle(profile.name, 40)}: {estimated}time of its parts"
    parts = [heading(title)]
    longest_us = float(spent_us[shown[0]]) if shown else 0.0
    for row, group in enumerate(shown):
        part = float(spent_us[group])
        facts = f"{ms(part)}, {percent(part / total_us if total_us else 0.0)}"
        if held[group]:
            facts += f", holds {size(float(held[group]))}"
        bar = (RIGHT - LEFT) * (part / longest_us if longest_us else 0.0)
        parts += _row(TOP + ROW * row, grouping.names[group], bar, facts)
    bottom = TOP + ROW * len(shown)
    if rest := order[MOST_ROWS:].tolist():
        left = f"{count(len(rest), 'more part')}: {ms(float(spent_us[rest].sum()))}"
        parts.append(f'<text class="dim" x="{MARGIN}" y="{bottom + 15}">{left}</text>')
        bottom += ROW
    return frame(f"{profile.name}: time of its parts", WIDTH, bottom + MARGIN / 2, parts)


def _row(y: int, name: str, bar: float, facts: str) -> Iterator[str]:
    yield (
        f'<text class="text" x="{MARGIN}" y="{y + 15}">{fitted(name, LEFT - MARGIN - 16)}'
        f"<title>{escape(name)}</title></text>"
        f'<rect class="lane" x="{LEFT}" y="{y + 4}" width="{RIGHT - LEFT}" height="{BAR}" rx="2"/>'
        f'<rect class="d0" x="{LEFT}" y="{y + 4}" width="{bar:.1f}" height="{BAR}" rx="2"/>'
        f'<text class="dim" x="{RIGHT + 10}" y="{y + 15}" font-size="11">{escape(facts)}</text>'
    )
