"""The trace meets Perfetto's rules: named tracks, no overlaps, complete flows, memory counters."""

import json
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest

from enplace.values.result import Result
from enplace.writers import chrome_trace


@pytest.fixture(params=["small", "middle"])
def schedule(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def events(schedule):
    return json.loads(chrome_trace(Result(schedule)))["traceEvents"]


def slices(events, category=None):
    return [e for e in events if e["ph"] == "X" and category in (None, e["cat"])]


def test_slices_of_a_track_never_overlap(events):
    tracks = defaultdict(list)
    for event in slices(events):
        tracks[event["pid"], event["tid"]].append(event)
    for track in tracks.values():
        for one, two in pairwise(sorted(track, key=lambda e: (e["ts"], e["dur"]))):
            assert round((one["ts"] + one["dur"]) * 1000) <= round(two["ts"] * 1000)


def test_every_op_is_one_slice_on_its_device(events, schedule):
    process = {
        e["pid"]: e["args"]["name"]
        for e in events
        if e["name"] == "process_name" and e["ph"] == "M"
    }
    found = {e["name"]: (process[e["pid"]], e["tid"] - 1) for e in slices(events, "op")}
    names = [device.name for device in schedule.problem.cluster.devices]
    assert found == {
        op: (names[schedule.plan.device[i]], schedule.op_lane[i])
        for i, op in enumerate(schedule.problem.profile.op_names)
    }


def test_times_match_the_schedule(events, schedule):
    for event in slices(events, "op"):
        op = schedule.problem.profile.index[event["name"]]
        assert abs(event["ts"] - schedule.op_start_us[op]) <= 0.00051
        assert abs(event["ts"] + event["dur"] - schedule.op_finish_us[op]) <= 0.00051


def test_every_track_has_a_name(events):
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in slices(events)} <= named


def test_flows_connect_producer_channel_and_consumers(events, schedule):
    at = {(e["pid"], e["tid"], e["ts"]) for e in slices(events)}
    flows = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            flows[event["id"]].append(event)
    for flow in flows.values():
        assert [e["ph"] for e in flow] == ["s", "t", "f"]
        assert all((e["pid"], e["tid"], e["ts"]) in at for e in flow)
    profile, device = schedule.problem.profile, schedule.plan.device
    assert len(flows) == np.sum(device[profile.edge_source] != device[profile.edge_op])


def test_a_transfer_appears_on_every_channel_of_its_link(events, schedule):
    cluster = schedule.problem.cluster
    hops = {(k.source, k.target): len(k.channels) for k in cluster.links}
    pairs = zip(schedule.transfer_from, schedule.transfer_to, strict=True)
    assert len(slices(events, "transfer")) == sum(hops[pair] for pair in pairs)


def test_counters_show_the_peak_of_each_device(events, schedule):
    peaks = defaultdict(int)
    for event in events:
        if event["ph"] == "C":
            peaks[event["pid"]] = max(peaks[event["pid"]], event["args"]["bytes"])
    assert [peaks[pid] for pid in sorted(peaks)] == schedule.peak_bytes.tolist()
