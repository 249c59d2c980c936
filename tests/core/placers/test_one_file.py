"""A new placer with its own option takes one new file."""

import json
import sys

import pytest
from tests.core.placers import test_conformance as conformance
from tests.core.placers.problems import gpus, line

import enplace.placers
from enplace.cli import run
from enplace.errors import EnplaceError
from enplace.placers import PlaceOptions, place
from enplace.placing import registry
from enplace.values.problem import Problem

MODULE = """
import numpy as np

from enplace.option import Option, WHOLE
from enplace.placing.registry import placer
from enplace.placing.settle import natural_position, settle
from enplace.values.plan import Plan

SIDE = Option("test-side", ("left", "right"), "left", "Which of the GPUs takes everything.")
SHIFT = Option("test-shift", WHOLE, 0, "How many GPUs further.")


@placer("one-side", title="One side", options=(SIDE, SHIFT))
def one_side(problem, options):
    gpus = problem.cluster.gpus
    at = (0 if options.choice(SIDE) == "left" else -1) + options.whole(SHIFT)
    device = np.full(problem.profile.n_ops, gpus[at % len(gpus)])
    return Plan(settle(problem, device), natural_position(problem), "one-side")
"""


@pytest.fixture
def one_side(tmp_path, monkeypatch):
    (tmp_path / "one_side.py").write_text(MODULE)
    folders = [*enplace.placers.__path__, str(tmp_path)]
    monkeypatch.setattr(enplace.placers, "__path__", folders)
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    enplace.placers.load_modules()
    yield "one-side"
    del sys.modules["enplace.placers.one_side"]


@pytest.fixture
def problem():
    return Problem(line([1.0, 1.0], [(0, 1, 4)]), gpus(3))


def test_the_new_options_are_listed(one_side, capsys):
    assert run(["methods", "--json"]) == 0
    methods = json.loads(capsys.readouterr().out)["methods"]
    (found,) = [each["options"] for each in methods if each["name"] == one_side]
    assert found == [
        {
            "name": "test-side",
            "values": ["left", "right"],
            "default": "left",
            "help": "Which of the GPUs takes everything.",
        },
        {
            "name": "test-shift",
            "values": "whole number",
            "default": 0,
            "help": "How many GPUs further.",
        },
    ]


def test_the_command_line_passes_the_new_options_on(one_side, tmp_path, capsys):
    ops = [{"name": "a", "type": "MatMul", "time_us": {"gpu": 1.0}}]
    file, plan = tmp_path / "tiny.json", tmp_path / "plan.json"
    file.write_text(
        json.dumps({"format": "enplace-profile/1", "name": "tiny", "ops": ops, "edges": []})
    )
    words = ["place", str(file), "--cluster", "pesto", "--method", one_side, "-o", str(plan)]
    assert run([*words, "--option", "test-side=right"]) == 0
    assert json.loads(plan.read_text())["ops"][0]["device"] == "GPU:1"
    assert run([*words, "--test-side", "right", "--test-shift", "1"]) == 0
    assert json.loads(plan.read_text())["ops"][0]["device"] == "GPU:0"
    capsys.readouterr()
    for wrong, why in (
        ("test-side=middle", "option 'test-side' cannot be 'middle'; use left, right"),
        ("test-shift=far", "option 'test-shift' cannot be 'far'; use a whole number"),
        ("size=3", "method 'one-side' has no option 'size'; its options: test-side, test-shift"),
        ("test-side", "--option 'test-side': write NAME=VALUE"),
    ):
        assert run([*words, "--option", wrong]) == 2
        assert why in capsys.readouterr().err


def test_the_library_checks_the_new_options(one_side, problem):
    plan = place(problem, one_side, options=PlaceOptions(values={"test-side": "right"})).plan
    assert set(plan.device.tolist()) == {2}
    with pytest.raises(EnplaceError, match="its options: test-side, test-shift"):
        place(problem, one_side, options=PlaceOptions(values={"load": "sum"}))


EACH = [
    check
    for name, check in vars(conformance).items()
    if name.startswith("test_")
    and any(mark.args[1:2] == (conformance.installed,) for mark in getattr(check, "pytestmark", ()))
]


@pytest.mark.parametrize("check", EACH, ids=lambda check: check.__name__)
def test_the_new_placer_passes_the_conformance_suite(one_side, check):
    check(one_side)


def test_the_conformance_suite_is_found():
    assert len(EACH) >= 7
