"""A schedule as a Chrome trace, which Perfetto opens.

Each device is a process with a thread for each lane and a counter for its memory; the channels are
the threads of one more process. Starts and finishes are rounded to the nanosecond, so slices of
one thread touch but never overlap.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np

from enplace.files.json_text import encode_items
from enplace.pictures.tracks import Track, channel_tracks, lane_tracks
from enplace.values.profile import CONTROL, FloatArray
from enplace.values.result import Result
from enplace.values.schedule import Schedule
from enplace.writers.registry import exporter

Event = dict[str, Any]

MARK = r'^\{"traceEvents":\[\{"ph":"M","name":"process_name","pid":1,'


@exporter("trace", title="trace for Perfetto", suffix=".trace.json", mark=MARK)
def chrome_trace(result: Result) -> str:
    """Write JSON text: ops and transfers as slices, flows between them, memory as counters."""
    schedule = result.schedule
    tracks = lane_tracks(schedule) + channel_tracks(schedule)
    events = chain(
        _names(schedule, tracks),
        *(_slices(schedule, track) for track in tracks),
        _flows(schedule),
        _memory(schedule),
    )
    about = {
        "displayTimeUnit": "ms",
        "otherData": {
            "model": schedule.problem.profile.name,
            "cluster": schedule.problem.cluster.name,
            "method": schedule.plan.method,
            **({"times": times} if (times := _about_times(schedule)) else {}),
        },
    }
    # ASCII alone: one other character would double the memory, and the time to join the pieces.
    encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
    texts = list(encode_items(events, encode))
    texts[0] = '{"traceEvents":[' + texts[0]
    texts[-1] += f"],{encode(about)[1:]}\n"
    return ",".join(texts)


def _about_times(schedule: Schedule) -> str:
    return schedule.problem.measured_profile.measured.about_times


def _place(schedule: Schedule, track: Track) -> dict[str, int]:
    """Return process and thread of a track."""
    process = track.device if track.device >= 0 else schedule.problem.cluster.n_devices
    return {"pid": process + 1, "tid": track.lane + 1}


def _rounded(time_us: FloatArray | float) -> Any:
    """Round µs to whole nanoseconds."""
    return np.round(time_us, 3).tolist()


def _names(schedule: Schedule, tracks: list[Track]) -> Iterator[Event]:
    devices = [device.name for device in schedule.problem.cluster.devices]
    for pid, name in enumerate([*devices, "channels"], start=1):
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    for track in tracks:
        where = _place(schedule, track)
        yield {"ph": "M", "name": "thread_name", **where, "args": {"name": track.name}}
        index = {"sort_index": where["tid"]}
        yield {"ph": "M", "name": "thread_sort_index", **where, "args": index}


def _slices(schedule: Schedule, track: Track) -> Iterator[Event]:
    describe = _op if track.device >= 0 else _transfer
    where = _place(schedule, track)
    starts, finishes = _rounded(track.start_us), _rounded(track.finish_us)
    for number, start, finish in zip(track.numbers.tolist(), starts, finishes, strict=True):
        duration = round(finish - start, 3)
        yield {"ph": "X", **where, "ts": start, "dur": duration, **describe(schedule, number)}


def _op(schedule: Schedule, op: int) -> Event:
    profile = schedule.problem.profile
    args = {
        "type": profile.op_types[op],
        "scope": profile.scopes[op],
        "position": int(schedule.plan.position[op]),
        "persistent_bytes": int(profile.persistent_bytes[op]),
        "temporary_bytes": int(profile.temporary_bytes[op]),
    }
    return {"cat": "op", "name": profile.op_names[op], "args": args}


def _transfer(schedule: Schedule, transfer: int) -> Event:
    profile, devices = schedule.problem.profile, schedule.problem.cluster.devices
    tensor = int(schedule.transfer_tensor[transfer])
    output = int(profile.tensor_output[tensor])
    suffix = " (control)" if output == CONTROL else f":{output}"
    args = {
        "from": devices[schedule.transfer_from[transfer]].name,
        "to": devices[schedule.transfer_to[transfer]].name,
        "bytes": int(schedule.transfer_bytes[transfer]),
    }
    name = profile.op_names[profile.tensor_op[tensor]] + suffix
    return {"cat": "transfer", "name": name, "args": args}


def _flows(schedule: Schedule) -> Iterator[Event]:
    """Draw arrows from a producer through the transfer to each consumer on the destination."""
    profile, plan = schedule.problem.profile, schedule.plan
    first_channel = {
        (link.source, link.target): link.channels[0] for link in schedule.problem.cluster.links
    }
    channels_pid = schedule.problem.cluster.n_devices + 1
    starts = _rounded(schedule.op_start_us)
    sent = zip(
        schedule.transfer_tensor.tolist(),
        schedule.transfer_from.tolist(),
        schedule.transfer_to.tolist(),
        _rounded(schedule.transfer_start_us),
        strict=True,
    )

    def at_op(op: int) -> Event:
        lane = int(schedule.op_lane[op])
        return {"pid": int(plan.device[op]) + 1, "tid": lane + 1, "ts": starts[op]}

    number = 0
    for tensor, source, target, start in sent:
        channel = first_channel[source, target]
        on_channel = {"pid": channels_pid, "tid": channel + 1, "ts": start}
        consumers = profile.edge_op[profile.edge_ptr[tensor] : profile.edge_ptr[tensor + 1]]
        for consumer in consumers[plan.device[consumers] == target].tolist():
            number += 1
            flow = {"cat": "tensor", "name": "tensor", "id": number}
            yield {"ph": "s", **flow, **at_op(int(profile.tensor_op[tensor]))}
            yield {"ph": "t", **flow, **on_channel}
            yield {"ph": "f", "bp": "e", **flow, **at_op(consumer)}


def _memory(schedule: Schedule) -> Iterator[Event]:
    for pid, curve in enumerate(schedule.memory, start=1):
        for time, used in zip(_rounded(curve.time_us), curve.bytes.tolist(), strict=True):
            yield {"ph": "C", "name": "memory", "pid": pid, "ts": time, "args": {"bytes": used}}
