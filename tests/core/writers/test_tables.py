"""The CSV table of a plan."""

import csv
import io

import pytest

from enplace.values.result import Result
from enplace.values.schedule import Schedule
from enplace.writers.table_csv import table_csv


def device_names(schedule: Schedule) -> dict[str, str]:
    names = [device.name for device in schedule.problem.cluster.devices]
    places = zip(schedule.problem.profile.op_names, schedule.plan.device, strict=True)
    return {op: names[device] for op, device in places}


def test_csv_lists_every_op_once_in_the_order_of_its_device(middle):
    rows = list(csv.DictReader(io.StringIO(table_csv(Result(middle)))))
    assert {row["op"]: row["device"] for row in rows} == device_names(middle)
    index = middle.problem.profile.index
    for name in {row["device"] for row in rows}:
        mine = [row for row in rows if row["device"] == name]
        assert [int(row["order"]) for row in mine] == list(range(len(mine)))
        positions = [middle.plan.position[index[row["op"]]] for row in mine]
        assert positions == sorted(positions)
    profile = middle.problem.profile
    for row in rows:
        op = index[row["op"]]
        assert float(row["finish_us"]) == pytest.approx(middle.op_finish_us[op], abs=5e-4)
        assert len(row["finish_us"].partition(".")[2]) == 3
        assert (row["type"], row["scope"]) == (profile.op_types[op], profile.scopes[op])
        assert int(row["weights_bytes"]) == profile.persistent_bytes[op]
    assert sum(int(row["out_bytes"]) for row in rows) == profile.tensor_bytes.sum()


def test_csv_keeps_odd_names(small):
    rows = list(csv.DictReader(io.StringIO(table_csv(Result(small)))))
    assert {row["op"] for row in rows} == set(small.problem.profile.op_names)
