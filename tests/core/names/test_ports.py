"""The ports of an opened group against a count by hand."""

import numpy as np
import pytest

from enplace.names.group_facts import crossing, group_edges
from enplace.names.groups import Grouping, single_ops
from enplace.names.ports import MOST_PORTS, find_ports
from problems import profile_of


def random_profile(seed, n_ops=60):
    random = np.random.default_rng(seed)
    names = [f"op{op}" for op in range(n_ops)]
    ends = np.unique(np.sort(random.integers(0, n_ops, (150, 2)), axis=1), axis=0)
    sizes = random.integers(0, 1000, n_ops).tolist()
    edges = [(names[a], names[b], sizes[a]) for a, b in ends.tolist() if a != b]
    return profile_of(dict.fromkeys(names, 1.0), edges)


def grouped(group) -> Grouping:
    names = tuple(f"group {number}" for number in range(max(group) + 1))
    return Grouping(np.array(group), names, names, names)


def carried(profile, sources, targets) -> tuple[int, int]:
    """Sum up the tensors of some ops that other ops use: bytes and number."""
    found = {
        int(tensor)
        for tensor, op in zip(profile.edge_tensor, profile.edge_op, strict=True)
        if profile.tensor_op[tensor] in sources and op in targets
    }
    return sum(int(profile.tensor_bytes[tensor]) for tensor in found), len(found)


@pytest.mark.parametrize("seed", range(4))
def test_each_neighbour_has_a_port_with_all_that_it_sends_or_takes(seed):
    profile = random_profile(seed)
    whole = grouped(np.arange(60) // 10)
    inside = single_ops(profile, whole.ops(3))
    members = set(whole.ops(3).tolist())
    ports = find_ports(profile, "group 3", inside, [whole]).ports
    for group in {0, 1, 2, 4, 5}:
        others = set(whole.ops(group).tolist())
        name = f"group {group}"
        for is_input, ends in ((True, (others, members)), (False, (members, others))):
            found = [port for port in ports if (port.name, port.is_input) == (name, is_input)]
            totals = [(port.bytes, port.n_tensors) for port in found]
            expected = carried(profile, *ends)
            assert totals == ([expected] if expected[1] else [])
            assert all(port.places == ((0, group),) for port in found)


@pytest.mark.parametrize("seed", range(4))
def test_every_edge_over_the_border_ends_at_the_port_of_its_neighbour(seed):
    profile = random_profile(seed)
    whole = grouped(np.arange(60) // 10)
    inside = single_ops(profile, whole.ops(2))
    ports = find_ports(profile, "group 2", inside, [whole])
    edges = group_edges(profile, inside, ports)
    device = np.arange(60) % 2
    cut = crossing(profile, inside, edges, device, ports)
    found = {}
    for source, target, is_cut in zip(edges.source, edges.target, cut, strict=True):
        found[int(source), int(target)] = bool(is_cut)
    expected = {}
    for source, target in zip(profile.edge_source.tolist(), profile.edge_op.tolist(), strict=True):
        a, b = inside.group[source], inside.group[target]
        if max(a, b) >= 0:
            ends = (
                int(a if a >= 0 else ports.giver[source]),
                int(b if b >= 0 else ports.taker[target]),
            )
            is_cut = device[source] != device[target]
            expected[ends] = expected.get(ends, False) or bool(is_cut)
    assert found == expected


def test_an_op_outside_belongs_to_the_innermost_group_that_holds_it():
    profile = random_profile(0)
    whole, inner = grouped(np.arange(60) // 30), np.arange(60) // 5
    inner[30:] = -1
    parts = grouped(inner)
    inside = single_ops(profile, parts.ops(2))
    ports = find_ports(profile, "group 2", inside, [whole, parts]).ports
    depths = {port.places[0][0] for port in ports}
    assert depths == {0, 1}
    assert (0, 0) not in {place for port in ports for place in port.places}


def test_the_smallest_neighbours_share_the_last_port():
    names = ["in/a", *(f"out{i}/a" for i in range(12))]
    edges = [("in/a", f"out{i}/a", 8) for i in range(12)]
    profile = profile_of(dict.fromkeys(names, 1.0), edges)
    inside = single_ops(profile, np.array([0]))
    ports = find_ports(profile, "in", inside, [grouped(range(13))])
    assert ports.n == MOST_PORTS
    assert ports.ports[-1].name == "5 other groups"
    assert ports.ports[-1].bytes == 8  # one tensor, though five groups take it
    assert ports.taker[0] == -1
    assert (ports.taker[1:] > 0).all()
