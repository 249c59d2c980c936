"""``place --rules`` and ``--family``: strategies that a user writes, and mistakes in them."""

import json

import pytest
from tests.core.cli.conftest import machine, model

from enplace.readers import read_plan_alone

PLACE = ("place", "p.json", "--cluster", "c.json", "-o", "plan.json")


def test_the_first_matching_rule_decides(enplace, folder):
    (folder / "rules.txt").write_text(
        "# the encoder's middle\n\nlayer_1/ -> GPU:1\nencoder/.* -> 0\nloss->gpu:1\n"
    )
    assert enplace(*PLACE, "--rules", "rules.txt").status == 0
    lone = read_plan_alone("plan.json")
    problem, plan = lone.problem, lone.plan
    device = dict(zip(problem.profile.op_names, plan.device.tolist(), strict=True))
    assert device.pop("loss") == 1
    assert {op: d for op, d in device.items() if "layer_1" in op} == {
        "encoder/layer_1/MatMul": 1,
        "encoder/layer_1/Relu": 1,
    }
    assert sum(device.values()) == 2
    assert json.loads((folder / "plan.json").read_text())["method"] == "expert"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("encoder GPU:1", "rules.txt: line 1: write REGEX -> DEVICE"),
        ("\nencoder -> GPU:7", "rules.txt: line 2: cluster 'pair' has no device 'GPU:7'"),
        ("decoder -> GPU:1", "rules.txt: line 1 'decoder' matches none of the 7 ops"),
        ("(a -> GPU:1", "rules.txt: line 1 '(a': not a regex"),
        ("# nothing", "rules.txt: holds no rule"),
    ],
)
def test_a_bad_rules_file_is_refused_in_one_line(enplace, folder, text, complaint):
    (folder / "rules.txt").write_text(text)
    done = enplace(*PLACE, "--rules", "rules.txt")
    assert done.status == 2
    assert complaint in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize("option", ["--rules", "--cluster", "--start"])
def test_a_folder_instead_of_a_file_is_refused_in_one_line(enplace, folder, option):
    (folder / "mine.json").mkdir()
    done = enplace(*PLACE, option, "mine.json")
    assert done.status == 2
    assert done.err == "enplace: mine.json: cannot read: Is a directory; check the path\n"


def write_inputs_with_a_cpu(folder):
    """Give the last layer no CPU time and the loss no GPU time; colocate the ops of ``layer_0``."""
    profile, cluster = model(), machine()
    for op in profile["ops"]:
        if "layer_2" in op["name"]:
            del op["time_us"]["cpu"]
        if op["name"] == "loss":
            del op["time_us"]["gpu"]
        if "layer_0" in op["name"]:
            op["colocation"] = "first"
    cluster["devices"] += [{"name": "CPU:0", "kind": "cpu", "capacity_bytes": 1 << 30, "lanes": 4}]
    for ends in ("gpu-cpu", "cpu-gpu"):
        cluster["default_links"][ends] = cluster["default_links"]["gpu-gpu"]
    (folder / "p.json").write_text(json.dumps(profile))
    (folder / "c.json").write_text(json.dumps(cluster))


@pytest.mark.parametrize(
    ("text", "options", "complaint"),
    [
        (
            "\nencoder -> CPU:0",
            (),
            "line 2: op 'encoder/layer_2/MatMul' cannot run on CPU:0; send it elsewhere",
        ),
        ("los -> GPU:1", (), "line 1: op 'loss' cannot run on GPU:1"),
        (
            "layer_1/ -> GPU:1",
            ("--forbid", "encoder/layer_1/Relu=GPU:1"),
            "line 1: op 'encoder/layer_1/Relu' is kept off GPU:1: it is forbidden there",
        ),
        (
            "layer_0/M -> GPU:1",
            ("--forbid", "encoder/layer_0/Relu=GPU:1"),
            "op 'encoder/layer_0/MatMul' is colocated with op 'encoder/layer_0/Relu', which is "
            "kept off GPU:1: it is forbidden there",
        ),
    ],
)
def test_a_rule_that_no_plan_can_follow_is_refused(enplace, folder, text, options, complaint):
    write_inputs_with_a_cpu(folder)
    (folder / "rules.txt").write_text(text)
    done = enplace(*PLACE, "--rules", "rules.txt", *options)
    assert done.status == 2
    assert complaint in done.err
    assert len(done.err.splitlines()) == 1
    assert not (folder / "plan.json").exists()


def test_earlier_rules_and_pins_exempt_ops_from_later_rules(enplace, folder):
    write_inputs_with_a_cpu(folder)
    (folder / "rules.txt").write_text("layer_2 -> GPU:1\nencoder -> CPU:0\n")
    pin = ("--pin", "layer_1/=GPU:1")
    assert enplace(*PLACE, "--rules", "rules.txt", *pin).status == 0
    lone = read_plan_alone("plan.json")
    problem, plan = lone.problem, lone.plan
    device = dict(zip(problem.profile.op_names, plan.device.tolist(), strict=True))
    assert {name[8:15]: d for name, d in device.items() if name != "loss"} == {
        "layer_0": 2,
        "layer_1": 1,
        "layer_2": 1,
    }


def test_a_binary_or_missing_rules_file_is_refused(enplace, folder):
    (folder / "rules.txt").write_bytes(b"\xff\xfe\x00")
    assert "rules.txt: not a text" in enplace(*PLACE, "--rules", "rules.txt").err
    assert enplace(*PLACE, "--rules", "none.txt").status == 2


def test_the_family_option_belongs_to_the_expert_only(enplace, folder):
    assert enplace(*PLACE, "--family", "layers").status == 0
    assert json.loads((folder / "plan.json").read_text())["facts"]["family"] == "layers"
    done = enplace(*PLACE, "--family", "layers", "--method", "heft")
    assert done.status == 2
    assert "method 'heft' has no option 'family'" in done.err
