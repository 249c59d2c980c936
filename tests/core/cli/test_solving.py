"""``place``, ``simulate`` and ``compare``: output, files and exit status."""

import json
import os
import re
import signal
import threading
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from numba.core.event import trigger_event
from tests.core.cli.conftest import MIB, OPS, machine, model

from enplace.cli import first_plan
from enplace.placers import Progress, placers
from enplace.placing import registry
from enplace.readers import read_plan, read_profile
from enplace.readers.clusters import cluster_from
from enplace.readers.samples import samples
from enplace.text import ms
from enplace.values.problem import Problem

NUMBERS = {
    "method",
    "objective",
    "step_time_us",
    "lower_bound",
    "gap",
    "solve_seconds",
    "feasible",
    "devices",
    "transfers",
    "placement_file",
}


@pytest.fixture
def planned(enplace, folder):
    """Path of ``plan.json``, a plan of the small model."""
    assert enplace("place", "p.json", "--cluster", "c.json", "-o", "plan.json").status == 0
    return folder / "plan.json"


def devices_of(plan_file, profile="p.json", cluster="c.json"):
    """Read the device of each op from a plan file, by name."""
    problem = Problem(read_profile(profile), cluster_from(cluster, read_profile(profile)))
    plan = read_plan(plan_file, problem).plan
    return dict(zip(problem.profile.op_names, plan.device.tolist(), strict=True))


def test_a_profile_without_times_on_gpus_says_why_they_stay_idle(enplace, folder):
    ops = [{"name": name, "type": "MatMul", "time_us": {"cpu": 900.0}} for name in "ab"]
    profile = {"format": "enplace-profile/1", "name": "host", "ops": ops, "edges": []}
    (folder / "host.json").write_text(json.dumps(profile))
    done = enplace("place", "host.json", "--cluster", "pesto", "--method", "heft")
    assert "No op has a time on a GPU" in done.out
    assert "No op has a time" not in enplace("place", "p.json", "--cluster", "pesto").out


def test_place_writes_a_plan_and_prints_its_figures(enplace, folder):
    done = enplace("place", "p.json", "--cluster", "c.json", "-o", "plan.json")
    assert (done.status, done.err) == (0, "")
    assert "step time" in done.out
    assert "proven not below" in done.out
    assert set(devices_of("plan.json")) == set(OPS)


def test_json_is_one_document_with_every_number(enplace, folder):
    arguments = ("place", "p.json", "--cluster", "c.json", "--json", "-o", "plan.json")
    done = enplace(*arguments, "--method", "single")
    assert done.err == ""
    found = done.document
    assert found.keys() >= NUMBERS
    assert found["step_time_us"] == pytest.approx(100 * len(OPS))
    assert found["placement_file"] == "plan.json"
    assert [device["ops"] for device in found["devices"]] == [len(OPS), 0]
    assert found["devices"][0].keys() >= {"name", "busy_us", "peak_bytes", "capacity_bytes"}
    assert found["transfers"] == {"count": 0, "bytes": 0, "time_us": 0.0}


def test_without_an_output_place_writes_no_file(enplace, folder):
    before = sorted(folder.iterdir())
    assert enplace("place", "p.json", "--cluster", "c.json").status == 0
    assert sorted(folder.iterdir()) == before


def test_a_plan_that_exceeds_memory_is_written_but_exits_with_1(enplace, folder):
    (folder / "tight.json").write_text(json.dumps(machine(20 * MIB)))
    arguments = ("--cluster", "tight.json", "--method", "single", "-o", "plan.json")
    done = enplace("place", "p.json", *arguments)
    assert done.status == 1
    assert "Nothing found that fits; not proven: GPU 0 needs 30 MiB" in done.out
    assert " — " in next(line for line in done.out.splitlines() if line.startswith("gap"))
    assert "has 20 MiB (20,971,520 bytes)" in done.out
    assert set(devices_of("plan.json", cluster="tight.json").values()) == {0}
    assert enplace("simulate", "p.json", "plan.json").status == 1
    assert enplace("simulate", "p.json", "plan.json", "--json").document["feasible"] is False


def test_variables_that_can_never_fit_exit_with_1(enplace, folder):
    done = enplace("place", "p.json", "--cluster", "small.json", "--json")
    assert done.status == 1
    assert done.document["kind"] == "DoesNotFitError"
    assert done.err.count("\n") == 1


def test_an_op_that_no_device_can_run_exits_with_1(enplace, folder):
    lost = model()
    lost["ops"][2]["time_us"] = {"cpu": 1.0}
    (folder / "lost.json").write_text(json.dumps(lost))
    done = enplace("place", "lost.json", "--cluster", "c.json")
    assert done.status == 1
    assert OPS[2] in done.err


def test_pins_colocation_and_forbidden_devices_are_respected(enplace, folder):
    options = ("--pin", "layer_0=gpu:1", "--colocate", "Relu", "--forbid", "loss=1")
    done = enplace("place", "p.json", "--cluster", "c.json", *options, "-o", "plan.json")
    assert done.status == 0
    device = devices_of("plan.json")
    assert device["encoder/layer_0/MatMul"] == 1
    assert {device[op] for op in OPS if op.endswith("Relu")} == {1}
    assert device["loss"] == 0


