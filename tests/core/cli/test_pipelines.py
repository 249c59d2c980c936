"""Pipelines on the command line: load rules, replicas, solvers and simulation."""

import json
import sys
from itertools import pairwise

import pytest
from tests.core.cli.conftest import MIB, machine, model


def throughput(enplace, *more, method="max-load-dp"):
    """Place the small model for throughput and return the JSON."""
    options = ("--objective", "throughput", "--method", method, *more)
    done = enplace("place", "p.json", "--cluster", "c.json", *options, "--json")
    assert done.status == 0, done.err
    return done.document


def test_transfers_that_overlap_with_computing_add_no_load(enplace, folder):
    """Four of seven 100 µs ops are on one device, which sends 1 MiB to the other."""
    sent_us = 5 + MIB * 1e-5
    assert throughput(enplace)["time_per_sample_us"] == pytest.approx(400 + sent_us)
    found = throughput(enplace, "--load", "overlap")
    assert found["time_per_sample_us"] == pytest.approx(400)
    assert found["load"]["transfers"] == "overlap"
    assert found["proven"]


def test_a_proof_for_two_levels_names_its_restriction(enplace, folder):
    options = ("--objective", "throughput", "--method", "max-load-dp", "--two-level")
    out = enplace("place", "p.json", "--cluster", "fastt-2x8", *options).out
    assert "no split that gives each machine consecutive stages has less" in out


def test_replicas_are_printed_and_kept_in_the_plan(enplace, folder):
    found = throughput(enplace, "--replicate", "-o", "plan.json")
    assert found["time_per_sample_us"] == pytest.approx(350)
    assert found["replicas"] == [["GPU:0", "GPU:1"]]
    assert json.loads((folder / "plan.json").read_text())["replicas"] == [["GPU:0", "GPU:1"]]
    again = enplace("simulate", "p.json", "plan.json", "--json").document
    assert again["replicas"] == [["GPU:0", "GPU:1"]]
    assert "replicas" in enplace("simulate", "p.json", "plan.json").out


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            ("--replicate", "--method", "max-load-ip"),
            "of max-load-dp, max-load-dpl, pipedream",
        ),
        (
            ("--two-level", "--method", "max-load-ip"),
            "of max-load-dp, max-load-dpl, pipedream",
        ),
        (("--solver", "cbc", "--method", "max-load-dp"), "has no option 'solver'"),
        (("--solver", "cplex", "--method", "max-load-ip"), "solver CPLEX is not installed; use"),
        (("--solver", "magic"), "'magic' is not"),
    ],
)
def test_options_that_a_pipeline_method_does_not_have_are_refused(
    enplace, folder, monkeypatch, options, complaint
):
    monkeypatch.setattr("shutil.which", lambda program: None)
    done = enplace("place", "p.json", "--cluster", "c.json", "--objective", "throughput", *options)
    assert done.status == 2
    assert complaint in done.err
    assert done.err.count("\n") == 1


def test_a_solver_that_needs_an_extra_says_which(enplace, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pulp", None)
    throughput = ("--objective", "throughput", "--method", "max-load-ip", "--solver", "cbc")
    done = enplace("place", "p.json", "--cluster", "c.json", *throughput)
    assert (done.status, done.err) == (
        2,
        "enplace: pulp is not installed; run: pip install 'enplace[solvers]'\n",
    )


def test_every_solver_finds_the_same_optimum(enplace, folder):
    usual = throughput(enplace, method="max-load-ip")
    other = throughput(enplace, "--solver", "cbc", method="max-load-ip")
    assert other["time_per_sample_us"] == pytest.approx(usual["time_per_sample_us"])
    assert other["proven"]


def test_a_plan_is_simulated_as_a_pipeline(enplace, folder):
    best_us = throughput(enplace, "-o", "plan.json")["time_per_sample_us"]
    pipeline = ("simulate", "p.json", "plan.json", "--pipeline", "inference", "--microbatches", 3)
    found = enplace(*pipeline, "--json").document
    assert found["time_per_sample_us"] == pytest.approx(best_us)
    assert (found["pipeline"], found["microbatches"]) == ("inference", 3)
    assert [stage["pass"] for stage in found["stages"]] == ["forward"] * 2
    rows = enplace(*pipeline).out.partition("stage  on")[2].splitlines()[1:]
    assert [row.split()[0] for row in rows if "forward" in row] == ["1", "2"]
    for device in found["devices"]:
        assert [slot["microbatch"] for slot in device["computing"]] == [0, 1, 2]
        assert len(device["transfers"]) == 3
    output = enplace(*pipeline).out
    assert "time per sample" in output
    assert "GPU 1" in output


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (
            ("--pipeline", "1f1b"),
            'give its ops the field "pass": "backward", or names that begin with \'gradients/\'',
        ),
        (("--pipeline", "inference", "--trace", "t.json"), "leave out --pipeline"),
        (("--pipeline", "inference", "--microbatches", "0"), "0 is not in the range"),
        (("--load", "overlap"), "add --pipeline"),
    ],
)
def test_an_impossible_pipeline_is_refused_in_one_line(enplace, folder, more, complaint):
    throughput(enplace, "-o", "plan.json")
    done = enplace("simulate", "p.json", "plan.json", *more)
    assert done.status == 2
    assert complaint in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("way", ["bw", "rev"])
