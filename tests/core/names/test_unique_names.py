"""Names that are short and still differ."""

import pytest

from enplace.names.titles import first_to_last, number_key, title, unique_leaves, unshared_title


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["a/x", "a/y"], ("x", "y")),
        (["a/t0/cell/Mul", "a/t1/cell/Mul", "a/t1/Add"], ("t0/Mul", "t1/Mul", "Add")),
        (["a/cell/Mul", "a/cell/drop/Mul"], ("Mul", "drop/Mul")),
        (["Mul", "a/b/Mul", "a/c/Mul"], ("Mul", "b/Mul", "c/Mul")),
        ([f"{a}/{b}/{c}/op" for a in "xy" for b in "xy" for c in "xy"], None),
    ],
)
def test_equal_names_get_the_parts_in_which_their_scopes_differ(names, shown):
    found = unique_leaves(names)
    assert len(set(found)) == len(names)
    assert shown is None or found == shown


@pytest.mark.parametrize(
    ("name", "opened", "shown"),
    [
        ("conv 4 / conv 4.2", "conv 4 / conv 4.3", "conv 4.2"),
        ("gradients of conv 4 / conv 4.3", "conv 4 / conv 4.3", "gradients of conv 4.3"),
        ("encoder / layer 1", "gradients of encoder / layer 2", "layer 1"),
        ("emb", "lstm 0 / t 3", "emb"),
    ],
)
def test_a_neighbour_is_named_without_what_it_shares_with_the_opened_group(name, opened, shown):
    assert unshared_title(name, opened) == shown


def test_numbers_in_names_have_any_length():
    """Python refuses to read a number of over 4,300 digits."""
    long = "a" + "1" * 5000
    assert title((long, long)) == f"{long} / {long}"
    assert first_to_last([f"{long}1", f"{long}2"]) == f"{long}1 … {long}2"
    names = [f"{long}2", "a10", f"{long}1", "a9"]
    assert sorted(names, key=number_key) == ["a9", "a10", f"{long}1", f"{long}2"]
