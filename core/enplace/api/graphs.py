"""Profiles as graphs of networkx, and back."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from enplace.api.checks import checked
from enplace.errors import ProfileError
from enplace.extras import import_extra
from enplace.names.guessed_passes import with_guessed_passes, without_guessed_passes
from enplace.text import elide_middle
from enplace.values.columns import Column
from enplace.values.measurement import Measurement
from enplace.values.profile import (
    CONTROL,
    KINDS,
    MAX_BYTES,
    MAX_TIME_US,
    OP_COLUMNS,
    Profile,
    columns_of,
    edge_columns,
    make_profile,
)

if TYPE_CHECKING:
    import networkx as nx

    Graph = nx.DiGraph[Any]
else:
    Graph = Any

Attributes = Mapping[str, Any]

_ALWAYS = ("persistent_bytes", "temporary_bytes", "type", "scope")
"""Attributes that every node has; all others are absent where they say nothing."""

MAX_LABEL = 120
"""Longer names are shortened in messages."""


@checked
def to_networkx(profile: Profile) -> Graph:
    """Return a profile as a directed graph, with its costs as attributes.

    Returns
    -------
    networkx.DiGraph
        Its nodes are the names of the ops, in the profile's order; ``graph["name"]`` is the name
        of the profile. What was measured besides these costs is left out. If op times are
        estimated, ``graph["estimated"]`` names the GPU and ``graph["estimated_speed"]`` its speed.

    Notes
    -----
    Attributes of a node:

    ``gpu_us``, ``cpu_us`` : float
        Compute time on each kind of device, in µs; absent where the op cannot run.
    ``persistent_bytes``, ``temporary_bytes`` : int
        Bytes held from the start of the step (variables), and only while the op runs.
    ``type``, ``scope`` : str
        The framework's type of the op, and its name scope.
    ``colocation`` : str
        Ops with the same text share a device; absent for an op in no group.
    ``kind``, ``pass`` : str
        What the op does, one of ``enplace.values.op_kinds.OpKind``, and ``forward``, ``backward``
        or ``update``; absent where only the type and the scope tell.
    ``flops`` : float
        Operations with floating-point numbers; absent if unknown.

    Attributes of an edge:

    ``bytes`` : int
        What the consumer needs of the producer's output, all tensors together.
    ``outputs`` : dict of int to int
        The bytes of each tensor by the producer's output number; -1 stands for "must run before",
        with 0 bytes.

    ``graph["holds"]``, if there are any, lists tensors that stay on their device until an op has
    ended: the op that makes it, its output number, and that op. ``graph["shares"]`` lists tensors
    that lie in the memory of others: the op and the output number of each, then those of its base.

    A tensor with several consumers is an edge to each, and is sent to a device only once.
    """
    nx = import_extra("networkx", "notebook")
    profile = without_guessed_passes(profile)
    graph: Graph = nx.DiGraph(name=profile.name)
    if profile.measured.estimated:
        graph.graph["estimated"] = profile.measured.estimated
        graph.graph["estimated_speed"] = profile.measured.estimated_speed
    columns = [(OP_COLUMNS[n], v) for n, v in columns_of(profile).items() if n != "time_us"]
    for op, name in enumerate(profile.op_names):
        times = zip(KINDS, profile.time_us[op].tolist(), strict=True)
        node = {f"{kind}_us": time for kind, time in times if time == time}
        for each, values in columns:
            if each.key in _ALWAYS or not each.is_default(values[op]):
                node[each.key] = each.type(values[op])
        graph.add_node(name, **node)
    for source, output, target, size in profile.edges.tolist():
        ends = profile.op_names[source], profile.op_names[target]
        if not graph.has_edge(*ends):
            graph.add_edge(*ends, bytes=0, outputs={})
        edge = graph.edges[ends]
        edge["outputs"][output] = size
        edge["bytes"] += size
    if len(profile.hold_op):
        graph.graph["holds"] = [
            (profile.op_names[source], output, profile.op_names[op])
            for source, output, op in profile.holds.tolist()
        ]
    if len(profile.sharing):
        graph.graph["shares"] = [
            (profile.op_names[source], output, profile.op_names[base], number)
            for source, output, base, number in profile.shares.tolist()
        ]
    return graph


def from_networkx(graph: Graph, name: str | None = None) -> Profile:
    """Make a profile of a directed graph with costs as attributes.

    Parameters
    ----------
    graph : networkx.DiGraph
        Its nodes are ops; other nodes than texts are named by their ``str()``. The attributes are
        those of :func:`to_networkx`. A node needs ``gpu_us``, ``cpu_us`` or both, and an edge needs
        ``bytes``, ``outputs`` or ``control=True`` (the consumer only has to wait). Without
        ``outputs``, the edge carries output 0, and so all such edges of a node have the same
        ``bytes``. A node's bytes are 0 by default, its scope is its name up to the last slash.
        Attributes with other names are ignored. Those of the graph may say that times are
        estimated.
    name : str, optional
        The profile's name; by default ``graph.graph["name"]``, or ``"model"``.

    Raises
    ------
    ProfileError
        If an attribute is missing or cannot be right, with the node or edge and the attribute; or
        if the graph has a cycle.
    """
    if not getattr(graph, "is_directed", lambda: False)():
        raise ProfileError("edges must lead from producer to consumer; give a networkx.DiGraph")
    if not isinstance(name, str | None):
        raise ProfileError(f"name is {name!r:.60}; use a string")
    nodes = [_node(node, attributes) for node, attributes in graph.nodes(data=True)]
    index: dict[Hashable, int] = {node: op for op, node in enumerate(graph.nodes)}
    edges = [
        (index[source], output, index[target], size)
        for source, target, attributes in graph.edges(data=True)
        for output, size in _outputs(attributes, f"edge {_label(source)} -> {_label(target)}")
    ]
    columns: dict[str, Any] = {
        label: [node[each.key] for node in nodes] for label, each in OP_COLUMNS.items()
    }
    columns["time_us"] = np.array(columns["time_us"], dtype=np.float64).reshape(-1, 2)
    profile = make_profile(
        name or str(graph.graph.get("name") or "model"),
        op_names=[node["name"] for node in nodes],
        **columns,
        **edge_columns(edges),
        holds=[_hold(each, index) for each in graph.graph.get("holds", ())],
        shares=[_share(each, index) for each in graph.graph.get("shares", ())],
        measured=_measurement(graph.graph),
    )
    return with_guessed_passes(profile)


def _hold(hold: Any, index: Mapping[Hashable, int]) -> tuple[int, int, int]:
    """Take a tensor, by its op and output, and the op until which it stays."""
    is_triple = isinstance(hold, list | tuple) and len(hold) == 3
    is_known = is_triple and all(isinstance(e, Hashable) and e in index for e in hold[::2])
    if not is_known or not isinstance(hold[1], int):
        raise ProfileError(
            f"the graph's holds: {hold!r} is not a node, the number of its output and a node"
        )
    return index[hold[0]], hold[1], index[hold[2]]


def _share(share: Any, index: Mapping[Hashable, int]) -> tuple[int, int, int, int]:
    """Take a tensor and its base, each by its op and output."""
    is_row = isinstance(share, list | tuple) and len(share) == 4
    is_known = is_row and all(isinstance(e, Hashable) and e in index for e in share[::2])
    if not is_known or not all(isinstance(e, int) for e in share[1::2]):
        raise ProfileError(
            f"the graph's shares: {share!r} is not a node and the number of its output, twice"
        )
    return index[share[0]], share[1], index[share[2]], share[3]


def _measurement(attributes: Attributes) -> Measurement:
    """Take whether op times are estimated, and for which GPU."""
    estimated = _text(attributes, "estimated", "the graph")
    if not estimated:
        return Measurement()
    speed = attributes.get("estimated_speed")
    if speed is not None:
        speed = _number(attributes, "estimated_speed", "the graph", 1.0, most=1e6)
    return Measurement(estimated=estimated, estimated_speed=speed)


def _node(node: Hashable, attributes: Attributes) -> dict[str, Any]:
    """Take what a profile holds of an op."""
    name, where = str(node), f"node {_label(node)}"
    times = [_number(attributes, f"{kind}_us", where, np.nan, most=MAX_TIME_US) for kind in KINDS]
    if all(time != time for time in times):
        wanted = " or ".join(f"'{kind}_us'" for kind in KINDS)
        raise ProfileError(f"{where} has no {wanted}; give it its compute time in µs")
    values = {each.key: _value(attributes, each, where) for each in OP_COLUMNS.values()}
    scope = _text(attributes, "scope", where, name.rpartition("/")[0])
    return {**values, "name": name, "time_us": times, "scope": scope}


def _value(attributes: Attributes, column: Column, where: str) -> Any:
    if column.type is str:
        return _text(attributes, column.key, where, column.default)
    if column.type is int:
        return _bytes(attributes, column.key, where, column.default)
    return _number(attributes, column.key, where, column.default, column.most)


def _outputs(attributes: Attributes, where: str) -> Iterator[tuple[int, int]]:
    """Yield number and bytes of each output that an edge carries."""
    if (outputs := attributes.get("outputs")) is None:
        if attributes.get("control"):
            yield CONTROL, 0
        else:
            yield 0, _bytes(attributes, "bytes", where)
        return
    if not isinstance(outputs, Mapping) or not all(map(_is_output, outputs)):
        raise ProfileError(f"{where}: 'outputs' must be a dict of output numbers and bytes")
    sizes = {output: _bytes(outputs, output, f"{where}, outputs") for output in outputs}
    total = _bytes(attributes, "bytes", where, sum(sizes.values()))
    if total != sum(sizes.values()):
        raise ProfileError(
            f"{where}: 'bytes' is {total}, but its 'outputs' hold {sum(sizes.values())}; change "
            f"both, or leave one out"
        )
    yield from sizes.items()


def _is_output(number: object) -> bool:
    return isinstance(number, Integral) and int(number) >= CONTROL


def _number(
    attributes: Mapping[Any, Any], key: str | int, where: str, default: float | None, most: float
) -> Any:
    """Take a number from 0; NumPy's numbers are fine."""
    value: Any = attributes.get(key)
    value = default if value is None else value
    if value is None:
        raise ProfileError(f"{where} has no '{key}'; add it")
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if value is not default and not (is_number and 0 <= value <= most):
        raise ProfileError(
            f"{where}: '{key}' must be a number from 0 to {most:g}, not {value!r:.60}"
        )
    return value


def _bytes(
    attributes: Mapping[Any, Any], key: str | int, where: str, default: int | None = None
) -> int:
    value = _number(attributes, key, where, default, MAX_BYTES)
    if value != int(value):
        raise ProfileError(f"{where}: '{key}' must be a whole number, not {value!r:.60}")
    return int(value)


def _text(attributes: Attributes, key: str, where: str, default: str = "") -> str:
    value = attributes.get(key)
    value = default if value is None else value
    if not isinstance(value, str):
        raise ProfileError(f"{where}: '{key}' must be a text, not {value!r:.60}")
    return value


def _label(node: Hashable) -> str:
    return f"'{elide_middle(str(node), MAX_LABEL)}'"