@pytest.mark.parametrize("spelling", ["GPU:1", "gpu:1", "1", "GPU 1"])
def test_a_device_can_be_spelled_in_four_ways(enplace, folder, spelling):
    options = ("--cluster", "c.json", "--method", "single", "-o", "plan.json")
    assert enplace("place", "p.json", *options, "--pin", f".={spelling}").status == 0
    assert set(devices_of("plan.json").values()) == {1}


def test_a_pin_can_use_the_device_name_that_the_table_shows(enplace, folder):
    hosts = machine()
    for task, device in enumerate(hosts["devices"]):
        device["name"] = f"/job:worker/task:{task}/device:GPU:0"
    (folder / "hosts.json").write_text(json.dumps(hosts))
    options = ("--cluster", "hosts.json", "--method", "single", "-o", "plan.json")
    shown = enplace("place", "p.json", *options).out
    assert shown.count("worker 0 GPU 0") == shown.count("worker 1 GPU 0") == 1
    assert enplace("place", "p.json", *options, "--pin", ".=worker 1 GPU 0").status == 0
    assert set(devices_of("plan.json", cluster="hosts.json").values()) == {1}
    assert enplace("place", "p.json", *options, "--pin", ".=GPU 0").status == 2


def test_an_exact_op_name_pins_only_that_op(enplace, folder):
    (folder / "p.json").write_text(json.dumps(model(["MatMul_1", "MatMul_10", "MatMul_11"])))
    pins = ("--pin", "MatMul_1=1", "--pin", "MatMul_10=0", "--pin", "_11=0")
    options = ("--cluster", "c.json", "-o", "plan.json")
    assert enplace("place", "p.json", *options, *pins).status == 0
    assert devices_of("plan.json") == {"MatMul_1": 1, "MatMul_10": 0, "MatMul_11": 0}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--pin", "decoder/.*=GPU:1"), "matches none of the 7 ops"),
        (("--forbid", "decoder/.*=GPU:1"), "matches none of the 7 ops"),
        (("--colocate", "decoder/.*"), "matches none of the 7 ops"),
        (("--pin", "(=GPU:1"), "not a regex"),
        (("--pin", "loss"), "write REGEX=DEVICE"),
        (("--pin", "=GPU:1"), "write REGEX=DEVICE"),
        (("--pin", "loss=GPU:7"), "no device 'GPU:7'; use one of GPU:0, GPU:1"),
        (("--pin", "loss=²"), "no device '²'"),
        (("--pin", "loss=0", "--pin", "loss=1"), "already pinned to GPU:0"),
        (("--pin", "loss=0", "--forbid", "loss=0"), "forbidden"),
        (("--pin", "_0=0", "--pin", "_1=1", "--colocate", "Relu"), "colocated"),
        (("--method", "guess"), "there is no method 'guess'; use one of "),
        (("--method", "hefft"), "did you mean 'heft'?"),
        (("--method", "x" * 5000), "…"),
        (("--cluster", "pesta"), "did you mean 'pesto'?"),
        (("--time-limit", "nan"), "'nan' is not a number"),
        (("--time-limit", "-1"), "-1 is not above zero"),
        (("--time-limit", "0"), "0 is not above zero"),
        (("--time-limit", "inf"), "inf is too large"),
        (("--time-limit", "1e999"), "1e999 is too large"),
        (("--scale-links", "-2"), "not above zero"),
        (("--objective", "beauty"), "'beauty' is not"),
        (("-o", "p.json"), "is also an input"),
        (("-o", "nowhere/plan.json"), "no folder 'nowhere'"),
        (("--schedule", "."), "is a folder"),
    ],
)
def test_a_bad_option_of_place_is_refused_in_one_line(enplace, folder, options, complaint):
    done = enplace("place", "p.json", "--cluster", "c.json", *options)
    assert done.status == 2
    assert done.out == ""
    assert complaint in done.err
    assert done.err.startswith("enplace: ")
    assert done.err.count("\n") == 1


def test_scaling_makes_devices_and_links_faster(enplace, planned):
    def step(*scale):
        return enplace("simulate", "p.json", planned, "--json", *scale).document["step_time_us"]

    assert step("--scale-compute", 2, "--scale-links", 2) == pytest.approx(step() / 2)


def test_simulate_predicts_the_step_time_that_place_printed(enplace, planned):
    promised = json.loads(planned.read_text())["predicted"]["step_time_us"]
    done = enplace("simulate", "p.json", planned, "--cluster", "c.json", "--json")
    assert done.document["step_time_us"] == promised
    assert done.document.keys() >= NUMBERS


def test_simulate_accepts_other_policies(enplace, planned):
    policies = ("--policy", "strict", "--links", "ordered")
    found = enplace("simulate", "p.json", planned, *policies, "--json").document
    assert (found["policy"], found["links"]) == ("strict", "ordered")


def test_a_deadlocking_order_exits_with_1(enplace, planned):
    plan = json.loads(planned.read_text())
    plan["ops"].reverse()
    planned.write_text(json.dumps(plan))
    done = enplace("simulate", "p.json", planned, "--policy", "strict")
    assert done.status == 1
    assert "deadlocks" in done.err


