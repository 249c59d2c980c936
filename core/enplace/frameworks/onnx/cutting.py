"""A graph cut into parts by the devices of its nodes, to be run one after another.

A device has one part if its nodes can run without waiting for another device in between, and else
as few as a greedy search finds. What only depends on weights is computed in every part that needs
it, and what only depends on shapes where these are first known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnx import GraphProto

from enplace.errors import PlanError
from enplace.frameworks.onnx.functions import reads
from enplace.frameworks.onnx.profile import find_known

MOST_PARTS = 100
"""Of a plan with more parts, nobody wants the files."""

_MOST_PIECES = 1000
"""Pieces before they are joined."""

Unit = tuple[int, int]
"""How often another device had to be waited for, and the device."""


@dataclass(frozen=True)
class Part:
    """A part of a graph.

    Attributes
    ----------
    device : int
    nodes : tuple of int
        Numbers of its nodes, ascending; one that only depends on weights may be in several parts.
    inputs, outputs : tuple of str
        The tensors that it takes, none of which is a weight, and those that others take from it.
    """

    device: int
    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def cut(graph: GraphProto, devices: Sequence[int]) -> list[Part]:
    """Cut a graph by the device of each node; parts are in an order in which they can run.

    Raises
    ------
    PlanError
        If there would be too many parts, or the nodes are in no order in which they can run.
    """
    return _Cutting(graph, devices).parts()


class _Cutting:
    """The cutting of a graph; a node is anchored if it has to run on its device."""

    def __init__(self, graph: GraphProto, devices: Sequence[int]) -> None:
        self._graph, self._nodes, self._devices = graph, list(graph.node), devices
        self._weights = {each.name for each in graph.initializer}
        self._weights |= {sparse.values.name for sparse in graph.sparse_initializer}
        self._reads = [list(dict.fromkeys(reads(node))) for node in self._nodes]
        self._maker = {name: i for i, node in enumerate(self._nodes) for name in node.output}
        self._maker.pop("", None)
        self._check_order()
        self._users: dict[str, list[int]] = {}
        for number, names in enumerate(self._reads):
            for name in names:
                self._users.setdefault(name, []).append(number)
        _, self._free = find_known(self._weights, self._nodes, self._reads)
        self._constant = self._find_constant()
        self._behind = self._find_sources()

    def _check_order(self) -> None:
        for number, names in enumerate(self._reads):
            if any(self._maker.get(name, -1) >= number for name in names):
                raise PlanError(
                    f"node {number + 1} of the model comes before what it takes; export the "
                    f"model again"
                )

    def _find_constant(self) -> list[bool]:
        """Find the nodes that depend on nothing but weights."""
        known, found = set(self._weights), list[bool]()
        for node, names, is_free in zip(self._nodes, self._reads, self._free, strict=True):
            found.append(is_free and known.issuperset(names))
            if found[-1]:
                known.update(node.output)
        return found

    def _find_sources(self) -> list[set[int]]:
        """Find the anchored nodes that each node waits for, also by way of shapes."""
        found = list[set[int]]()
        for names in self._reads:
            sources = set[int]()
            for made in {self._maker[name] for name in names if name in self._maker}:
                sources |= found[made] if self._free[made] else {made}
            found.append(sources)
        return found

    def parts(self) -> list[Part]:
        home = self._join(self._split())
        for number in reversed(range(len(self._nodes))):
            if home[number] is None and not self._constant[number]:
                home[number] = self._first_use(number, home)
        wanted = sorted({part for part in home if part is not None}) or [0]
        members = {part: {i for i, at in enumerate(home) if at == part} for part in wanted}
        ends = {info.name for info in self._graph.output}
        for name in ends & self._maker.keys():
            if self._constant[self._maker[name]]:
                members[wanted[0]].add(self._maker[name])
        for own in members.values():
            self._add_constants(own)
        return [self._part(members[part], members, part, ends) for part in wanted]

    def _split(self) -> list[Unit | None]:
        """Return the piece of each anchored node; it only waits for pieces of no higher level."""
        units = list[Unit | None]()
        for number, device in enumerate(self._devices):
            if self._free[number]:
                units.append(None)
                continue
            level = 0
            for source in self._behind[number]:
                known = units[source]
                assert known is not None
                level = max(level, known[0] + (known[1] != device))
            units.append((level, device))
        return units

    def _join(self, units: Sequence[Unit | None]) -> list[int | None]:
        """Join pieces of one device where nothing has to run in between; number what is left."""
        pieces = sorted({unit for unit in units if unit is not None})
        if len(pieces) > _MOST_PIECES:
            raise PlanError(_too_many(len(pieces)))
        joined = {unit: unit for unit in pieces}
        after: dict[Unit, set[Unit]] = {unit: set() for unit in pieces}
        for number, unit in enumerate(units):
            for source in self._behind[number] if unit is not None else ():
                before = units[source]
                if unit is not None and before is not None and before != unit:
                    after[before].add(unit)
        last: dict[int, Unit] = {}
        for unit in pieces:
            into = last.get(unit[1])
            if into is None or _passes_between(after, into, unit):
                last[unit[1]] = unit
                continue
            _merge(after, into, unit)
            joined[unit] = into
        order = {unit: number for number, unit in enumerate(_in_order(after))}
        if len(order) > MOST_PARTS:
            raise PlanError(_too_many(len(order)))
        part = {unit: order[joined[unit]] for unit in pieces}
        home = [None if unit is None else part[unit] for unit in units]
        for number, sources in enumerate(self._behind):
            if home[number] is None and sources and not self._constant[number]:
                home[number] = max(at for s in sources if (at := home[s]) is not None)
        return home

    def _first_use(self, number: int, home: Sequence[int | None]) -> int:
        """Return the first part that needs what a node makes of the shapes of inputs."""
        users = (user for name in self._nodes[number].output for user in self._users.get(name, ()))
        return min((at for user in users if (at := home[user]) is not None), default=0)

    def _add_constants(self, members: set[int]) -> None:
        """Add the nodes that compute what a part needs and depends on nothing but weights."""
        waiting = list(members)
        while waiting:
            for name in self._reads[waiting.pop()]:
                made = self._maker.get(name)
                if made is not None and self._constant[made] and made not in members:
                    members.add(made)
                    waiting.append(made)

    def _part(
        self, own: set[int], members: Mapping[int, set[int]], part: int, ends: Collection[str]
    ) -> Part:
        made = {name for number in own for name in self._nodes[number].output}
        others = (number for at, them in members.items() if at != part for number in them)
        wanted = {name for number in others for name in self._reads[number]} | set(ends)
        numbers = sorted(own)
        outputs = (
            name
            for number in numbers
            for name in self._nodes[number].output
            if name in wanted and (name in ends or not self._constant[number])
        )
        taken = dict.fromkeys(name for number in numbers for name in self._reads[number])
        inputs = (name for name in taken if name not in made and name not in self._weights)
        device = next((self._devices[i] for i in numbers if not self._free[i]), None)
        device = self._devices[numbers[0]] if device is None else device
        return Part(device, tuple(numbers), tuple(inputs), tuple(filter(None, outputs)))


def _too_many(number: int) -> str:
    return (
        f"the plan goes back and forth between devices, which makes {number:,} parts; at most "
        f"{MOST_PARTS} are written. Make a plan whose stages follow each other, for example with "
        f"--objective throughput --method max-load-dp"
    )


After = Mapping[Unit, set[Unit]]


def _passes_between(after: After, one: Unit, two: Unit) -> bool:
    """Whether a path leads from one piece to the other, in either direction, by way of a third."""
    return any(
        target in _reach(after, [unit for unit in after[start] if unit != target])
        for start, target in ((one, two), (two, one))
    )


def _reach(after: After, starts: Iterable[Unit]) -> set[Unit]:
    found, waiting = set[Unit](), list(starts)
    while waiting:
        unit = waiting.pop()
        if unit not in found:
            found.add(unit)
            waiting.extend(after[unit])
    return found


def _merge(after: dict[Unit, set[Unit]], into: Unit, unit: Unit) -> None:
    after[into] |= after.pop(unit)
    for others in after.values():
        if unit in others:
            others.discard(unit)
            others.add(into)
    after[into].discard(into)


def _in_order(after: After) -> list[Unit]:
    """Sort pieces so that each comes after those that it waits for."""
    waits = dict.fromkeys(after, 0)
    for others in after.values():
        for unit in others:
            waits[unit] += 1
    ready, order = sorted((unit for unit in after if not waits[unit]), reverse=True), list[Unit]()
    while ready:
        order.append(ready.pop())
        for unit in after[order[-1]]:
            waits[unit] -= 1
            if not waits[unit]:
                ready.append(unit)
        ready.sort(reverse=True)
    return order