def test_gradients_that_share_a_device_with_their_layers_are_the_backward_pass(
    enplace, folder, way
):
    """Unless the words for it are known, both commands name the ops that may be meant."""
    names = [f"fw/{i}" for i in range(6)] + [f"{way}/{i}" for i in reversed(range(6))]
    profile = model(names)
    for op in profile["ops"]:
        held = 5 * MIB if op["name"].startswith("fw") else 0
        op |= {"type": "Block", "colocation": op["name"][-1], "persistent_bytes": held}
    profile["edges"] += [
        {"src": f"fw/{i}", "dst": f"{way}/{i + 1}", "bytes": MIB} for i in range(5)
    ]
    cards = machine(24 * MIB)
    cards["devices"] = [{**cards["devices"][0], "name": f"GPU:{i}"} for i in range(4)]
    (folder / "p.json").write_text(json.dumps(profile))
    (folder / "c.json").write_text(json.dumps(cards))
    words = ("--objective", "throughput", "--method", "max-load-dp", "-o", "plan.json")
    done = enplace("place", "p.json", "--cluster", "c.json", *words)
    simulated = enplace("simulate", "p.json", "plan.json", "--pipeline", "1f1b")
    if way == "bw":
        assert (done.status, simulated.status) == (0, 0)
        assert "guessed from names such as 'bw/5'" in done.out
    else:
        assert simulated.status == 2
        assert "the 6 ops that begin with 'rev/'" in done.out
        assert "the 6 ops that begin with 'rev/'" in simulated.err


def test_load_options_need_the_throughput_objective(enplace, folder):
    asked = ("place", "p.json", "--cluster", "c.json")
    cases = (
        (("--load", "duplex", "--method", "heft"), "'heft' has no option 'load'"),
        (("--replicate",), "'enplace' has no option 'replicate'"),
        (("--load", "duplex", "--method", "expert"), "or ask for --objective throughput"),
        (
            ("--objective", "latency", "--method", "metis", "--pipeline", "gpipe"),
            "or ask for --objective throughput",
        ),
    )
    for options, complaint in cases:
        done = enplace(*asked, *options)
        assert done.status == 2
        assert complaint in done.err


def test_numbers_of_samples_are_compared(enplace, folder):
    throughput(enplace, "-o", "plan.json")
    asked = ("simulate", "p.json", "plan.json", "--pipeline", "inference", "--microbatches")
    points = enplace(*asked, "4,1,2", "--json").document["points"]
    assert [point["microbatches"] for point in points] == [1, 2, 4]
    one = enplace(*asked, 4, "--json").document
    assert points[-1]["makespan_us"] == one["makespan_us"] == 4 * points[-1]["mean_us"]
    assert points[-1]["peak_bytes"] == {d["name"]: d["peak_bytes"] for d in one["devices"]}
    assert "once the pipeline is full" in enplace(*asked, "1,2").out
    assert enplace(*asked, "1,x").status == 2


def test_a_run_refuses_to_recompute_and_a_simulation_says_where(enplace, folder):
    throughput(enplace, "-o", "plan.json")
    plan = json.loads((folder / "plan.json").read_text())
    plan["facts"]["recompute"] = [1]
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "train.py").write_text("")
    done = enplace("run", "train.py", "plan.json", "--profile", "p.json", "--trust")
    assert done.status == 2
    assert "recomputes activations on GPU 1" in done.err
    words = enplace("simulate", "p.json", "plan.json").out.split()
    assert " computes again GPU 1 " in " ".join(words)


def test_a_plan_whose_pipeline_does_not_fit_ends_with_1(enplace, folder):
    """A step frees each gradient after its update; a pipeline sums up all of them.

    It does so if samples return to both devices, which the pins ensure.
    """
    layers = [f"layer_{number}" for number in range(4)]
    backward = [f"gradients/{name}" for name in reversed(layers)]
    profile = model([*layers, *backward, *(f"update/{name}" for name in layers)])
    for op in profile["ops"]:
        op["persistent_bytes"] = 10 * MIB * op["name"].startswith("layer")
    chain = [*layers, *backward]
    profile["edges"] = [
        {"src": a, "output": 0, "dst": b, "bytes": 4} for a, b in pairwise(chain)
    ] + [
        {"src": name, "output": 1, "dst": name.replace("gradients", "update"), "bytes": 10 * MIB}
        for name in backward
    ]
    (folder / "sums.json").write_text(json.dumps(profile))
    (folder / "small.json").write_text(json.dumps(machine(35 * MIB)))
    place = ("place", "sums.json", "--cluster", "small.json", "--objective", "throughput")
    pins = "--pin", "gradients/layer_0=GPU:0", "--pin", "gradients/layer_3=GPU:1"
    done = enplace(*place, *pins, "--time-limit", 1, "--json")
    assert done.document["feasible"]
    assert not done.document["pipeline"]["feasible"]
    assert done.status == 1
    enplace(*place, *pins, "--time-limit", 1, "-o", "plan.json")
    enplace("export", "sums.json", "plan.json", "--format", "html", "-o", "report.html")
    assert "does not fit with its samples in flight" in (folder / "report.html").read_text()