def test_simulate_writes_the_schedule_and_the_trace(enplace, planned):
    arguments = ("--schedule", "s.json", "--trace", "t.json", "--json")
    found = enplace("simulate", "p.json", planned, *arguments).document
    schedule = json.loads((planned.parent / "s.json").read_text())
    assert schedule["makespan_us"] == found["step_time_us"]
    assert (found["schedule_file"], found["trace_file"]) == ("s.json", "t.json")
    assert json.loads((planned.parent / "t.json").read_text())["traceEvents"]


def test_a_plan_of_another_graph_is_refused_and_the_difference_shown(enplace, planned):
    other = [*OPS[:4], "new_a", "new_b", "new_c", "new_d"]
    (planned.parent / "other.json").write_text(json.dumps(model(other)))
    done = enplace("simulate", "other.json", planned, "--json")
    assert done.status == 2
    assert done.document["missing_ops"] == other[4:]
    assert done.document["new_ops"] == OPS[4:]
    assert "4 ops of the profile (new_a, new_b, new_c, ...)" in done.err
    assert "3 ops not in the profile" in done.err
    assert done.err.count("\n") == 1


def test_changed_edges_cause_a_note(enplace, planned):
    changed = model()
    changed["edges"].append({"src": OPS[0], "output": 0, "dst": OPS[-1], "bytes": MIB})
    (planned.parent / "changed.json").write_text(json.dumps(changed))
    done = enplace("simulate", "changed.json", planned, "--json")
    assert done.status == 0
    assert done.document["step_time_us"] > 0
    assert "the graph's edges or types have changed" in done.err
    assert done.err.count("\n") == 1


def test_a_plan_that_does_not_say_its_graph_causes_no_note(enplace, planned):
    written = json.loads(planned.read_text())
    del written["profile"]
    planned.write_text(json.dumps(written))
    done = enplace("simulate", "p.json", planned)
    assert done.status == 0
    assert not done.err


def test_complete_places_the_ops_missing_from_a_plan(enplace, planned):
    (planned.parent / "other.json").write_text(json.dumps(model([*OPS[:4], "new_a"])))
    done = enplace("simulate", "other.json", planned, "--complete", "--json")
    assert done.status == 0
    assert sum(device["ops"] for device in done.document["devices"]) == 5


def test_a_plan_that_separates_colocated_ops_is_simulated_with_a_note(enplace, folder):
    dealt = ("--method", "round-robin", "-o", "s.json")
    assert enplace("place", "p.json", "--cluster", "c.json", *dealt).status == 0
    tied = model()
    for op in (0, 1):
        tied["ops"][op]["colocation"] = "together"
    (folder / "tied.json").write_text(json.dumps(tied))
    done = enplace("simulate", "tied.json", "s.json", "--json")
    free = enplace("simulate", "p.json", "s.json", "--json")
    assert done.status == 0
    assert "from ops they are colocated with" in done.err
    assert done.document["step_time_us"] == free.document["step_time_us"]


def test_a_plan_that_does_not_beat_one_device_is_called_useless_first(enplace, folder):
    one_sample = model(measured={"batch_shapes": [[1, 8]]})
    (folder / "p.json").write_text(json.dumps(one_sample))
    words = ("p.json", "--cluster", "c.json", "--method")
    done = enplace("place", *words, "single")
    assert done.out.splitlines()[2].startswith("One device is as fast: nothing to split.")
    found = enplace("place", *words, "random", "--json").document
    slower = found["step_time_us"] > found["one_device_step_time_us"]
    assert found["verdict"].startswith("One device is faster: nothing to split.") == slower


def test_compare_lists_the_methods_asked_for(enplace, folder):
    methods = ("--methods", "single,expert,heft")
    done = enplace("compare", "p.json", "--cluster", "c.json", *methods, "--json")
    assert done.status == 0
    assert [entry["method"] for entry in done.document["methods"]] == ["single", "expert", "heft"]
    assert all(entry["error"] is None for entry in done.document["methods"])
    plain = enplace("compare", "p.json", "--cluster", "c.json", *methods)
    first, others, table, memory, *_ = plain.out.split("\n\n")
    assert first == done.document["verdict"]
    assert others.startswith("Of what needs no planner, data parallel, 2 replicas is predicted")
    names = [line.split()[0] for line in table.splitlines()]
    assert names == ["method", "single", "expert", "heft", "data"]
    (shared,), (rival,) = done.document["data_parallel"], done.document["alternatives"]
    assert rival["step_time_us"] == shared["step_time_us"]
    assert [each["peak_bytes"] for each in rival["devices"][:2]] == [
        each["peak_bytes"] for each in shared["shares"]
    ]
    assert memory.startswith("Predicted, not measured:\ndata parallel, 2 replicas: ")
    assert (shared["replicas"], shared["gpus_each"]) == (2, 1)
    assert first.startswith(f"Data parallelism is faster: it takes {ms(shared['step_time_us'])}")
    assert [each["share"] for each in shared["shares"]] == [0.5, 0.5]
    assert done.document["data_parallel_why_not"] == shared["guess"] == ""


