"""Stages by the names of modules."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from enplace.frameworks.torch.exports import write_split_spec, write_torchtitan
from enplace.frameworks.torch.framework import FRAMEWORK
from enplace.machine import simulate
from enplace.values.problem import Problem
from enplace.values.result import Result
from problems import cluster_of, plan_of, profile_of

MODULES = ("wte", "h.0", "h.1", "h.2", "ln_f", "head")


def result_of(on, tied=False, modules=MODULES, **config):
    """Place a chain of modules that have one op each."""
    scopes = [path.replace(".", "_") for path in modules]
    names = [f"{scope}/mm" for scope in scopes]
    profile = profile_of(dict.fromkeys(names, 1.0), [(a, b, 4) for a, b in pairwise(names)])
    parameters = {f"{path}.weight": name for path, name in zip(modules, names, strict=True)}
    if tied:
        parameters["head.weight"] = parameters["wte.weight"]
    measured = replace(profile.measured, config={"parameters": parameters} | config)
    problem = Problem(replace(profile, measured=measured), cluster_of(3))
    plan = plan_of(problem, dict(zip(names, map(int, on), strict=True)))
    return Result(simulate(problem, plan))


class SplitPoint:
    BEGINNING, END = "before", "after"


def points(result):
    space = {"SplitPoint": SplitPoint}
    text = write_split_spec(result)
    exec(text.replace("from torch.distributed.pipelining import SplitPoint", ""), space)
    return space["SPLIT_SPEC"]


def test_a_model_is_cut_where_stages_begin():
    assert points(result_of("001222")) == {"h.1": "before", "h.2": "before"}
    assert points(result_of("011122")) == {"h.0": "before", "h.2": "after"}


def test_torchtitan_gets_the_modules_of_each_part():
    assert json.loads(write_torchtitan(result_of("001222"))) == [
        ["tok_embeddings", "layers.0"],
        ["layers.1"],
        ["layers.2", "norm", "output"],
    ]


@pytest.mark.parametrize("form", ["split-spec", "torchtitan"])
def test_copies_of_a_tied_weight_would_drift_apart(form):
    (own,) = (each for each in FRAMEWORK.exporters if each.name == form)
    said = own.why_not(result_of("000111", tied=True))
    assert said.startswith("'wte', 'head' share a parameter, and their copies in two stages")
    # Both ends on one GPU help no pipeline whose first stage is another.
    assert own.why_not(result_of("1000111", True, ("wte", "wpe", *MODULES[1:]))) == said
    assert own.why_not(result_of("000111")) == ""
    assert "not of one PyTorch model" in own.why_not(result_of("000111", parameters={}))
