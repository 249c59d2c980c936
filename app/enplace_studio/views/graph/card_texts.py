"""The tooltips of cards and ports."""

from __future__ import annotations

from collections.abc import Sequence

from enplace.text import count, ms, percent, size
from enplace_studio.views.graph.level import GraphLevel
from enplace_studio.views.graph.scene import Scene


def describe_card(scene: Scene, group: int, device_names: Sequence[str], n_found: int) -> list[str]:
    """Describe a group by its full name and its numbers, one line each.

    Parameters
    ----------
    n_found : int
        Number of ops of the group that a search found.
    """
    facts = scene.facts
    level = scene.level
    lines = [
        level.grouping.names[group],
        f"{_what(level, group, int(facts.n_ops[group]))} · {ms(facts.time_us[group])}",
        f"{size(int(facts.persistent_bytes[group]))} of weights · "
        f"{size(int(facts.output_bytes[group]))} of outputs",
    ]
    shares = zip(device_names, facts.share[group].tolist(), strict=True)
    names = [name + (f" {percent(share)}" if share < 1 else "") for name, share in shares if share]
    lines.append(f"on {', '.join(names)}" if names else "not placed yet")
    if facts.n_stages[group]:
        stage, n_more = facts.stages[facts.stage[group]], facts.n_stages[group] - 1
        way = f", {stage.way}" if stage.way else ""
        more = f"; and {count(int(n_more), 'more stage')}" if n_more else ""
        lines.append(f"stage {stage.number}: {stage.where}{way}{more}")
    if facts.n_pinned[group]:
        lines.append(f"{facts.n_pinned[group]} of {facts.n_ops[group]} ops pinned")
    if n_found:
        lines.append(f"{count(n_found, 'op')} found")
    return lines


def _what(level: GraphLevel, group: int, n_ops: int) -> str:
    """Say of what type an op is and how long its axes are, or how many ops a group has."""
    if not level.of_ops:
        return count(n_ops, "op")
    return " · ".join(filter(None, (level.kinds[group], level.lengths[group])))


def describe_port(level: GraphLevel, node: int) -> list[str]:
    """Say where a port leads and what passes through it, one line each."""
    port = level.ports.ports[node - level.grouping.n_groups]
    lines = [
        f"{'from' if port.is_input else 'to'} {port.name}",
        f"{size(port.bytes)} in {count(port.n_tensors, 'tensor')}",
    ]
    names = "click to select it, double-click to open it"
    return [*lines, names.replace("it", "them") if len(port.places) > 1 else names]
