"""A profile refuses impossible graphs and costs, and names the op."""

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from enplace.errors import (
    CostError,
    CycleError,
    DanglingEdgeError,
    DuplicateOpError,
    EmptyProfileError,
    NameTooLongError,
    ProfileError,
    TensorMismatchError,
)
from enplace.values.profile import CONTROL, MAX_BYTES, Profile, columns_of, make_profile


def make(edges: list[tuple[int, int, int, int]], n: int = 3, **changes: Any) -> Profile:
    """Build a profile of ops a, b, c... from edges (source, output, consumer, bytes)."""
    columns = np.array(edges, dtype=np.int64).reshape(-1, 4).T
    fields: dict[str, Any] = {
        "op_names": [chr(ord("a") + i) for i in range(n)],
        "op_types": ["MatMul"] * n,
        "scopes": [""] * n,
        "time_us": [[1.0, 2.0]] * n,
        "persistent_bytes": [0] * n,
        "temporary_bytes": [0] * n,
        "colocation": [""] * n,
    } | changes
    return make_profile(
        "test",
        edge_source=columns[0],
        edge_output=columns[1],
        edge_op=columns[2],
        edge_bytes=columns[3],
        **fields,
    )


def test_one_tensor_with_two_consumers_is_one_tensor() -> None:
    profile = make([(0, 0, 2, 8), (0, 0, 1, 8), (0, 1, 1, 4)])
    assert profile.n_tensors == 2
    assert profile.edge_op[profile.edge_tensor == 0].tolist() == [1, 2]


def test_an_op_that_reads_a_tensor_twice_has_one_edge() -> None:
    assert make([(0, 0, 1, 8), (0, 0, 1, 8)]).n_edges == 1


def test_ops_come_after_their_producers() -> None:
    order = make([(2, 0, 0, 8), (0, 0, 1, 8)]).topological_order
    assert order.tolist() == [2, 0, 1]


def test_a_cycle_is_named_by_its_ops() -> None:
    with pytest.raises(CycleError, match=r"b -> c -> b|c -> b -> c"):
        make([(0, 0, 1, 8), (1, 0, 2, 8), (2, 0, 1, 8)])


def test_a_long_cycle_is_shown_abbreviated() -> None:
    ring = [(i, 0, (i + 1) % 20, 8) for i in range(20)]
    with pytest.raises(CycleError, match=r"\.\.\. \(20 ops\)"):
        make(ring, 20)


def test_an_op_that_consumes_itself_is_named() -> None:
    with pytest.raises(CycleError, match="'b' consumes its own output"):
        make([(1, 0, 1, 8)])


@pytest.mark.parametrize("edge", [(0, 0, 7, 8), (7, 0, 0, 8), (-1, 0, 0, 8)])
def test_an_edge_to_an_unknown_op_is_refused(edge: tuple[int, int, int, int]) -> None:
    with pytest.raises(DanglingEdgeError, match=r"edge 0 .* op number (7|-1)"):
        make([edge])


def test_a_duplicate_name_is_refused() -> None:
    with pytest.raises(DuplicateOpError, match="2 ops are called 'a'"):
        make([], op_names=["a", "b", "a"])


@pytest.mark.parametrize("time_us", [-1.0, math.inf, -math.inf, 1e13])
def test_an_impossible_time_is_refused(time_us: float) -> None:
    with pytest.raises(CostError, match="op 'b': a time of"):
        make([], time_us=[[1.0, 1.0], [time_us, 1.0], [1.0, 1.0]])


def test_an_op_without_any_time_is_refused() -> None:
    with pytest.raises(CostError, match="op 'c' has a time on neither gpu nor cpu"):
        make([], time_us=[[1.0, 1.0], [1.0, 1.0], [math.nan, math.nan]])


@pytest.mark.parametrize("field", ["persistent_bytes", "temporary_bytes"])
@pytest.mark.parametrize("size", [-1, MAX_BYTES + 1])
def test_an_impossible_memory_size_is_refused(field: str, size: int) -> None:
    with pytest.raises(CostError, match=f"op 'a': {field} of {size} is impossible"):
        make([], **{field: [size, 0, 0]})


@pytest.mark.parametrize("size", [-1, MAX_BYTES + 1])
def test_an_impossible_tensor_size_is_refused(size: int) -> None:
    with pytest.raises(CostError, match=f"op 'a', output 0: {size} bytes"):
        make([(0, 0, 1, size)])


def test_edges_of_one_tensor_must_have_equal_bytes() -> None:
    with pytest.raises(TensorMismatchError, match="op 'a', output 0: its edges give 8 and 9 bytes"):
        make([(0, 0, 1, 8), (0, 0, 2, 9)])


