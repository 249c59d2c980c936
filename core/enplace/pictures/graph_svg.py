"""The graph as a picture: groups of ops in the colours of their devices, and what they exchange."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from textwrap import wrap

import numpy as np

from enplace.names.group_facts import GroupEdges, crossing, device_shares, group_edges
from enplace.names.groups import Grouping, open_groups
from enplace.pictures.graph_curves import edge_curves, edge_widths, long_edges, quiet_edges
from enplace.pictures.graph_layout import CARD_H, Arrangement, arrange
from enplace.pictures.palette import colour_numbers, device_class
from enplace.pictures.svg import MARGIN, Meaning, fitted, frame, heading, legend, legend_height
from enplace.text import count, elide_middle, ms, percent, size
from enplace.values.schedule import Schedule

WIDTH = 1168.0
TOP = 60.0
TITLE_LETTERS = 14


def graph_svg(schedule: Schedule, opened: tuple[str, ...] = ()) -> str:
    """Draw groups of ops, or the parts of opened ones, by device, with edges and a legend."""
    profile = schedule.problem.profile
    grouping = open_groups(profile, opened)
    edges = group_edges(profile, grouping)
    places = arrange(grouping, edges, WIDTH)
    left, top, right, bottom = places.bounds
    width = max(right - left, WIDTH) + 2 * MARGIN
    meanings = _meanings(schedule)
    start = TOP + legend_height(meanings, MARGIN, width - MARGIN)
    name = elide_middle(profile.name, 50)
    facts = f"{count(profile.n_ops, 'op')} in {count(grouping.n_groups, 'group')}"
    if schedule.problem.measured_profile.measured.estimated:
        facts += ", estimated times"
    parts = [
        heading(f"{name}: where each group runs"),
        f'<text class="dim" x="{width - MARGIN}" y="26" text-anchor="end">{escape(facts)}</text>',
        *legend(meanings, MARGIN, 54, width - MARGIN),
        f'<g transform="translate({MARGIN - left:g} {start - top:g})">',
        *_edges(schedule, grouping, edges, places),
        *_titles(places),
        *_cards(schedule, grouping, places),
        "</g>",
    ]
    return frame(f"{name}: graph", width, start + bottom - top + MARGIN, parts)


def _meanings(schedule: Schedule) -> list[Meaning]:
    cluster = schedule.problem.cluster
    devices, colours = cluster.devices, colour_numbers(cluster)
    used = np.unique(schedule.plan.device).tolist()
    names = [devices[device].label for device in used]
    items = [
        (device_class(colours[device]), name, f"Most of the group runs on {name}")
        for device, name in zip(used, names, strict=True)
    ]
    within = ("edge", "within a device", "Wider lines carry more bytes; the smallest are left out")
    return [*items, within, ("cut", "between devices", "These tensors are sent")]


def _edges(
    schedule: Schedule, grouping: Grouping, edges: GroupEdges, places: Arrangement
) -> Iterator[str]:
    """Draw the edges that matter, those between devices last."""
    profile = schedule.problem.profile
    cut = crossing(profile, grouping, edges, schedule.plan.device)
    curves, widths = edge_curves(places, edges), edge_widths(edges)
    faint = long_edges(places, edges)
    shown = np.flatnonzero(~quiet_edges(places, edges))
    for edge in shown[np.argsort(cut[shown], kind="stable")].tolist():
        start, *rest = (f"{x:.0f} {y:.0f}" for x, y in curves[edge].tolist())
        ends = grouping.names[edges.source[edge]], grouping.names[edges.target[edge]]
        tip = f"{ends[0]} → {ends[1]}: {size(float(edges.bytes[edge]))}"
        yield (
            f'<path class="{"cut" if cut[edge] else "edge"}" stroke-width="{widths[edge]:.1f}" '
            f'opacity="{0.45 if faint[edge] else 0.9}" '
            f'd="M{start}C{" ".join(rest)}">'
            f"<title>{escape(tip)}</title></path>"
        )


def _titles(places: Arrangement) -> Iterator[str]:
    for text, left, middle in places.titles:
        lines = wrap(text, TITLE_LETTERS, max_lines=3, placeholder="…")
        first = middle + 4 - 7 * (len(lines) - 1)
        for line, words in enumerate(lines):
            yield (
                f'<text class="text" x="{left:g}" y="{first + 14 * line:g}" font-weight="600">'
                f"{escape(words)}<title>{escape(text)}</title></text>"
            )


def _cards(schedule: Schedule, grouping: Grouping, places: Arrangement) -> Iterator[str]:
    cluster, plan = schedule.problem.cluster, schedule.plan
    time_us = schedule.op_finish_us - schedule.op_start_us
    share = device_shares(grouping, plan.device, time_us, cluster.n_devices)
    spent_us = np.bincount(grouping.group, weights=time_us, minlength=grouping.n_groups)
    labels = [device.label for device in cluster.devices]
    colours = colour_numbers(cluster)
    for group, text in enumerate(places.texts):
        x, y, width = (float(each[group]) for each in (places.x, places.y, places.width))
        order = np.argsort(-share[group], kind="stable").tolist()
        parts = [(device, float(share[group, device])) for device in order if share[group, device]]
        where = ", ".join(f"{labels[d]} {percent(part)}" for d, part in parts)
        n_ops = count(len(grouping.ops(group)), "op")
        tip = f"{grouping.names[group]}: {n_ops}, {ms(float(spent_us[group]))}, {where}"
        card = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{CARD_H:g}" rx="7"'
        yield f'<g><title>{escape(tip)}</title><rect class="bg" {card}/>'
        yield from _stripes([(colours[d], part) for d, part in parts], x, y, width)
        yield (
            f'<rect class="{device_class(colours[parts[0][0]])}-line" fill="none" {card}/>'
            f'<text class="text" x="{x + 10:.1f}" y="{y + 18:.1f}" font-weight="600">'
            f"{fitted(text, width - 14)}</text>"
            f'<text class="dim" x="{x + 10:.1f}" y="{y + 33:.1f}" font-size="11">'
            f"{escape(ms(float(spent_us[group])))}</text></g>"
        )


def _stripes(parts: list[tuple[int, float]], x: float, y: float, width: float) -> Iterator[str]:
    """Tint a card by its devices' colours, each as wide as its share; a strong line below."""
    inner, at = width - 8, x + 4
    for number, part in parts:
        colour = device_class(number)
        yield (
            f'<rect class="{colour}" opacity="0.16" x="{at:.1f}" y="{y + 1:.1f}" '
            f'width="{inner * part:.1f}" height="{CARD_H - 2:g}"/>'
            f'<rect class="{colour}" x="{at:.1f}" y="{y + CARD_H - 4:.1f}" '
            f'width="{inner * part:.1f}" height="3"/>'
        )
        at += inner * part