@pytest.mark.parametrize(("framework", "named"), [(None, "Data parallelism"), ("torch", "DDP")])
@pytest.mark.parametrize("command", ["place", "compare"])
def test_types_that_say_nothing_of_samples_make_no_figure(
    enplace, folder, command, framework, named
):
    cells = model()
    cells |= {"measured": {"framework": framework}} if framework else {}
    for op in cells["ops"]:
        op["type"] = "LSTMCell"
    (folder / "p.json").write_text(json.dumps(cells))
    options = ("--methods", "single") if command == "compare" else ()
    done = enplace(command, "p.json", "--cluster", "c.json", *options)
    assert f"{named} is not predicted: no op is known to work on samples" in done.out
    found = enplace(command, "p.json", "--cluster", "c.json", *options, "--json").document
    assert (found["data_parallel"], found["data_parallel_step_time_us"]) == ([], None)
    assert found["data_parallel_why_not"].startswith(f"{named} is not predicted: no op")


def test_unlike_cards_get_shares_of_the_batch_by_speed(enplace, folder):
    mixed = machine()
    mixed["devices"][0]["speed"] = 3.0
    (folder / "c.json").write_text(json.dumps(mixed))
    (folder / "p.json").write_text(json.dumps(model(measured={"batch_shapes": [[32, 8]]})))
    done = enplace("place", "p.json", "--cluster", "c.json", "--method", "single")
    assert "Best shares of the batch: 25 samples on GPU 0; 7 samples on GPU 1." in done.out
    (shared,) = enplace(
        "compare", "p.json", "--cluster", "c.json", "--methods", "single", "--json"
    ).document["data_parallel"]
    assert [each["samples"] for each in shared["shares"]] == [
        25,
        7,
    ]  # launches take their time on each
    assert shared["step_time_us"] == pytest.approx(100 * len(OPS) / 4, rel=0.05)


@pytest.mark.parametrize("command", ["place", "compare"])
def test_an_experts_plan_that_does_not_fit_is_no_reference(enplace, folder, command):
    """One op holds all weights of a decoder, and no card has room for it; only the host does."""
    heavy = model()
    for op in heavy["ops"]:
        op["persistent_bytes"] = 90 * MIB if "loss" in op["name"] else 0
    small = machine(60 * MIB)
    small["devices"].append({"name": "CPU:0", "kind": "cpu", "capacity_bytes": 900 * MIB})
    slow = {"b0_us": 5.0, "b1_us_per_byte": 1e-4}
    small["default_links"] |= {"gpu-cpu": slow, "cpu-gpu": slow}
    (folder / "p.json").write_text(json.dumps(heavy))
    (folder / "c.json").write_text(json.dumps(small))
    options = ("--methods", "heft") if command == "compare" else ()
    done = enplace(command, "p.json", "--cluster", "c.json", *options)
    assert done.status == 0
    assert "he expert's plan does not fit" in done.out
    assert not re.search(r"[+−][\d,.]+ %", done.out)
    found = enplace(command, "p.json", "--cluster", "c.json", *options, "--json").document
    assert found["expert_feasible"] is False


def test_a_plan_that_does_not_fit_says_so_before_it_tells_of_the_experts(enplace, folder):
    heavy = model()
    for op in heavy["ops"]:
        op["persistent_bytes"] = 16 * MIB
    (folder / "p.json").write_text(json.dumps(heavy))
    (folder / "c.json").write_text(json.dumps(machine(60 * MIB)))
    done = enplace("place", "p.json", "--cluster", "c.json", "--time-limit", "2")
    assert done.status == 1
    assert "this plan does not fit, nor does the expert's" in done.out


@pytest.mark.parametrize("methods", ["heft", "heft,expert"])
def test_with_pins_compare_and_place_tell_of_the_same_expert_who_is_free(enplace, folder, methods):
    asked = ("p.json", "--cluster", "c.json", "--json")
    free = enplace("compare", *asked, "--methods", methods).document
    pins = ("--pin", "layer_0/=GPU:1", "--pin", "loss=GPU:0")
    compared = enplace("compare", *asked, *pins, "--methods", methods).document
    placed = enplace("place", *asked, *pins, "--method", "heft").document
    figure = "expert_step_time_us"
    assert compared[figure] == placed[figure] == free[figure]


@pytest.mark.parametrize(
    ("objective", "column", "figure"),
    [
        ("throughput", "time per sample", "time_per_sample_us"),
        ("latency", "latency", "latency_us"),
    ],
)
def test_compare_includes_baselines_that_do_not_minimise_the_objective(
    enplace, folder, objective, column, figure
):
    words = ("--objective", objective, "--methods", "max-load-dp,expert,local-search")
    done = enplace("compare", "p.json", "--cluster", "c.json", *words)
    head, dp, expert_row = (re.split(r"  +", line) for line in done.out.splitlines()[:3])
    assert head[:4] == ["method", column, "vs expert", "step time"]
    assert expert_row[2] == "reference"
    assert dp[2] == "as fast" if dp[1] == expert_row[1] else dp[2].startswith("−")
    found = enplace("compare", "p.json", "--cluster", "c.json", *words, "--json").document
    assert all(method[figure] > 0 for method in found["methods"])
    expert = found["methods"][1]
    assert "by expert, which does not minimise" in expert["note"]
    assert not expert["proven"]


def test_compare_passes_each_option_to_the_methods_that_have_it(enplace, folder):
    words = (
        "compare",
        "p.json",
        "--cluster",
        "c.json",
        "--memory-rule",
        "sums",
        "--family",
        "layers",
    )
    done = enplace(*words, "--methods", "m-etf,heft,expert", "--json")
    assert [entry["error"] for entry in done.document["methods"]] == [None, None, None]
    done = enplace(*words, "--methods", "heft,expert")
    assert done.status == 2
    assert "add m-etf or m-sct" in done.err


