"""``--before`` orders ops, and plans carry the order."""

import json
from pathlib import Path

import pytest
from tests.core.cli.conftest import MIB, model

FREE = model(edges=[{"src": "encoder/layer_0/MatMul", "output": 0, "dst": "loss", "bytes": MIB}])
PLACE = ("place", "p.json", "--cluster", "c.json")


@pytest.fixture(autouse=True)
def free(folder):
    """Write a model whose ops are mostly independent."""
    (folder / "p.json").write_text(json.dumps(FREE))


def starts(enplace, plan):
    """Return the start and the finish of each op, as simulated."""
    assert enplace("simulate", "p.json", plan, "--schedule", "s.json").status == 0
    ops = json.loads(Path("s.json").read_text())["ops"]
    return {op["op"]: (op["start_us"], op["finish_us"]) for op in ops}


@pytest.mark.parametrize("method", ["enplace", "heft", "m-etf", "single"])
def test_every_match_of_the_first_runs_before_every_match_of_the_second(enplace, method):
    words = (*PLACE, "--method", method, "-o", "plan.json")
    assert enplace(*words, "--before", "layer_2=layer_1").status == 0
    times = starts(enplace, "plan.json")
    last = max(finish for op, (_, finish) in times.items() if "layer_2" in op)
    first = min(start for op, (start, _) in times.items() if "layer_1" in op)
    assert last <= first


def test_the_plan_carries_the_order_and_is_still_one_for_the_same_graph(enplace):
    enplace(*PLACE, "--method", "single", "-o", "a.json")
    enplace(*PLACE, "--method", "single", "--before", "loss=layer_2/Relu", "-o", "b.json")
    one, other = (json.loads(Path(name).read_text()) for name in ("a.json", "b.json"))
    assert other["before"] == [["loss", "encoder/layer_2/Relu"]]
    assert "before" not in one
    assert one["profile"] == other["profile"]
    done = enplace("simulate", "p.json", "b.json")
    assert "changed" not in done.err


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("loss=layer_0/MatMul", "ops would wait for each other"),
        ("loss=loss", "ops would wait for each other: loss"),
        ("loss", "write REGEX=REGEX"),
        ("=loss", "write REGEX=REGEX"),
        ("nothing=loss", "matches none of the 7 ops"),
    ],
)
def test_an_order_that_cannot_be_is_refused_in_one_line(enplace, before, words):
    done = enplace(*PLACE, "--method", "single", "--before", before)
    assert done.status == 2
    assert words in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("x", "before: must be a list"),
        ([["loss"]], "before[0]: must be two names"),
        ([["loss", 5]], "before[0]: must be a list of names"),
        ([["loss", "encoder/layer_0/MatMul"]], "ops would wait for each other"),
    ],
)
def test_a_damaged_order_in_a_plan_is_refused_in_one_line(enplace, value, words):
    enplace(*PLACE, "--method", "single", "-o", "plan.json")
    plan = json.loads(Path("plan.json").read_text()) | {"before": value}
    Path("plan.json").write_text(json.dumps(plan))
    done = enplace("simulate", "p.json", "plan.json")
    assert done.status == 2
    assert words in done.err
    assert "plan.json" in done.err


def test_an_order_of_ops_that_no_longer_exist_is_left_out(enplace):
    enplace(*PLACE, "--method", "single", "-o", "plan.json")
    plan = json.loads(Path("plan.json").read_text()) | {"before": [["gone", "loss"]]}
    Path("plan.json").write_text(json.dumps(plan))
    assert enplace("simulate", "p.json", "plan.json").status == 0
