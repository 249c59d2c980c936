"""``--constraints`` takes the file that teammates exchange, in ``place`` and in ``compare``."""

import json
from pathlib import Path

import pytest
from tests.core.cli.conftest import MIB, model

FREE = model(edges=[{"src": "encoder/layer_0/MatMul", "output": 0, "dst": "loss", "bytes": MIB}])
PLACE = ("place", "p.json", "--cluster", "c.json", "--method", "m-etf", "-o", "plan.json")
FIRST, THEN = "encoder/layer_2/Relu", "encoder/layer_1/Relu"


@pytest.fixture(autouse=True)
def free(folder):
    """Write a model whose ops are mostly independent."""
    (folder / "p.json").write_text(json.dumps(FREE))


def write(**rows):
    Path("team.json").write_text(json.dumps({"format": "enplace-constraints/1", **rows}))


def planned():
    plan = json.loads(Path("plan.json").read_text())
    return {op["op"]: op["device"] for op in plan["ops"]}, plan.get("before", [])


def test_a_plan_obeys_the_file(enplace):
    write(
        pin=[["loss", "GPU:1"]],
        forbid=[[FIRST, "GPU:0"]],
        colocate=[["loss", THEN]],
        before=[[FIRST, THEN]],
    )
    assert enplace(*PLACE, "--constraints", "team.json").status == 0
    device, before = planned()
    assert {device["loss"], device[FIRST], device[THEN]} == {"GPU:1"}
    assert before == [[FIRST, THEN]]


def test_nothing_is_added_to_a_locked_device(enplace):
    words = ("--pin", "loss=GPU:1", "--lock")
    assert enplace(*PLACE, *words, "GPU:1").status == 0
    device, _ = planned()
    assert [op for op, where in device.items() if where == "GPU:1"] == ["loss"]
    write(pin=[["loss", "GPU:1"]], lock=[["GPU:1"]])
    assert enplace(*PLACE, "--constraints", "team.json").status == 0
    assert planned()[0] == device
    done = enplace(*PLACE, *words, "GPU:7")
    assert done.status == 2
    assert "--lock" in done.err


def test_options_are_added_to_the_file_and_their_pins_go_first(enplace):
    write(pin=[["loss", "GPU:1"], [FIRST, "GPU:1"]])
    words = ("--constraints", "team.json", "--pin", "loss=GPU:0", "--before", f"{FIRST}={THEN}")
    assert enplace(*PLACE, *words).status == 0
    device, before = planned()
    assert (device["loss"], device[FIRST], before) == ("GPU:0", "GPU:1", [[FIRST, THEN]])


def test_compare_obeys_the_file(enplace):
    write(pin=[[op["name"], "GPU:1"] for op in FREE["ops"]])
    words = ("compare", "p.json", "--cluster", "c.json", "--methods", "m-etf", "--json")
    free = enplace(*words).document
    pinned = enplace(*words, "--constraints", "team.json").document
    step_us = [found["methods"][0]["step_time_us"] for found in (free, pinned)]
    assert step_us[0] < step_us[1] == 700


def test_unknown_names_are_a_note(enplace):
    write(pin=[["gone\nold", "GPU:1"], ["loss", "GPU:7"], ["loss", "GPU:1"]])
    done = enplace(*PLACE, "--constraints", "team.json")
    assert done.status == 0
    assert "team.json: 2 names not in this profile or cluster (gone old, GPU:7)" in done.err
    assert planned()[0]["loss"] == "GPU:1"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({"pin": [["loss", "GPU:0"], ["loss", "GPU:1"]]}, "op 'loss' is pinned to GPU:0 and"),
        ({"before": [["loss", "encoder/layer_0/MatMul"]]}, "ops would wait for each other"),
        ({"pins": []}, "did you mean 'pin'?"),
    ],
)
def test_a_file_that_cannot_be_obeyed_is_refused_in_one_line(enplace, rows, words):
    write(**rows)
    done = enplace(*PLACE, "--constraints", "team.json")
    assert done.status == 2
    assert "team.json" in done.err
    assert words in done.err
    assert done.err.count("\n") == 1
    assert not Path("plan.json").exists()


def test_a_plan_never_replaces_the_file_it_obeys(enplace):
    write(pin=[["loss", "GPU:1"]])
    words = (*PLACE[:-1], "team.json", "--constraints", "team.json")
    done = enplace(*words)
    assert done.status == 2
    assert "is also an input" in done.err
