"""Blocks: the parts of a model that are like some ops, found by name and checked on the graph."""

import pytest

from enplace.names.blocks import find_blocks
from problems import profile_of


def layers(n, edges=(("norm", "MatMul"), ("MatMul", "add")), extra=None):
    """Make layers of three ops each, chained by their last op; ``extra`` maps a layer to edges."""
    times, links = {}, []
    for layer in range(n):
        scope = f"encoder/layer_{layer}"
        times |= {f"{scope}/{name}": 1 for name in ("norm", "MatMul", "add")}
        links += [(f"{scope}/{a}", f"{scope}/{b}", 4) for a, b in (extra or {}).get(layer, edges)]
        if layer:
            links.append((f"encoder/layer_{layer - 1}/add", f"{scope}/norm", 4))
    return profile_of(times, links)


def names(profile, blocks):
    return [[profile.op_names[op] for op in block] for block in blocks.tolist()]


def ops_in(profile, scope):
    return [op for op, name in enumerate(profile.op_names) if name.startswith(scope)]


def test_each_layer_is_a_block_whose_ops_correspond():
    profile = layers(12)
    blocks = find_blocks(profile, ops_in(profile, "encoder/layer_3/"))
    assert blocks.shape == (12, 3)
    ends = [[name.split("/")[-1] for name in block] for block in names(profile, blocks)]
    assert all(block == ends[0] for block in ends)
    assert {name.split("/")[1] for name in names(profile, blocks)[0]} == {"layer_3"}
    assert len({op for block in blocks.tolist() for op in block}) == 36


def test_a_part_of_a_layer_is_found_in_the_others():
    profile = layers(4)
    blocks = find_blocks(profile, [profile.index["encoder/layer_1/MatMul"]])
    assert sorted(names(profile, blocks)) == [[f"encoder/layer_{n}/MatMul"] for n in range(4)]


def test_a_layer_with_other_edges_inside_is_no_such_block():
    profile = layers(4, extra={2: [("MatMul", "norm"), ("norm", "add")]})
    blocks = find_blocks(profile, ops_in(profile, "encoder/layer_0/"))
    found = {name.split("/")[1] for block in names(profile, blocks) for name in block}
    assert found == {"layer_0", "layer_1", "layer_3"}


def test_a_range_of_numbers_is_repeated_as_a_range():
    profile = layers(7)
    two = [op for n in (0, 1) for op in ops_in(profile, f"encoder/layer_{n}/")]
    blocks = find_blocks(profile, two)
    spans = [sorted({name.split("/")[1] for name in block}) for block in names(profile, blocks)]
    assert spans == [["layer_0", "layer_1"], ["layer_2", "layer_3"], ["layer_4", "layer_5"]]


def test_ops_numbered_across_layers_correspond_by_their_numbers():
    scopes = {"mul": "l_0", "mul_1": "l_0", "mul_9": "l_1", "mul_10": "l_1"}
    profile = profile_of(
        {f"{scope}/{name}": 1 for name, scope in reversed(scopes.items())},
        [("l_0/mul", "l_0/mul_1", 4), ("l_1/mul_9", "l_1/mul_10", 4)],
    )
    blocks = find_blocks(profile, [profile.index["l_0/mul"], profile.index["l_0/mul_1"]])
    assert sorted(map(sorted, names(profile, blocks))) == [
        ["l_0/mul", "l_0/mul_1"],
        ["l_1/mul_10", "l_1/mul_9"],
    ]


@pytest.mark.parametrize("profile", [profile_of({"a/x": 1, "b/x": 1}, [("a/x", "b/x", 4)])])
def test_without_numbers_a_block_is_alone(profile):
    assert find_blocks(profile, [0]).tolist() == [[0]]
