"""Ports: where the edges of an opened group end that come from outside it, or go there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from enplace.names.groups import NO_GROUP, Grouping
from enplace.names.titles import unshared_title
from enplace.text import count
from enplace.values.profile import IntArray, Profile

MOST_PORTS = 8
"""Most ports on either side; the smallest neighbours share the last."""


@dataclass(frozen=True)
class Port:
    """All edges from a neighbour, or all edges to it.

    Attributes
    ----------
    name : str
        The neighbour's full name, or the number of groups that share the port.
    short : str
        The name without the part that it shares with the opened group's.
    is_input : bool
        Whether the edges come from the neighbour.
    bytes, n_tensors : int
        What the edges carry; every tensor counts once.
    places : tuple of (int, int)
        The neighbours: the number of their grouping, and of the group in it.
    """

    name: str
    short: str
    is_input: bool
    bytes: int
    n_tensors: int
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Neighbour:
    name: str
    short: str
    place: tuple[int, int]


_Share = tuple[IntArray, int, int]
"""The neighbours that share a port, the bytes and the number of tensors that pass through it."""


@dataclass(frozen=True, eq=False)
class Ports:
    """The ports of an opened group, inputs first; they are numbered after its own groups.

    Attributes
    ----------
    giver, taker : int array, shape (n_ops,)
        Number of the port that an op outside is behind as a producer and as a consumer; else −1.
    """

    ports: tuple[Port, ...]
    giver: IntArray
    taker: IntArray

    @property
    def n(self) -> int:
        return len(self.ports)


def find_ports(
    profile: Profile, opened: str, inside: Grouping, around: Sequence[Grouping]
) -> Ports:
    """Find the neighbours of an opened group.

    Parameters
    ----------
    opened : str
        The name of the group.
    around : sequence of Grouping
        The groupings that the group was opened from, the whole model's first. An op outside
        belongs to the neighbour in the last of them that holds it.
    """
    neighbours = [
        _Neighbour(name, unshared_title(name, opened), (depth, group))
        for depth, level in enumerate(around)
        for group, name in enumerate(level.names)
    ]
    outer = _outer_groups(inside, around)
    is_inside = inside.group >= 0
    source, target = profile.edge_source, profile.edge_op
    comes, goes = is_inside[target] & (outer[source] >= 0), is_inside[source] & (outer[target] >= 0)
    ports: list[Port] = []
    sides = []
    for edges, ends in ((comes, source), (goes, target)):
        sent = np.unique(np.column_stack([outer[ends[edges]], profile.edge_tensor[edges]]), axis=0)
        shares = _share(sent, profile)
        number = np.full(len(neighbours) + 1, NO_GROUP, dtype=np.int64)
        for at, (members, _, _) in enumerate(shares, inside.n_groups + len(ports)):
            number[members] = at
        sides.append(number[outer])
        ports += [_make_port(share, neighbours, edges is comes) for share in shares]
    return Ports(tuple(ports), *sides)


def _outer_groups(inside: Grouping, around: Sequence[Grouping]) -> IntArray:
    """Number the groups of all levels in a row, and find that of each op outside."""
    outer = np.full(len(inside.group), NO_GROUP, dtype=np.int64)
    first = 0
    for level in around:
        outer = np.where(level.group >= 0, level.group + first, outer)
        first += level.n_groups
    outer[inside.group >= 0] = NO_GROUP
    return outer


def _share(sent: IntArray, profile: Profile) -> list[_Share]:
    """Share the ports of one side among the neighbours, in the order of the model.

    Parameters
    ----------
    sent : int array, shape (n, 2)
        Neighbours and the tensors that they exchange with the group.
    """
    whose, at = np.unique(sent[:, 0], return_inverse=True)
    size = np.bincount(at, weights=profile.tensor_bytes[sent[:, 1]], minlength=len(whose))
    most = np.argsort(-size, kind="stable")
    n_alone = len(most) if len(most) <= MOST_PORTS else MOST_PORTS - 1
    members = [np.array([one]) for one in np.sort(most[:n_alone]).tolist()]
    members += [np.sort(most[n_alone:])] if n_alone < len(most) else []
    tensors = [np.unique(sent[np.isin(at, some), 1]) for some in members]
    return [
        (whose[some], int(profile.tensor_bytes[those].sum()), len(those))
        for some, those in zip(members, tensors, strict=True)
    ]


def _make_port(share: _Share, neighbours: Sequence[_Neighbour], is_input: bool) -> Port:
    members, n_bytes, n_tensors = share
    those = [neighbours[member] for member in members.tolist()]
    name, short = those[0].name, those[0].short
    if len(those) > 1:
        name = short = count(len(those), "other group")
    return Port(name, short, is_input, n_bytes, n_tensors, tuple(one.place for one in those))
