"""``place --rules`` and ``--family``: a person's own strategy, and slips of the pen in it."""

import json

import pytest

from enplace.files import read_plan_alone

PLACE = ("place", "p.json", "--cluster", "c.json", "-o", "plan.json")


def test_the_first_rule_that_matches_decides(enplace, folder):
    (folder / "rules.txt").write_text(
        "# the encoder's middle\n\nlayer_1/ -> GPU:1\nencoder/.* -> 0\nloss->gpu:1\n"
    )
    assert enplace(*PLACE, "--rules", "rules.txt").status == 0
    problem, plan, _ = read_plan_alone("plan.json")
    device = dict(zip(problem.profile.op_names, plan.device.tolist(), strict=True))
    assert device.pop("loss") == 1
    assert {op: d for op, d in device.items() if "layer_1" in op} == {
        "encoder/layer_1/MatMul": 1,
        "encoder/layer_1/Relu": 1,
    }
    assert sum(device.values()) == 2
    assert json.loads((folder / "plan.json").read_text())["method"] == "expert"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("encoder GPU:1", "rules.txt: line 1: write REGEX -> DEVICE"),
        ("\nencoder -> GPU:7", "rules.txt: line 2: cluster 'pair' has no device 'GPU:7'"),
        ("decoder -> GPU:1", "rules.txt: line 1 'decoder' matches none of the 7 ops"),
        ("(a -> GPU:1", "rules.txt: line 1 '(a': not a regex"),
        ("# nothing", "rules.txt: holds no rule"),
    ],
)
def test_a_bad_file_is_one_clear_line(enplace, folder, text, said):
    (folder / "rules.txt").write_text(text)
    done = enplace(*PLACE, "--rules", "rules.txt")
    assert done.status == 2
    assert said in done.err
    assert len(done.err.splitlines()) == 1


def test_a_file_that_is_no_text_or_not_there(enplace, folder):
    (folder / "rules.txt").write_bytes(b"\xff\xfe\x00")
    assert "rules.txt: not a text" in enplace(*PLACE, "--rules", "rules.txt").err
    assert enplace(*PLACE, "--rules", "none.txt").status == 2


def test_the_family_can_be_named_and_is_for_the_expert_alone(enplace, folder):
    assert enplace(*PLACE, "--family", "layers").status == 0
    assert json.loads((folder / "plan.json").read_text())["facts"]["family"] == "layers"
    done = enplace(*PLACE, "--family", "layers", "--method", "heft")
    assert done.status == 2
    assert "are for method 'expert', not 'heft'" in done.err