def test_compare_refuses_a_method_that_does_not_exist(enplace, folder):
    done = enplace("compare", "p.json", "--cluster", "c.json", "--methods", "single,guess")
    assert done.status == 2
    assert "no method 'guess'" in done.err


def test_compare_continues_when_a_method_fails(enplace, folder, monkeypatch):
    from enplace.errors import EnplaceError
    from enplace.placing import registry

    def fail(problem, options):
        raise EnplaceError("no luck today")

    broken = registry.Placer("broken", "Broken", "", fail)
    monkeypatch.setitem(registry._registry, "broken", broken)
    options = ("--cluster", "c.json", "--methods", "broken,single")
    done = enplace("compare", "p.json", *options)
    assert done.status == 0
    assert "broken has no plan: no luck today" in done.out
    entry = enplace("compare", "p.json", *options, "--json").document["methods"][0]
    assert entry == {"method": "broken", "error": "no luck today", "feasible": False}


def test_compare_exits_with_1_if_nothing_fits(enplace, folder):
    (folder / "tight.json").write_text(json.dumps(machine(20 * MIB)))
    done = enplace("compare", "p.json", "--cluster", "tight.json", "--methods", "single")
    assert done.status == 1
    assert " no " in done.out


def test_throughput_prints_the_time_per_sample_and_the_proof(enplace):
    bert = str(next(s.path for s in samples() if s.name == "bert-3-training"))
    done = enplace("place", bert, "--cluster", "from-file", "--objective", "throughput")
    assert ", max-load-dp, " in done.out
    assert re.search("^time per sample +65.3 ms$", done.out, re.MULTILINE)
    gap = gap_line(done)
    assert "0.0 %" in gap
    assert "no split into consecutive stages has less: 2,774 ideals" in gap


def gap_line(done):
    (line,) = [line for line in done.out.splitlines() if line.startswith("gap")]
    return line


def test_with_throughput_the_gap_is_to_the_bound_on_the_time_per_sample(enplace, tmp_path):
    vgg = str(next(s.path for s in samples() if s.name == "vgg-19"))
    plan = str(tmp_path / "plan.json")
    words = ["place", vgg, "--cluster", "pesto", "--objective", "throughput", "-o", plan, "--json"]
    found = enplace(*words).document
    us, bound_us = found["time_per_sample_us"], found["time_per_sample_bound_us"]
    assert 0 < bound_us < us
    assert found["lower_bound"] == bound_us
    assert found["gap"] == pytest.approx(1 - bound_us / us)
    shown = gap_line(enplace(*words[:-1]))
    assert f"{100 * found['gap']:.1f} %" in shown
    assert f"has less than {ms(bound_us)}" in shown


@pytest.mark.parametrize("objective", ["throughput", "latency"])
def test_a_plan_file_cannot_lie_about_its_plan(enplace, folder, objective):
    words = ["place", "p.json", "--cluster", "c.json", "--objective", objective, "-o", "plan.json"]
    enplace(*words)
    true = enplace("simulate", "p.json", "plan.json").out
    lying = json.loads((folder / "plan.json").read_text())
    key = "time_per_sample_us" if objective == "throughput" else "latency_us"
    lying["facts"] |= {key: 0.001, "bound_us": 0.001, "proven": True}
    (folder / "plan.json").write_text(json.dumps(lying))
    told, claim = enplace("simulate", "p.json", "plan.json").out, "Proven best, says its file.\n\n"
    assert claim in true
    assert told == true.replace(claim, ""), "the plan it is said of has another value"
    assert "\ngap" not in told


def test_a_note_that_tells_times_says_when_on_a_machine_that_is_faster(enplace, folder):
    step = enplace("place", "p.json", "--cluster", "c.json", "-o", "plan.json", "--json").document
    plan = json.loads((folder / "plan.json").read_text())
    plan["facts"]["note"] = "the best of 3: 1.6 ms"
    (folder / "plan.json").write_text(json.dumps(plan))
    words = ["simulate", "p.json", "plan.json"]
    assert "\nThe best of 3: 1.6 ms.\n" in enplace(*words).out
    took = ms(step["step_time_us"])
    dated = f"Found for other costs or memory, where it took {took}: The best of 3: 1.6 ms."
    faster = [*words, "--scale-compute", "2", "--scale-links", "2"]
    assert f"\n{dated}\n" in enplace(*faster).out
    assert enplace(*faster, "--json").document["note"] == dated


def test_with_latency_the_gap_is_to_the_bound_on_the_latency(enplace, folder):
    words = ["place", "p.json", "--cluster", "c.json", "--objective", "latency"]
    found = enplace(*words, "--json").document
    assert (found["lower_bound"], found["gap"]) == (found["latency_us"], 0.0)
    assert "no contiguous split has less" in gap_line(enplace(*words))


def test_without_a_bound_on_the_objective_no_gap_is_printed(enplace, folder):
    words = ["place", "p.json", "--cluster", "c.json", "--objective", "throughput"]
    done = enplace(*words, "--method", "expert", "--json")
    assert (done.document["lower_bound"], done.document["gap"]) == (None, None)
    assert "\ngap" not in enplace(*words, "--method", "expert").out


