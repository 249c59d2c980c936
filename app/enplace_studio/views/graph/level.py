"""A level of the graph: the groups or ops that are shown, the edges between them, and the ports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from enplace.names.group_facts import GroupEdges, group_edges
from enplace.names.groups import Grouping, inner_scopes, subgroups, visible_ops
from enplace.names.ports import Ports, find_ports
from enplace.pictures.graph_layout import is_chain, is_regular
from enplace.text import count, size
from enplace.values.profile import IntArray, Profile

MOST_OPS = 400
"""A group with more ops opens into groups: to lay out this many takes half a second."""
EASY_OPS = 48
"""A group that shows more ops opens into the scopes in it, if there are any."""


@dataclass(frozen=True, eq=False)
class GraphLevel:
    """A set of ops opened into groups: the whole model, or one of its groups.

    The nodes of the graph are the groups, then the ports.

    Attributes
    ----------
    edges : GroupEdges
        Between nodes.
    kinds, lengths : tuple of str
        Type of each op, and the lengths of its axes as far as they are known; empty unless the
        groups are ops, with constants and identities that belong to them.
    in_lines : bool
        Whether the cards are arranged in rows, like text; such a level has no ports.
    """

    title: str
    grouping: Grouping
    ports: Ports
    edges: GroupEdges
    kinds: tuple[str, ...]
    lengths: tuple[str, ...]
    in_lines: bool

    @property
    def of_ops(self) -> bool:
        return bool(self.kinds)

    @property
    def n_nodes(self) -> int:
        return self.grouping.n_groups + self.ports.n

    @cached_property
    def n_ops(self) -> IntArray:
        """Number of ops of each node; shape (n_nodes,)."""
        return self.count(np.arange(len(self.grouping.group)))

    def count(self, ops: IntArray) -> IntArray:
        """Count how many of some ops each node has; shape (n_nodes,)."""
        nodes = (self.grouping.group[ops], self.ports.giver[ops], self.ports.taker[ops])
        found = [np.bincount(each[each >= 0], minlength=self.n_nodes) for each in nodes]
        return np.asarray(np.sum(found, axis=0), dtype=np.int64)

    def ops(self, node: int) -> IntArray:
        """Return the ops of a group, or those behind a port."""
        if node < self.grouping.n_groups:
            return self.grouping.ops(node)
        return np.flatnonzero((self.ports.giver == node) | (self.ports.taker == node))

    @property
    def extent(self) -> str:
        """How many ops are shown, and as how many groups."""
        n_ops = count(int((self.grouping.group >= 0).sum()), "op")
        if self.of_ops and (self.grouping.sizes > 1).any():
            return f"{n_ops}; constants and identities are with the ops they belong to"
        in_groups = f" in {count(self.grouping.n_groups, 'group')}; open one to see its ops"
        return n_ops + ("" if self.of_ops else in_groups)

    def describe(self, node: int) -> str:
        """Return the full name of a group, or where a port leads and what passes through it."""
        if node < self.grouping.n_groups:
            return self.grouping.names[node]
        port = self.ports.ports[node - self.grouping.n_groups]
        return f"{'from' if port.is_input else 'to'} {port.name}, {size(port.bytes)}"


def whole_level(profile: Profile, grouping: Grouping) -> GraphLevel:
    """Make the level of the whole model."""
    of_ops = int((grouping.group >= 0).sum()) == grouping.n_groups
    return _make_level("All groups", profile, grouping, [], of_ops)


def inner_level(profile: Profile, levels: Sequence[GraphLevel], group: int) -> GraphLevel:
    """Open a group of the last level into its ops, or into smaller groups if it has many."""
    last = levels[-1].grouping
    ops = last.ops(group)
    around, title = [level.grouping for level in levels], last.names[group]
    shown = visible_ops(profile, ops) if len(ops) <= MOST_OPS else None
    if shown is None or shown.n_groups > EASY_OPS:
        scopes = inner_scopes(profile, ops)
        if scopes is not None:
            return _make_level(title, profile, scopes, around, False)
    if shown is None:
        return _make_level(title, profile, subgroups(profile, ops), around, False)
    return _make_level(title, profile, shown, around, True)


def _make_level(
    title: str, profile: Profile, grouping: Grouping, around: Sequence[Grouping], of_ops: bool
) -> GraphLevel:
    edges = group_edges(profile, grouping)
    in_lines = not (of_ops or around) and (is_regular(grouping) or is_chain(grouping, edges))
    order = [profile.index[name] for name in grouping.names] if of_ops else []
    ports = find_ports(profile, title, grouping, [] if in_lines else around)
    return GraphLevel(
        title=title,
        grouping=grouping,
        ports=ports,
        edges=group_edges(profile, grouping, ports) if ports.n else edges,
        kinds=tuple(profile.op_types[op] for op in order),
        lengths=tuple(_lengths(profile, op) for op in order),
        in_lines=in_lines,
    )


def _lengths(profile: Profile, op: int) -> str:
    known = profile.measured.split_lengths.get(profile.op_names[op], {})
    return ", ".join(f"{axis} {length:,}" for axis, length in known.items())
