"""Check schedule files against the machine model from the files alone.

The checks read a profile in the open text form, a cluster and the output of ``--schedule``. They
use no code of Enplace.
"""

import json
from collections import defaultdict
from itertools import pairwise

import pytest

from enplace.cli import run
from enplace.readers.clusters import presets
from enplace.readers.samples import samples
from enplace.writers.clusters import cluster_to_json

ROUNDING_US = 1e-6
VARIABLES, READS = {"VarHandleOp", "Variable", "VariableV2"}, {"Identity", "ReadVariableOp"}
SAMPLES = {sample.name: sample for sample in samples()}


@pytest.fixture(
    scope="module",
    params=[("vgg-19", "heft"), ("rnnlm-2-2048", "celeritas"), ("vgg-19", "round-robin")],
)
def files(request, tmp_path_factory):
    """Profile, cluster, plan and schedule of a solved sample, as plain data; only read."""
    sample, method = request.param
    sample_path = SAMPLES[sample].path
    folder = tmp_path_factory.mktemp(sample)
    paths = {name: folder / f"{name}.json" for name in ("profile", "plan", "schedule")}
    assert run(["import", str(sample_path), "-o", str(paths["profile"])]) == 0
    words = ["--cluster", "pcie-2", "--method", method, "-o", str(paths["plan"])]
    run(["place", str(paths["profile"]), *words, "--schedule", str(paths["schedule"])])
    found = {name: json.loads(path.read_text()) for name, path in paths.items()}
    return found | {"cluster": cluster_to_json(presets()["pcie-2"])}


def close(a: float, b: float) -> bool:
    return abs(a - b) <= ROUNDING_US


def intervals(entries):
    return sorted((e["start_us"], e["finish_us"]) for e in entries)


def test_each_op_runs_on_its_device_for_its_whole_time(files):
    placed = {entry["op"]: entry["device"] for entry in files["plan"]["ops"]}
    device = {d["name"]: d for d in files["schedule"]["devices"]}
    ran = {entry["op"]: entry for entry in files["schedule"]["ops"]}
    assert len(ran) == len(files["profile"]["ops"]) == len(files["schedule"]["ops"])
    for op in files["profile"]["ops"]:
        entry = ran[op["name"]]
        assert entry["device"] == placed[op["name"]]
        owner = device[entry["device"]]
        duration = op["time_us"][owner["kind"]] / owner["speed"]
        assert close(entry["finish_us"] - entry["start_us"], duration)


def test_lanes_and_channels_never_overlap(files):
    users = defaultdict(list)
    for op in files["schedule"]["ops"]:
        users[op["device"], op["lane"]].append(op)
    for transfer in files["schedule"]["transfers"]:
        for channel in transfer["channels"]:
            users[channel].append(transfer)
    lanes = {d["name"]: d["lanes"] for d in files["cluster"]["devices"]}
    assert all(op["lane"] < lanes[op["device"]] for op in files["schedule"]["ops"])
    for entries in users.values():
        for (_, finish), (start, _) in pairwise(intervals(entries)):
            assert start >= finish - ROUNDING_US


def test_every_tensor_arrives_once_before_its_consumer_starts(files):
    ran = {entry["op"]: entry for entry in files["schedule"]["ops"]}
    sent = {(t["op"], t["output"], t["to"]): t for t in files["schedule"]["transfers"]}
    assert len(sent) == len(files["schedule"]["transfers"])
    used = set()
    for edge in files["profile"]["edges"]:
        source, target = ran[edge["src"]], ran[edge["dst"]]
        if source["device"] == target["device"]:
            assert target["start_us"] >= source["finish_us"] - ROUNDING_US
            continue
        key = (edge["src"], -1 if edge["control"] else edge["output"], target["device"])
        used.add(key)
        assert sent[key]["start_us"] >= source["finish_us"] - ROUNDING_US
        assert target["start_us"] >= sent[key]["finish_us"] - ROUNDING_US
        assert sent[key]["bytes"] == edge["bytes"]
    assert used == set(sent)


def test_transfers_take_the_time_of_their_link(files):
    links = {(link["from"], link["to"]): link for link in files["cluster"]["links"]}
    for transfer in files["schedule"]["transfers"]:
        link = links[transfer["from"], transfer["to"]]
        duration = link["b0_us"] + link["b1_us_per_byte"] * transfer["bytes"]
        assert close(transfer["finish_us"] - transfer["start_us"], duration)
        assert transfer["channels"] == link["channels"]


def ops_that_give_a_variable(profile):
    """Return the ops whose output is the content of a variable, which holds it already.

    These are the variables themselves, and the ops beside them that do nothing but read one.
    """
    ops = {op["name"]: op for op in profile["ops"]}
    sources = defaultdict(list)
    for edge in profile["edges"]:
        if not edge["control"]:
            sources[edge["dst"]].append(edge["src"])
    variables = {name for name, op in ops.items() if op["type"] in VARIABLES}
    readers = {
        name
        for name, op in ops.items()
        if op["type"] in READS
        and len(sources[name]) == 1
        and sources[name][0] in variables
        and op["colocation"] == ops[sources[name][0]]["colocation"] != ""
    }
    return variables | readers


def test_peak_memory_follows_from_the_memory_rules(files):
    """Frees come before allocations at equal times, so ends sort first."""
    profile, schedule = files["profile"], files["schedule"]
    ran = {entry["op"]: entry for entry in schedule["ops"]}
    changes = defaultdict(list)

    def hold(device, size, start, end):
        changes[device] += [(start, 1, size), (end, 0, -size)]

    tensors, consumers = {}, defaultdict(list)
    for edge in profile["edges"]:
        key = (edge["src"], -1 if edge["control"] else edge["output"])
        tensors[key] = edge["bytes"]
        consumers[key].append(ran[edge["dst"]])
    sends = defaultdict(list)
    for transfer in schedule["transfers"]:
        sends[transfer["op"], transfer["output"]].append(transfer)
    givers = ops_that_give_a_variable(profile)
    for key, size in tensors.items():
        producer = ran[key[0]]
        ends = [producer["finish_us"], *(t["finish_us"] for t in sends[key])]
        ends += [c["finish_us"] for c in consumers[key] if c["device"] == producer["device"]]
        if key[0] not in givers:
            hold(producer["device"], size, producer["start_us"], max(ends))
        for transfer in sends[key]:
            there = [c["finish_us"] for c in consumers[key] if c["device"] == transfer["to"]]
            hold(transfer["to"], size, transfer["start_us"], max(there))
    persistent = defaultdict(int)
    for op in profile["ops"]:
        entry = ran[op["name"]]
        persistent[entry["device"]] += op["persistent_bytes"]
        hold(entry["device"], op["temporary_bytes"], entry["start_us"], entry["finish_us"])
    for device in schedule["devices"]:
        used = peak = persistent[device["name"]]
        assert device["persistent_bytes"] == used
        for _, _, change in sorted(changes[device["name"]]):
            used += change
            peak = max(peak, used)
        assert device["peak_bytes"] == peak


def test_the_makespan_is_the_end_of_the_last_op_or_transfer(files):
    schedule = files["schedule"]
    ends = [e["finish_us"] for e in schedule["ops"] + schedule["transfers"]]
    assert schedule["makespan_us"] == max(ends)
    assert files["plan"]["predicted"]["step_time_us"] == max(ends)