def test_latency_prints_the_time_of_a_query(enplace):
    bert = str(next(s.path for s in samples() if s.name == "bert-3-training"))
    words = ["place", bert, "--cluster", "from-file", "--objective", "latency"]
    found = enplace(*words, "--method", "greedy-latency", "--json").document
    assert (found["objective"], found["method"]) == ("latency", "greedy-latency")
    assert found["latency_us"] > 0
    assert not found["proven"]
    assert "latency of a query" in enplace(*words, "--method", "greedy-latency").out


def test_a_noncontiguous_proof_is_worded_as_one(enplace, folder):
    words = ["place", "p.json", "--cluster", "c.json", "--objective", "throughput"]
    method = ["--method", "max-load-ip-noncontiguous"]
    assert "no split has less" in enplace(*words, *method).out


def test_a_method_that_does_not_serve_the_objective_is_refused(enplace):
    bert = str(next(s.path for s in samples() if s.name == "bert-3-training"))
    words = ["--cluster", "from-file", "--objective", "throughput", "--method", "heft"]
    done = enplace("place", bert, *words)
    assert done.status == 2
    assert "method 'heft' does not serve objective 'throughput'" in done.err


@pytest.fixture
def endless():
    """A method that reports a plan, presses Ctrl-C and then searches until it is stopped."""

    @registry.placer("endless", title="Endless")
    def run(problem, options):
        plan = placers()["single"].run(problem, options)
        options.progress(Progress(0.0, "a plan", incumbent=plan))
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            options.stop.check()

    yield
    registry._registry.pop("endless")


def test_ctrl_c_keeps_the_best_plan_so_far(enplace, folder, endless):
    before = signal.getsignal(signal.SIGINT)
    done = enplace(
        "place", "p.json", "--cluster", "c.json", "--method", "endless", "-o", "plan.json"
    )
    assert done.status == 130
    assert "stopped; this is the best plan so far" in done.err
    assert set(devices_of("plan.json").values()) == {0}
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture
def ended(monkeypatch):
    """Set where the command would end its process with a first plan."""
    ended = threading.Event()
    monkeypatch.setattr(first_plan, "LASTS_S", 0.0)
    monkeypatch.setattr(os, "_exit", lambda status: ended.set() if status == 130 else None)
    return ended


def searched_with(monkeypatch, run):
    """Make ``slow`` a method that runs a function, and then puts all on one device."""

    def search(problem, options):
        run(problem, options)
        return placers()["single"].run(problem, options)

    monkeypatch.setitem(registry._registry, "slow", registry.Placer("slow", "Slow", "", search))
    return ("place", "p.json", "--cluster", "c.json", "--method", "slow", "-o", "plan.json")


def press_while_compiling(ended, ready=None):
    """Return a search that presses Ctrl-C in the middle of a compile, once all is ready."""

    def run(problem, options):
        with trigger_event("numba:compile"):
            assert ready is None or ready.wait(60)
            os.kill(os.getpid(), signal.SIGINT)
            assert ended.wait(60)

    return run


def press_once_told(monkeypatch, ended, hear=lambda text: None):
    """Return the same for when the first plan, or that there is none, has been told."""
    told = threading.Event()
    monkeypatch.setattr(first_plan, "_say", lambda text: told.set() or hear(text))
    return press_while_compiling(ended, told)


def test_while_the_search_is_compiled_there_is_a_first_plan(enplace, folder, monkeypatch, ended):
    told = threading.Event()

    def run(problem, options):
        with trigger_event("numba:compile"):
            assert told.wait(60)
            first.update(devices_of("plan.json"))
            os.kill(os.getpid(), signal.SIGINT)
            assert ended.wait(60)

    first = {}
    monkeypatch.setattr(first_plan, "_say", lambda text: told.set())
    Path("plan.json").write_text('{"format": "enplace-plan/1"}')
    done = enplace(*searched_with(monkeypatch, run))
    assert first.keys() == devices_of("plan.json").keys()
    assert "heft" in done.out.partition("slow")[0], "the first plan is the answer to Ctrl-C"
    assert Path("plan.json~").read_text() == '{"format": "enplace-plan/1"}'


@pytest.mark.parametrize(("best_us", "answer"), [(None, "the best"), (1e12, "heft")])
def test_ctrl_c_ends_with_the_better_plan_while_a_kernel_is_compiled(
    enplace, folder, monkeypatch, ended, best_us, answer
):
    told = threading.Event()

    def run(problem, options):
        with trigger_event("numba:compile"):
            assert told.wait(60)
            plan = replace(placers()["expert"].run(problem, options), method="the best")
            options.progress(Progress(0.0, "a plan", incumbent=plan, objective_us=best_us))
            os.kill(os.getpid(), signal.SIGINT)
            assert ended.wait(60)

    monkeypatch.setattr(first_plan, "_say", lambda text: told.set())
    done = enplace(*searched_with(monkeypatch, run))
    assert answer in done.out.partition("slow")[0]


