import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from documents import chain_document, document_of, wide_document
from enplace_studio.explain.holdings import (
    Holding,
    contents_at,
    holdings_at,
    split_at_peak,
)
from problems import cluster_of, profile_of


def names(schedule, found: list[Holding]) -> list[tuple[str, int, bool]]:
    op_names = schedule.problem.profile.op_names
    return [(op_names[held.op], held.bytes, held.received) for held in found]


def test_tensors_are_held_from_production_to_last_use():
    """a: 0 to 10, b: 10 to 20, b's tensor on its way 20 to 41, c: 41 to 51 on GPU 1."""
    schedule = chain_document().schedule
    assert names(schedule, holdings_at(schedule, 0, 5.0)) == [("a", 8, False)]
    assert names(schedule, holdings_at(schedule, 0, 15.0)) == [("b", 20, False), ("a", 8, False)]
    assert names(schedule, holdings_at(schedule, 0, 30.0)) == [("b", 20, False)]
    assert names(schedule, holdings_at(schedule, 0, 45.0)) == []
    assert names(schedule, holdings_at(schedule, 1, 15.0)) == []
    assert names(schedule, holdings_at(schedule, 1, 45.0)) == [("b", 20, True)]


def test_temporary_memory_of_a_running_op_counts():
    profile = profile_of({"a": 10, "b": 10}, [("a", "b", 4)], temporary={"b": 100})
    schedule = document_of(profile, cluster_of(1), {"a": 0, "b": 0}).schedule
    found = holdings_at(schedule, 0, 12.0)
    assert [(held.op, held.output, held.bytes) for held in found] == [(1, None, 100), (0, 0, 4)]


@given(st.floats(0, 1), st.integers(0, 2))
def test_all_holdings_and_the_weights_add_up_to_the_curve(moment, device):
    schedule = SCHEDULE
    time_us = moment * schedule.makespan_us
    curve = schedule.memory[device]
    at = int(np.searchsorted(curve.time_us, time_us, side="right")) - 1
    held = holdings_at(schedule, device, time_us, limit=10_000)
    assert sum(h.bytes for h in held) + curve.weights_bytes == curve.bytes[at]


@given(st.floats(0, 1), st.integers(0, 2))
def test_the_contents_add_up_to_the_curve(moment, device):
    time_us = moment * SCHEDULE.makespan_us
    curve = SCHEDULE.memory[device]
    at = int(np.searchsorted(curve.time_us, time_us, side="right")) - 1
    found = contents_at(SCHEDULE, device, time_us)
    assert sum(holding.bytes for holding in found) == curve.bytes[at]
    assert [h.bytes for h in found] == sorted((h.bytes for h in found), reverse=True)


def test_the_contents_say_what_each_thing_is():
    profile = profile_of(
        {"a": 10, "b": 10}, [("a", "b", 4)], temporary={"b": 9}, persistent={"a": 7}
    )
    schedule = document_of(profile, cluster_of(1), {"a": 0, "b": 0}).schedule
    found = [
        (holding.op, holding.kind, holding.bytes) for holding in contents_at(schedule, 0, 12.0)
    ]
    assert found == [(1, "temporary", 9), (0, "weights and optimiser", 7), (0, "activation", 4)]
    after = chain_document().schedule
    assert [holding.kind for holding in contents_at(after, 1, 45.0)] == ["received"]


def test_only_the_largest_holdings_are_listed_in_order():
    held = holdings_at(SCHEDULE, 0, SCHEDULE.makespan_us / 2)
    sizes = [h.bytes for h in held]
    every = holdings_at(SCHEDULE, 0, SCHEDULE.makespan_us / 2, limit=10_000)
    assert sizes == sorted((h.bytes for h in every), reverse=True)[:5]


@pytest.mark.parametrize("device", [0, 1, 2])
def test_the_parts_add_up_to_the_peak(device):
    split = split_at_peak(SCHEDULE.memory[device])
    assert split.peak_bytes == SCHEDULE.peak_bytes[device]
    held = holdings_at(SCHEDULE, device, split.peak_us, limit=10_000)
    assert split.received_bytes == sum(h.bytes for h in held if h.received)
    assert split.activation_bytes == sum(h.bytes for h in held if not h.received)


SCHEDULE = wide_document().schedule
