import itertools

import numpy as np
import pytest

from documents import chain_document, wide_document
from enplace.names.groups import group_ops
from enplace_studio.explain.intervals import Interval, describe_interval
from enplace_studio.explain.listings import (
    DEVICE,
    LAYER,
    TYPE,
    list_memory,
    list_ops,
    list_transfers,
)


def make(document=None):
    schedule = (document or wide_document()).schedule
    return schedule, group_ops(schedule.problem.profile)


def total(listing, title):
    return next(c.values.sum() for c in listing.columns if c.title == title)


def cells(listing):
    return [[c.shown(row) for c in listing.columns] for row in range(listing.n_rows)]


@pytest.mark.parametrize("by", [TYPE, LAYER, DEVICE])
def test_sums_add_up_to_what_the_schedule_says(by):
    schedule, grouping = make()
    ops = list_ops(schedule, grouping).sum_by(by)
    assert total(ops, "Compute") == pytest.approx(schedule.busy_us.sum())
    assert total(ops, "Ops") == schedule.problem.profile.n_ops
    transfers = list_transfers(schedule, grouping).sum_by(by)
    assert total(transfers, "Sent") == pytest.approx(schedule.transfer_bytes.sum())
    memory = list_memory(schedule, grouping).sum_by(by)
    assert total(memory, "Memory") == schedule.peak_bytes.sum()
    assert total(memory, "Share") == pytest.approx(100)


def test_spans_that_tile_the_step_add_up_to_it():
    schedule, grouping = make()
    ends = np.linspace(0, schedule.makespan_us, 5).tolist()
    spans = [Interval(*pair) for pair in itertools.pairwise(ends)]
    parts = [list_ops(schedule, grouping, span).sum_by(DEVICE) for span in spans]
    assert sum(total(part, "Compute") for part in parts) == pytest.approx(schedule.busy_us.sum())
    waits = [total(list_transfers(schedule, grouping, span), "Waiting") for span in spans]
    assert sum(waits) == pytest.approx(total(list_transfers(schedule, grouping), "Waiting"))


def test_a_transfer_waits_from_the_end_of_its_op():
    schedule, grouping = make(chain_document())
    listing = list_transfers(schedule, grouping)
    assert cells(listing) == [
        ["b", "Op", "b", "GPU 0 → GPU 1", "0.020", "0.021", "0.000", "20 B"],
    ]


def test_rows_lead_to_their_ops_and_an_op_in_no_layer_has_none():
    schedule, grouping = make(chain_document())
    grouping.group.flags.writeable = True
    grouping.group[2] = -1
    by_layer = list_ops(schedule, grouping).sum_by(LAYER)
    names = [row[0] for row in cells(by_layer)]
    assert sorted(names) == ["a", "b", "–"]
    assert by_layer.ops_of([names.index("–")]).tolist() == [2]


def test_a_span_is_summed_up_in_a_line():
    schedule, _ = make(chain_document())
    # b computes from 10 to 20 µs, and is sent from 20 to 41 µs, all of its 20 bytes
    assert describe_interval(schedule, Interval(15, 41)) == [
        "0.015 to 0.041 ms (0.026 ms)",
        "compute 0.0050 ms",
        "transfers 0.021 ms, 20 B",
        "GPUs idle 0.047 ms",
    ]
