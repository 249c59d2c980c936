"""The schedule file contains the results of the simulator to the last bit."""

import json

import numpy as np

from enplace.writers import schedule_json


def test_ops_are_written_in_full_precision(middle):
    found = json.loads(schedule_json(middle))
    assert found["makespan_us"] == middle.makespan_us
    assert [op["op"] for op in found["ops"]] == list(middle.problem.profile.op_names)
    assert [op["start_us"] for op in found["ops"]] == middle.op_start_us.tolist()
    assert [op["finish_us"] for op in found["ops"]] == middle.op_finish_us.tolist()
    assert [op["lane"] for op in found["ops"]] == middle.op_lane.tolist()
    assert {op["lane"] for op in found["ops"] if op["device"] == "CPU:0"} > {0}


def test_each_transfer_names_its_tensor_and_its_channels(middle):
    found = json.loads(schedule_json(middle))["transfers"]
    device = {op["op"]: op["device"] for op in json.loads(schedule_json(middle))["ops"]}
    assert len(found) == len(middle.transfer_tensor)
    for transfer in found:
        assert transfer["from"] == device[transfer["op"]] != transfer["to"]
        own = [f"{transfer['from']}->{transfer['to']}"]
        shared = ["host"] if own == ["CPU:0->GPU:2"] else []
        assert transfer["channels"] == own + shared
        size = transfer["bytes"]
        assert np.isclose(transfer["finish_us"] - transfer["start_us"], 1.5 + 1e-4 * size)
        assert (transfer["output"] == -1) <= (size == 0)


def test_devices_include_their_memory(middle):
    found = json.loads(schedule_json(middle))["devices"]
    assert [device["name"] for device in found] == ["GPU:0", "GPU:1", "GPU:2", "CPU:0"]
    assert [device["peak_bytes"] for device in found] == middle.peak_bytes.tolist()
    persistent = middle.problem.profile.persistent_bytes
    assert [device["persistent_bytes"] for device in found] == [
        persistent[middle.plan.device == d].sum() for d in range(4)
    ]


def test_odd_names_are_kept(small):
    found = json.loads(schedule_json(small))
    assert [op["op"] for op in found["ops"]] == list(small.problem.profile.op_names)