def test_ctrl_c_between_two_kernels_ends_with_the_first_plan(enplace, folder, monkeypatch, ended):
    told = threading.Event()

    def run(problem, options):
        with trigger_event("numba:compile"):
            assert told.wait(60)
        os.kill(os.getpid(), signal.SIGINT)
        options.stop.check()

    monkeypatch.setattr(first_plan, "_say", lambda text: told.set())
    assert "heft" in enplace(*searched_with(monkeypatch, run)).out
    assert ended.is_set()


def test_the_first_plan_of_a_search_from_a_plan_is_that_one(enplace, folder, monkeypatch, ended):
    enplace("place", "p.json", "--cluster", "c.json", "--method", "expert", "-o", "old.json")
    words = searched_with(monkeypatch, press_once_told(monkeypatch, ended))
    slow = replace(registry._registry["slow"], capabilities=(registry.WARM_START,))
    monkeypatch.setitem(registry._registry, "slow", slow)
    done = enplace(*words, "--start", "old.json")
    assert "expert" in done.out.partition("slow")[0]


def test_the_document_of_a_first_plan_has_the_keys_of_any_other(
    enplace, folder, monkeypatch, ended
):
    run = press_once_told(monkeypatch, ended)
    done = enplace(*searched_with(monkeypatch, run), "--json")
    decoder = json.JSONDecoder()
    first, end = decoder.raw_decode(done.out)
    usual, _ = decoder.raw_decode(done.out[end:].lstrip())
    assert first.keys() == usual.keys()
    assert first["placement_file"] == "plan.json"


def test_a_first_plan_that_is_never_written_leaves_no_copy_of_the_old_file(
    enplace, folder, monkeypatch, ended
):
    monkeypatch.setattr(first_plan, "GIVE_UP_S", 0.0)
    Path("plan.json").write_text("mine")
    words = searched_with(monkeypatch, press_while_compiling(ended))
    monkeypatch.setattr(os, "_exit", lambda status: ended.set() or left.append([*Path().iterdir()]))
    left = []
    enplace(*words, "--force")
    assert Path("plan.json~") not in left[0]


def test_ctrl_c_ends_a_comparison_while_a_method_is_compiled(enplace, folder, monkeypatch, ended):
    searched_with(monkeypatch, press_while_compiling(ended))
    done = enplace("compare", "p.json", "--cluster", "c.json", "--methods", "slow,heft")
    assert "interrupted" in done.err


def test_ctrl_c_ends_a_search_for_another_objective_while_it_is_compiled(
    enplace, folder, monkeypatch, ended
):
    words = searched_with(monkeypatch, press_while_compiling(ended))
    slow = replace(registry._registry["slow"], objectives=("throughput",))
    monkeypatch.setitem(registry._registry, "slow", slow)
    done = enplace(*words, "--objective", "throughput")
    assert "first plan" not in done.err
    assert "interrupted" in done.err


def test_ctrl_c_ends_a_search_whose_first_plan_failed(enplace, folder, monkeypatch, ended):
    said = []
    monkeypatch.setattr(first_plan.FirstPlan, "_make", lambda *given: None)
    run = press_once_told(monkeypatch, ended, said.append)
    assert "interrupted" in enplace(*searched_with(monkeypatch, run)).err
    assert said == ["note: there is no first plan, and the search goes on"]


def test_kernels_that_are_compiled_in_a_moment_bring_no_first_plan(folder, capsys):
    looks, looked = count(), threading.Event()

    def clock():
        """Stand still; the first look is the compiler's, the others are of who waits for it."""
        if next(looks) > 2:
            looked.set()
        return 0.0

    problem = Problem(read_profile("p.json"), cluster_from("c.json", read_profile("p.json")))
    early = first_plan.FirstPlan(None, False, lambda: False, clock)
    with early.made_meanwhile(first_plan.Request(problem)), trigger_event("numba:compile"):
        assert looked.wait(60)
    assert "first plan" not in capsys.readouterr().err


def test_the_plans_to_compare_with_come_out_of_the_time_limit(enplace, folder, monkeypatch):
    limits_s = []

    def run(problem, options):
        limits_s.append(options.stop.limit_s)
        return placers()["single"].run(problem, options)

    monkeypatch.setitem(registry._registry, "timed", registry.Placer("timed", "Timed", "", run))
    words = ("place", "p.json", "--cluster", "c.json", "--method", "timed")
    assert "One device" in enplace(*words, "--time-limit", "10").out
    assert "One device" in enplace(*words).out
    assert 9.0 <= limits_s[0] < 10.0
    assert limits_s[1] is None


def test_after_ctrl_c_compare_skips_the_remaining_methods(enplace, folder, endless):
    done = enplace(
        "compare", "p.json", "--cluster", "c.json", "--methods", "heft,endless,celeritas", "--json"
    )
    assert done.status == 130
    heft, stopped, late = done.document["methods"]
    assert heft["error"] is None
    assert stopped["error"] is None
    assert late["error"] == "stopped before there was a plan"
    assert "stopped; 1 method had no plan yet and is left out" in done.err


def test_after_ctrl_c_compare_lists_only_the_methods_with_a_plan(enplace, folder, endless):
    methods = "endless,heft,celeritas,single"
    done = enplace("compare", "p.json", "--cluster", "c.json", "--methods", methods)
    assert done.status == 130
    assert len(done.out.splitlines()) == 2, "a head and the only plan"
    assert "has no plan" not in done.out
    assert done.err.count("had no plan yet") == 1
    assert "stopped; 3 methods had no plan yet and are left out" in done.err
    done = enplace("compare", "p.json", "--cluster", "c.json", "--methods", "heft,endless")
    assert "stopped; every method has a plan, the last one its best so far" in done.err


