"""The plans that others are compared with."""

from dataclasses import replace

import numpy as np
import pytest

from enplace.cli.solving import find_others
from enplace.frameworks.compared import FREE, OBEYING, PREDICTED, find_references, result_for
from enplace.frameworks.registry import exporters
from enplace.machine import simulate
from enplace.placers import place
from enplace.placers.data_parallel import ONE_SAMPLE, mirrored
from enplace.placers.references import ALONE, EXPERT, alone_schedule, reference_schedule, verdict
from enplace.summary import describe
from enplace.text import ms
from enplace.values.constraints import Constraints
from enplace.values.measurement import Measurement
from enplace.values.problem import STEP_TIME, Problem
from enplace.values.result import Result
from enplace.writers.report import report_html
from problems import cluster_of, profile_of

PROFILE = profile_of({"a": 10.0, "b": 10.0}, [("a", "b", 8)])


def test_a_framework_alone_uses_one_gpu_whatever_a_person_demands():
    pinned = Problem(PROFILE, cluster_of(2), Constraints(pins={1: 1}))
    assert alone_schedule(pinned).plan.device.tolist() == [0, 0]


def test_an_expert_who_obeys_the_constraints_is_told_from_one_who_is_free():
    free = find_references(Problem(PROFILE, cluster_of(2)), ALONE)
    assert list(free) == [FREE, ALONE]
    kept = Problem(PROFILE, cluster_of(2), Constraints(pins={0: 0}))
    assert list(find_references(kept, ALONE)) == [FREE, ALONE]
    joined = Problem(PROFILE, cluster_of(2), Constraints(pins={0: 1, 1: 1}))
    held = find_references(joined, ALONE)
    assert [held[each].transfer_bytes.sum() for each in (FREE, OBEYING)] == [8, 0]


def test_a_simulated_plan_is_compared_with_an_expert_who_is_free_as_in_the_window():
    joined = Problem(PROFILE, cluster_of(2), Constraints(pins={0: 1, 1: 1}))
    made = place(joined, "single").schedule
    assert find_others(joined, STEP_TIME, made).expert.transfer_bytes.sum() == 8


def test_an_experts_plan_that_was_edited_is_compared_with_the_one_it_was():
    problem = Problem(PROFILE, cluster_of(2))
    made = place(problem, EXPERT).schedule
    assert find_others(problem, STEP_TIME, made).expert is made
    edited = simulate(problem, replace(made.plan, device=np.array([0, 0])))
    assert find_others(problem, STEP_TIME, edited).expert.makespan_us == made.makespan_us

    def told(schedule):
        return describe(Result(schedule), find_others(problem, STEP_TIME, schedule))

    assert "against the expert" not in told(made)
    assert f"against the expert's {ms(made.makespan_us)}" in told(edited)


def test_a_report_has_the_row_of_data_parallelism_or_says_why_not():
    profile = replace(PROFILE, op_kinds=("matmul", "matmul"))
    problem = Problem(profile, cluster_of(2))
    schedule = place(problem, "single").schedule
    report = exporters()["html"]
    found = result_for(report, schedule, problem)
    shared = mirrored(problem)
    assert found.references[shared.name].value_us == shared.step_time_us
    assert f"<td>{shared.name}</td>" in report_html(found)
    single = Problem(replace(profile, measured=Measurement(batch_shapes=((1, 4),))), cluster_of(2))
    assert ONE_SAMPLE in report_html(result_for(report, schedule, single))


def test_a_report_tells_what_the_framework_took_by_itself_from_a_prediction():
    measured = Measurement(framework="tensorflow", stock_step_time_us=16.0, cluster=cluster_of(2))
    problem = Problem(replace(PROFILE, measured=measured), cluster_of(2))
    schedule, report = place(problem, "single").schedule, exporters()["html"]
    found = result_for(report, schedule, problem)
    stock = found.references["TensorFlow by itself, measured"]
    assert found.references[PREDICTED].value_us == 20.0
    assert (stock.value_us, "TensorFlow alone" in report_html(found)) == (16.0, False)
    assert "<td>0.016 ms</td><td>+25.0 %</td><td>0 B</td><td></td>" in report_html(found)
    other = result_for(report, schedule, replace(problem, cluster=cluster_of(3)))
    assert stock.name not in other.references


def test_a_cancelled_reference_is_none():
    problem = Problem(PROFILE, cluster_of(2))
    assert reference_schedule(problem, EXPERT, lambda: True) is None


@pytest.mark.parametrize("form", ["csv", "python", "trace"])
def test_a_file_that_shows_no_bound_and_no_other_plan_waits_for_none(form, monkeypatch):
    def fail(*_):
        raise AssertionError("nobody asked for it")

    monkeypatch.setattr("enplace.frameworks.compared.with_bound", fail)
    monkeypatch.setattr("enplace.frameworks.compared.find_references", fail)
    problem = Problem(profile_of({"a": 10.0}), cluster_of(1))
    schedule = place(problem, "single").schedule
    assert result_for(exporters()[form], schedule, problem).schedule is schedule


def test_a_plan_is_compared_with_the_fastest_way_to_use_one_device():
    nan = float("nan")
    assert verdict(90.0, nan, nan) == ""
    assert verdict(90.0, nan, 100.0) == "One device takes 0.10 ms, the plan −10.0 %."
    slower = "One device is faster: nothing to split. It takes 0.080 ms, the plan +12.5 %."
    assert verdict(90.0, 80.0, 100.0) == slower
    assert verdict(90.0, 90.0) == "One device is as fast: nothing to split. Both take 0.090 ms."


def test_what_shows_as_no_change_is_a_tie():
    """Nothing is faster by 0.0 %, whichever side the digits that nobody sees are on."""
    for near in (89.97, 90.0, 90.03):
        tie = f"One device is as fast: nothing to split. Both take {ms(near)}."
        assert verdict(90.0, near) == tie
        assert verdict(90.0, near, replicas_us=90.01).startswith(tie)
        found = verdict(90.0, 120.0, replicas_us=near)
        assert found.endswith("the plan −25.0 %. Data parallelism is as fast as the plan.")
        slow = verdict(120.0, 90.0, replicas_us=near)
        assert slow.startswith("One device is faster: nothing to split.")


def test_a_plan_is_compared_with_data_parallelism():
    nan = float("nan")
    faster = "Data parallelism is faster: it takes 0.060 ms, the plan +50.0 %."
    assert verdict(90.0, nan, replicas_us=60.0) == faster
    assert verdict(90.0, 120.0, replicas_us=60.0) == f"{faster} One device takes 0.12 ms."
    inside = verdict(90.0, 120.0, replicas_us=60.0, inside=True)
    assert inside.startswith("Data parallelism with a plan inside is faster: it takes 0.060 ms")
    best = verdict(90.0, 120.0, replicas_us=100.0)
    assert best == "One device takes 0.12 ms, the plan −25.0 %. Data parallelism takes 0.10 ms."
    assert verdict(90.0, 50.0, replicas_us=60.0).startswith("One device is faster")
    guess = verdict(90.0, 120.0, replicas_us=60.0, about="Few types say it.", is_guess=True)
    assert guess.startswith("Data parallelism may be faster: it would take 0.060 ms")
    assert "the plan +50.0 %. Few types say it. One device" in guess