def test_a_tensor_lies_only_in_memory_that_its_op_reads_or_makes() -> None:
    edges = [(0, 0, 1, 8), (0, 1, 2, 8), (1, 0, 2, 8)]
    shared = make(edges, shares=[(1, 0, 0, 0), (0, 1, 0, 0), (2, 0, 1, 0)])
    assert shared.tensor_base.tolist() == [-1, 0, 0]  # nobody reads what c makes
    assert shared.shares.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]
    with pytest.raises(ProfileError, match=r"'b', output 0: it lies in .* 'a', output 1, which"):
        make(edges, shares=[(1, 0, 0, 1)])
    with pytest.raises(ProfileError, match="neither reads nor makes"):
        make(edges, shares=[(0, 0, 0, 1), (0, 1, 0, 0)])
    with pytest.raises(ProfileError, match="'a', output 7, which no op reads"):
        make(edges, shares=[(1, 0, 0, 7)])


def test_a_control_edge_carries_no_bytes() -> None:
    with pytest.raises(CostError, match="a control edge carries 8 bytes"):
        make([(0, CONTROL, 1, 8)])


@pytest.mark.parametrize("field", ["op_names", "op_types", "scopes", "colocation"])
def test_an_overlong_text_is_refused(field: str) -> None:
    with pytest.raises(NameTooLongError, match="shorten it"):
        make([], **{field: ["x" * 100_001, "b", "c"]})


@pytest.mark.parametrize("name", ["two\nlines", "nul\0", "half \ud800 pair"])
def test_an_unprintable_name_is_refused_in_one_printable_line(name: str) -> None:
    with pytest.raises(ProfileError) as caught:
        make([], op_names=[name, "b", "c"])
    assert str(caught.value).isprintable()


def test_an_empty_name_and_an_empty_graph_are_refused() -> None:
    with pytest.raises(ProfileError, match="op number 1 has an empty name"):
        make([], op_names=["a", "", "c"])
    with pytest.raises(EmptyProfileError, match="has no ops"):
        make([], 0)


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(ProfileError, match="scopes has 2 entries for 3 ops"):
        make([], scopes=["", ""])


@pytest.mark.parametrize("time_us", [[1.0, 2.0, 3.0], [1.0] * 6, [[1.0, 2.0]], [[1.0]] * 3])
def test_times_without_a_column_for_each_kind_of_device_are_refused(time_us: list[Any]) -> None:
    with pytest.raises(ProfileError, match=r"time_us has shape .*, not \(3, 2\); give"):
        make([], time_us=time_us)


@pytest.mark.parametrize("field", ["time_us", "persistent_bytes", "temporary_bytes"])
@pytest.mark.parametrize("values", [[[1], [1, 2], [1]], ["one", "two", "three"]])
def test_what_cannot_become_an_array_of_numbers_is_named(field: str, values: list[Any]) -> None:
    with pytest.raises(ProfileError, match=f"{field} must hold numbers in rows of equal length"):
        make([], **{field: values})


def test_bytes_in_columns_are_refused() -> None:
    with pytest.raises(ProfileError, match="temporary_bytes must have one number for each op"):
        make([], temporary_bytes=[[1, 2]] * 3)


def test_edges_described_by_columns_of_different_length_are_refused() -> None:
    known = make([])
    columns = columns_of(known) | {"op_names": known.op_names}
    with pytest.raises(ProfileError, match=r"edge_source, .* must have the same length"):
        make_profile(
            "test", **columns, edge_source=[0, 1], edge_output=[0], edge_op=[1], edge_bytes=[8]
        )


def test_a_profile_does_not_freeze_the_arrays_of_its_caller() -> None:
    profile = make([(0, 0, 1, 8)])
    values = {each.name: getattr(profile, each.name) for each in fields(profile)}
    arrays = {name: v.copy() for name, v in values.items() if isinstance(v, np.ndarray)}
    again = replace(profile, **arrays)
    for name, array in arrays.items():
        array[...] = 0
        np.testing.assert_array_equal(getattr(again, name), values[name])


def test_arrays_cannot_be_changed_afterwards() -> None:
    profile = make([(0, 0, 1, 8)])
    with pytest.raises(ValueError, match="read-only"):
        profile.time_us[0, 0] = 5.0


def test_the_fingerprint_depends_on_the_graph_not_on_costs() -> None:
    profile = make([(0, 0, 1, 8)])
    assert profile.with_costs(profile.time_us * 2).fingerprint == profile.fingerprint
    assert make([(0, 0, 2, 8)]).fingerprint != profile.fingerprint
    assert make([(0, 0, 1, 8)], op_types=["Add"] * 3).fingerprint != profile.fingerprint
