"""What a report says of applying a plan, and of a pipeline's devices."""

from dataclasses import replace

import numpy as np
import pytest

from enplace.frameworks.alternatives import find_alternatives
from enplace.frameworks.compared import result_for
from enplace.frameworks.how_to import how_to_apply
from enplace.frameworks.registry import exporters
from enplace.machine import simulate
from enplace.machine.check_claims import check_claims
from enplace.summary import numbers
from enplace.text import ms, size
from enplace.values.load_rule import LoadRule
from enplace.values.plan import Plan
from enplace.values.problem import THROUGHPUT, Problem
from problems import cluster_of
from torch_layers import layered

RULE = LoadRule(microbatches=4)


def halves(source=None, **facts):
    """Return the schedule of a pipeline of two stages, with the parts of layers on GPUs."""
    profile = layered()
    profile = replace(profile, measured=replace(profile.measured, source=source or {}))
    problem = Problem(profile, cluster_of(2))
    early = ("emb", "layers_0", "layers_1", "layers_2", "batch")
    device = np.array([0 if any(part in name for part in early) else 1
                       for name in profile.op_names])  # fmt: skip
    plan = Plan(device, np.arange(profile.n_ops), "by-hand", objective=THROUGHPUT, load_rule=RULE)
    plan = replace(check_claims(problem, plan), **facts)
    return simulate(problem, plan)


def lines(schedule):
    return "\n".join(code for _, code in how_to_apply(schedule))


def test_a_pipeline_of_pytorch_is_applied_started_and_checked_by_lines_to_copy():
    source = {"path": "/x/my train.py", "kind": "script", "framework_name": "torch"}
    said = lines(halves({**source, "arguments": ["--n", "{batch}"], "batch_size": 3}))
    assert 'enplace.apply("plan.json", pipeline="1f1b", microbatches=4)' in said
    assert "torchrun --nproc-per-node 2 'my train.py' --n 3" in said
    wished = "--arg=--n --arg=3 --pipeline 1f1b --microbatches 4"
    assert f"enplace run 'my train.py' plan.json --profile P.enplace {wished}" in said
    assert "enplace simulate P.enplace plan.json --pipeline 1f1b --microbatches 4" in said


def test_a_plan_that_no_pipeline_runs_says_why_instead():
    tensorflow = {"path": "train.py", "kind": "script", "framework_name": "tensorflow"}
    said = how_to_apply(halves(tensorflow, recompute=(0,)))
    assert said[0][0].startswith("It does not run as a pipeline: the plan recomputes activations")
    assert len(said) == 2  # and how to predict it


def test_a_step_that_divides_modules_has_no_lines_for_a_script():
    schedule = halves(objective="step-time", load_rule=None, value_us=None)
    assert 'enplace.apply("plan.json")' in lines(schedule)
    problem, device = schedule.problem, schedule.plan.device.copy()
    device[problem.profile.index["layers_0/mm"]] = 1
    divided = simulate(problem, replace(schedule.plan, device=device))
    assert "enplace.apply" not in lines(divided)
    assert "--grain module" in how_to_apply(divided)[0][0]


def test_a_model_that_is_not_run_is_exported():
    said = lines(halves({"path": "a.pt2", "kind": "pt2", "framework_name": "torch"}))
    assert "--format csv" in said
    assert "--format device-map" in said
    assert "enplace.apply" not in said


def test_a_report_has_the_figures_of_the_pipeline_and_what_people_would_pick():
    schedule = halves()
    report = exporters()["html"]
    result = result_for(report, schedule, schedule.problem)
    page, pipeline = report.text(result), numbers(result, None)["pipeline"]
    for load_us, n_bytes in zip(pipeline["loads_us"], pipeline["peak_bytes"], strict=True):
        assert f"<td>{ms(load_us)}</td>" in page
        assert f"<td>{size(n_bytes)} of" in page
    assert max(pipeline["loads_us"]) == pytest.approx(schedule.value_us)
    for each in find_alternatives(schedule.problem, THROUGHPUT, [], RULE):
        assert result.references[each.name].value_us == each.value_us
        assert f"<td>{each.time}</td>" in page
    assert "{&#x27;" not in page
    assert "proven</td><td>False" not in page