def test_a_search_can_start_from_a_plan(enplace, planned, folder):
    done = enplace(
        "place", "p.json", "--cluster", "c.json", "--start", "plan.json",
        "--option", "rounds=1", "-o", "better.json", "--json",
    )  # fmt: skip
    first = json.loads(planned.read_text())["predicted"]["step_time_us"]
    assert done.status == 0
    assert done.document["step_time_us"] <= first * (1 + 1e-12)


@pytest.mark.parametrize("method", ["enplace", "pesto"])
def test_a_search_that_does_not_improve_its_start_plan_reports_that(enplace, folder, method):
    options = ("place", "p.json", "--cluster", "c.json", "--option", "rounds=1")
    assert enplace(*options, "-o", "best.json").status == 0
    again = enplace(*options, "--start", "best.json", "--method", method)
    assert again.status == 0
    assert "Nothing better than the plan given was found in " in again.out


def test_a_plan_of_another_model_is_refused_as_a_start(enplace, planned, folder):
    profile = json.loads((folder / "p.json").read_text())
    text = json.dumps(profile)
    for number, op in enumerate(profile["ops"]):
        text = text.replace(json.dumps(op["name"]), json.dumps(f"other{number}"))
    (folder / "other.json").write_text(text)
    done = enplace("place", "other.json", "--cluster", "c.json", "--start", "plan.json")
    assert done.status == 2
    assert "plan.json: made for another graph" in done.err
    assert done.err.count("\n") == 1


def test_a_method_that_cannot_start_from_a_plan_names_those_that_can(enplace, planned):
    done = enplace(
        "place", "p.json", "--cluster", "c.json", "--method", "heft", "--start", "plan.json"
    )
    assert done.status == 2
    assert "method 'heft' cannot start from a plan" in done.err
    assert "use enplace or pesto" in done.err


def test_a_damaged_start_plan_is_named(enplace, folder):
    (folder / "bad.json").write_text("{")
    done = enplace("place", "p.json", "--cluster", "c.json", "--start", "bad.json")
    assert done.status == 2
    assert "bad.json" in done.err


def test_whole_layers_stay_on_one_device_and_are_counted(enplace, folder):
    options = ("p.json", "--cluster", "c.json", "--objective", "throughput", "-o", "plan.json")
    done = enplace("place", *options, "--pin", "layer_1/MatMul=0", "--pin", "layer_1/Relu=1")
    assert re.search(r"\nlayers +3  1 cut between devices; --whole 'encoder/layer_.d\+'", done.out)
    done = enplace("place", *options, "--whole", r"layer_\d", "--pin", "layer_1/Relu=1")
    assert "3  2, 1 on GPU 1, GPU 0\n" in done.out
    done = enplace("simulate", "p.json", "plan.json", "--json")
    assert done.document["layers"] == {
        "count": 3,
        "cut": 0,
        "on": {"GPU:1": 2, "GPU:0": 1},
        "in_order": [{"device": "GPU:1", "layers": 2}, {"device": "GPU:0", "layers": 1}],
    }


def test_step_time_says_nothing_of_layers_unless_asked(enplace, folder):
    options = ("p.json", "--cluster", "c.json", "--method", "single")
    assert "layers" not in enplace("place", *options, "--json").document
    asked = enplace("place", *options, "--whole", r"layer_\d", "--json").document
    in_order = [{"device": "GPU:0", "layers": 3}]
    assert asked["layers"] == {"count": 3, "cut": 0, "on": {"GPU:0": 3}, "in_order": in_order}


def test_layers_that_no_op_has_are_refused_with_some_that_it_has(enplace, folder):
    done = enplace("place", "p.json", "--cluster", "c.json", "--whole", "block")
    assert done.status == 2
    assert (
        "--whole 'block' matches none of the 7 ops of 'tiny'; try 'encoder/layer_\\d+'" in done.err
    )


def test_a_reserve_is_kept_free_shown_and_remembered(enplace, folder):
    (folder / "tight.json").write_text(json.dumps(machine(31 * MIB)))
    arguments = ("place", "p.json", "--cluster", "tight.json", "-o", "plan.json")
    alone = enplace(*arguments, "--method", "single")
    assert (alone.status, alone.out.count("Nearly full: GPU 0 (96.8 %)")) == (0, 1)
    assert enplace(*arguments, "--method", "single", "--reserve", "2MiB").status == 1
    both = enplace(*arguments, "--reserve", "2MiB", "--json")
    assert both.status == 0
    for found in (both.document, enplace("simulate", "p.json", "plan.json", "--json").document):
        for device in found["devices"]:
            assert (device["capacity_bytes"], device["reserve_bytes"]) == (29 * MIB, 2 * MIB)
            assert device["peak_bytes"] <= device["capacity_bytes"]
    shown = enplace("simulate", "p.json", "plan.json").out
    assert "In reserve, and not counted above: 2.0 MiB on GPU 0, GPU 1." in shown
    refused = enplace(*arguments, "--reserve", "2")
    assert (refused.status, refused.err.count("\n")) == (2, 1)
