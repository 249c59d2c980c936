"""What a notebook reaches under ``enplace.``: the same answers as the command, from Python."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.core.cli.conftest import OPS, machine, model

import enplace as ep
from enplace import api
from enplace.errors import EnplaceError
from enplace.placing import registry

HEAVY = ("numpy", "numba", "networkx", "pandas", "matplotlib", "click")


def names_of(table):
    return [line.split()[0] for line in repr(table).splitlines()]


def test_importing_it_imports_nothing_heavy():
    code = f"import sys, enplace; dir(enplace); print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_name_is_there_and_can_be_completed():
    assert set(ep.__all__) == {*api.__all__, "apply"}
    assert set(ep.__all__) <= set(dir(ep))
    for name in ep.__all__:
        assert getattr(ep, name).__doc__, name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'enplace' has no attribute 'plaec'"):
        ep.plaec  # noqa: B018


def test_a_profile_is_read_from_a_text_a_path_or_a_sample(folder):
    assert ep.read("p.json").op_names == ep.read(folder / "p.json").op_names == tuple(OPS)
    assert ep.read(ep.samples()["vgg-19"]).name == "vgg-19"


def test_a_profile_is_written_and_read_again(folder):
    profile = ep.read("p.json")
    ep.write(folder / "again.enplace", profile)
    ep.write("again.json", profile)
    for name in ("again.enplace", "again.json"):
        assert ep.read(name).fingerprint == profile.fingerprint


def test_samples_clusters_and_methods_show_themselves_as_tables():
    assert names_of(ep.samples()) == list(ep.samples())
    assert names_of(ep.clusters()) == list(ep.clusters())
    assert "2 × V100 16 GB" in repr(ep.clusters())
    assert names_of(ep.methods()) == list(ep.methods())
    assert "latency-ip" in ep.methods("latency")
    assert "heft" not in ep.methods("latency")


def test_a_sample_can_be_placed_on_its_cluster():
    sample = ep.samples()["vgg-19"]
    assert ep.place(sample, sample.cluster, "single").step_time_us > 0


def test_placing_gives_what_the_command_gives(enplace, folder):
    done = enplace("place", "p.json", "--cluster", "c.json", "--method", "heft", "--json")
    result = ep.place("p.json", "c.json", "heft")
    assert result.step_time_us == done.document["step_time_us"]
    assert result.bound_us == done.document["lower_bound"]
    assert result.gap == done.document["gap"]
    assert result.method == "heft"
    assert result.fits


def test_a_cluster_is_a_name_a_file_its_contents_or_a_cluster(folder):
    cluster = ep.place("p.json", "c.json", "single").schedule.problem.cluster
    (folder / "no-suffix").write_text(json.dumps(machine()))
    for choice in ("c.json", Path("c.json"), Path("no-suffix"), machine(), cluster):
        assert ep.place("p.json", choice, "heft").schedule.problem.cluster == cluster
    assert ep.place("p.json", "pesto", "heft").schedule.problem.cluster == ep.clusters()["pesto"]


@pytest.mark.parametrize(
    "pins",
    [
        {"layer_1": "GPU:1", "loss": "GPU:0"},
        {"layer_1": 1, "loss": 0},
        [("layer_1", "GPU:1"), ("loss", "GPU:0")],
        ["layer_1=GPU:1", "loss=GPU:0"],
    ],
)
def test_pins_have_the_meaning_of_the_flag(folder, pins):
    devices = ep.place("p.json", "c.json", "heft", pins=pins).devices
    assert [op for op in OPS if "layer_1" in op and devices[op] != "GPU:1"] == []
    assert devices["loss"] == "GPU:0"


def test_one_text_is_one_constraint_not_its_letters(folder):
    result = ep.place("p.json", "c.json", "heft", pins="loss=GPU:1", colocate="layer_0")
    assert result.devices["loss"] == "GPU:1"
    assert [len(ops) for ops in result.schedule.problem.together] == [2]


def test_ops_can_be_kept_off_devices_and_put_in_order(folder):
    result = ep.place(
        "p.json",
        ep.clusters()["a100-4-nvlink"],
        "m-topo",
        forbid={"loss": ["GPU:0", 1, "GPU:2"], "layer_2": "GPU:0"},
        before={"layer_0/Relu": "layer_2/Relu"},
    )
    assert result.devices["loss"] in ("GPU:3", "CPU:0")
    assert result.devices["encoder/layer_2/Relu"] != "GPU:0"
    assert len(result.schedule.problem.before) == 1


def test_constraints_come_from_a_file_too(folder):
    document = {"format": "enplace-constraints/1", "pin": [["loss", "GPU:1"]]}
    (folder / "mine.json").write_text(json.dumps(document))
    result = ep.place("p.json", "c.json", "heft", constraints=folder / "mine.json")
    assert result.devices["loss"] == "GPU:1"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"cluster": "pestoo"}, "there is no cluster 'pestoo'.*did you mean 'pesto'"),
        ({"cluster": "none.json"}, "none.json: .*check the path"),
        ({"method": "hefd"}, "there is no method 'hefd'; did you mean 'heft'"),
        ({"method": "heft,expert"}, "there is no method 'heft,expert'|did you mean"),
        ({"objective": "speed"}, "there is no objective 'speed'; use one of step-time"),
        ({"objective": "latency", "method": "heft"}, "does not serve objective 'latency'"),
        ({"time_limit_s": 0}, "time_limit_s is 0; use a number of seconds above 0"),
        ({"time_limit_s": "5"}, "^time_limit_s is '5'; use a number$"),
        ({"seed": -1}, "seed is -1; use 0 to"),
        ({"seed": 1.5}, "^seed is 1.5; use a whole number$"),
        ({"seed": True}, "^seed is True; use a whole number$"),
        ({"lok": "GPU:0"}, "^there is no argument 'lok'; did you mean 'lock'"),
        ({"cluster": None}, "^cluster is None; use a cluster's name, its file"),
        ({"method": ["heft"]}, r"^method is \['heft'\]; use a string$"),
        ({"objective": 3}, "^objective is 3; use a string$"),
        ({"options": ["rounds"]}, r"^options is \['rounds'\]; use a dictionary$"),
        ({"constraints": b"c.json"}, "^constraints is b'c.json'; use a file's name$"),
        ({"progress": "yes"}, "^progress is 'yes'; use a function$"),
        ({"start": []}, r"^start is \[\]; use a result or a file's name$"),
        ({"pins": None}, "^pins is None; use a dictionary, or a list of pairs$"),
        ({"pins": {"loss": 1.5}}, r"^pins: \('loss', 1.5\) is not a pair"),
        ({"pins": [3]}, "^pins: 3 is not a pair"),
        ({"colocate": [3]}, "^colocate: 3 is not a string$"),
        ({"options": {"load": "overlap"}}, "method 'heft' has no option 'load'"),
        ({"pins": {"los": "GPU:7"}}, "pin: cluster 'pair' has no device 'GPU:7'"),
        ({"pins": {"nowhere": "GPU:1"}}, "^pin 'nowhere' matches none of the 7 ops"),
        ({"pins": ["loss"]}, "^pin 'loss': write REGEX=DEVICE"),
        ({"pins": [("loss", "GPU:0"), ("los", "GPU:1")]}, "^pin 'los=GPU:1': op 'loss' is already"),
        ({"before": [("a", "b", "c")]}, "before: .*is not a pair; write two names"),
        ({"colocate": ["(a"]}, r"^colocate '\(a': not a regex"),
        ({"start": "none.json", "method": "enplace"}, "none.json: .*check the path"),
        ({"start": "none.json"}, "method 'heft' cannot start from a plan"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(folder, arguments, complaint):
    with pytest.raises(ep.EnplaceError, match=complaint) as caught:
        ep.place("p.json", **({"cluster": "c.json", "method": "heft"} | arguments))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("use", "complaint"),
    [
        (lambda _: ep.read(3), "^path is 3; use a file's name$"),
        (lambda _: ep.write("p.enplace", "p.json"), "^profile is 'p.json'; use a profile$"),
        (lambda _: ep.to_networkx(None), "^profile is None; use a profile$"),
        (lambda _: ep.methods("speed"), "there is no objective 'speed'"),
        (lambda _: ep.compare("p.json", "c.json", ["heft", 3]), "^methods: 3 is not a string$"),
        (lambda result: result.save(None), "^path is None; use a file's name$"),
        (lambda _: ep.apply(3), "^path is 3; use a file's name$"),
        (lambda result: result.plot(3), "^ax is 3; use one Axes of matplotlib$"),
        (lambda result: result.export(3, "x"), "^format is 3; use a string$"),
        (lambda result: ep.simulate("p.json", result, scale_links="2"), "^scale_links is '2'; use"),
        (lambda result: ep.simulate("p.json", result, policy=3), "^policy is 3; use a string$"),
    ],
)
def test_an_argument_of_a_wrong_type_is_named(folder, use, complaint):
    result = ep.place("p.json", "c.json", "single")
    with pytest.raises(ep.EnplaceError, match=complaint):
        use(result)


def test_numbers_of_numpy_are_numbers(folder):
    options = {"time_limit_s": np.float32(1), "seed": np.int64(3)}
    result = ep.place("p.json", "c.json", "heft", pins=[("loss", 1)], **options)
    assert result.devices["loss"] == "GPU:1"
    assert ep.simulate("p.json", result, scale_links=np.int64(2)).fits


def test_a_plan_is_made_for_a_scaled_cluster(folder):
    faster = ep.read_cluster("c.json", "p.json").scaled(compute=2.0)
    single = ep.place("p.json", "c.json", "single")
    assert ep.place("p.json", faster, "single").step_time_us < single.step_time_us


def test_progress_reports_the_plans_that_are_found(folder):
    reports = []
    result = ep.place("p.json", "c.json", options={"rounds": 1}, progress=reports.append)
    found = [report.objective_us for report in reports if report.incumbent is not None]
    assert min(found) == result.step_time_us


def test_equal_seeds_give_equal_plans(folder):
    first, again = (ep.place("p.json", "c.json", "random", seed=3) for _ in range(2))
    assert first.devices == again.devices


def test_a_search_starts_from_a_result_or_a_file(folder):
    slow = ep.place("p.json", "c.json", "single", pins={"loss": "GPU:1"})
    slow.save("slow.json")
    for start in (slow, "slow.json", Path("slow.json")):
        better = ep.place("p.json", "c.json", start=start, options={"rounds": 1})
        assert better.step_time_us <= slow.step_time_us
    with pytest.raises(ep.EnplaceError, match="the plan is for other ops or devices"):
        ep.place("p.json", "pesto", start=slow)


def test_a_plan_file_is_read_with_its_pins_and_its_order(folder):
    made = ep.place("p.json", "c.json", "heft", pins={"loss": 1}, before={"layer_0/R": "layer_2/R"})
    made.save(folder / "plan.json")
    read = ep.read_plan(folder / "plan.json", "p.json")
    assert read.step_time_us == made.step_time_us
    assert read.devices == made.devices
    assert read.schedule.problem.pins == made.schedule.problem.pins
    assert read.schedule.problem.before == made.schedule.problem.before


def test_a_result_is_simulated_under_other_costs(folder):
    made = ep.place("p.json", "c.json", "round-robin", before={"layer_0/Relu": "layer_2/Relu"})
    assert ep.simulate("p.json", made).step_time_us == made.step_time_us
    assert ep.simulate("p.json", made, policy="fifo").plan.policy == "fifo"
    assert ep.simulate("p.json", made, scale_links=10).step_time_us < made.step_time_us
    twice = made.schedule.problem.cluster.scaled(compute=2.0)
    assert ep.simulate("p.json", made, twice).step_time_us < made.step_time_us
    with pytest.raises(ep.EnplaceError, match="for other ops or devices, those of tiny on pair"):
        ep.simulate(ep.samples()["vgg-19"], made, "pesto")


def test_a_result_with_split_ops_is_simulated_again():
    made = ep.place(ep.samples()["vgg-19"], "pesto", "os-dpos")
    assert made.plan.splits
    assert ep.simulate(ep.samples()["vgg-19"], made).step_time_us == made.step_time_us


def test_a_next_move_of_a_result_is_a_better_result(folder):
    made = ep.place("p.json", "c.json", "round-robin")
    first = ep.next_moves(made)[0]
    better = made.after(first)
    assert better.step_time_us == first.after_us < first.before_us == made.step_time_us
    better.save(folder / "plan.json")
    assert ep.read_plan(folder / "plan.json", "p.json").step_time_us == better.step_time_us


def test_a_plan_of_another_graph_is_completed_on_demand(folder):
    ep.place("p.json", "c.json", "heft").save("plan.json")
    (folder / "p.json").write_text(json.dumps(model([*OPS, "metric"])))
    with pytest.raises(ep.EnplaceError, match=r"does not place 1 op .*add complete=True"):
        ep.simulate("p.json", "plan.json")
    assert "metric" in ep.simulate("p.json", "plan.json", complete=True).devices


def test_comparing_gives_what_the_command_gives(enplace, folder):
    methods = "heft,single,m-topo"
    done = enplace("compare", "p.json", "--cluster", "c.json", "--methods", methods, "--json")
    found = ep.compare("p.json", "c.json", methods)
    assert found.failures == {}
    assert [result.step_time_us for result in found.results.values()] == [
        method["step_time_us"] for method in done.document["methods"]
    ]
    assert found.best.step_time_us == min(r.step_time_us for r in found.results.values())


def test_the_other_methods_run_if_one_fails(folder, monkeypatch):
    def fail(problem, options):
        raise ep.EnplaceError("no luck today")

    broken = registry.Placer("broken", "Broken", "", fail)
    monkeypatch.setitem(registry._registry, "broken", broken)
    found = ep.compare("p.json", "c.json", ["broken", "single"])
    assert found.failures == {"broken": "no luck today"}
    assert list(found.results) == ["single"]
    assert "broken has no plan: no luck today" in repr(found)


def test_comparing_refuses_an_unknown_method(folder):
    with pytest.raises(ep.EnplaceError, match="there is no method 'hefd'"):
        ep.compare("p.json", "c.json", ["heft", "hefd"])


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800"])
def test_what_no_file_can_be_called_is_refused_by_name(name, folder):
    for call in (ep.read, ep.apply, lambda path: ep.write(path, ep.read("p.json"))):
        with pytest.raises(EnplaceError, match="path is '"):
            call(name)


def test_apply_looks_for_the_plan_before_it_imports_a_framework(monkeypatch, folder):
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(EnplaceError, match=r"nope\.json: cannot read"):
        ep.apply("nope.json")
    assert "tensorflow" not in sys.modules


def test_a_setting_that_the_compiler_does_not_know_is_refused(monkeypatch):
    monkeypatch.delitem(sys.modules, "enplace.api")
    monkeypatch.setenv("NUMBA_NUM_THREADS", "-3")
    with pytest.raises(EnplaceError, match=r"^NUMBA_NUM_THREADS=-3: .*; unset it$"):
        ep.place  # noqa: B018


def test_a_missing_argument_is_an_error_of_python_that_names_the_function():
    with pytest.raises(TypeError, match=r"^read_cluster\(\) missing 1 required .* 'profile'$"):
        ep.read_cluster("c.json")  # type: ignore[call-arg]
