"""Enplace with splits: when it splits, and what it reports."""

from tests.core.placers.problems import gpus
from tests.core.placers.test_os_dpos import one_layer

from enplace.machine import simulate
from enplace.placers import PlaceOptions, Stop, place
from enplace.readers import read_profile
from enplace.readers.clusters import presets
from enplace.readers.samples import samples
from enplace.values.plan import check_plan
from enplace.values.problem import Problem, split_problem


def test_splits_beat_enplace_without_splits_and_os_dpos():
    profile = read_profile(next(sample.path for sample in samples() if sample.name == "vgg-19"))
    problem = Problem(profile, presets()["celeritas"])
    one_round = PlaceOptions(values={"rounds": 1})
    whole, split = (
        place(problem, method, options=one_round).schedule.makespan_us
        for method in ("enplace", "enplace-split")
    )
    assert split < 0.8 * min(whole, place(problem, "os-dpos").schedule.makespan_us)


def test_ops_that_gain_nothing_stay_whole():
    problem = Problem(one_layer(), gpus(4, b0=1.0, b1=0.1))
    plan = place(problem, "enplace-split").plan
    assert plan.splits == ()
    assert simulate(problem, plan).makespan_us <= (
        simulate(problem, place(problem, "enplace").plan).makespan_us
    )


def test_every_reported_plan_is_valid_for_the_model():
    problem = Problem(one_layer(), gpus(4, b0=1.0, b1=1e-5))
    reports = []
    plan = place(problem, "enplace-split", options=PlaceOptions(progress=reports.append)).plan
    plans = [progress.incumbent for progress in reports if progress.incumbent]
    assert plans[0].splits == ()
    assert plans[-1].splits == plan.splits != ()
    for each in plans:
        assert each.method == "enplace-split"
        check_plan(split_problem(problem, each.splits), each)
    steps_us = [simulate(problem, each).makespan_us for each in plans]
    assert steps_us == sorted(steps_us, reverse=True)


def test_without_time_the_plan_has_no_splits():
    problem = Problem(one_layer(), gpus(4, b0=1.0, b1=1e-5))
    assert place(problem, "enplace-split", options=PlaceOptions(stop=Stop(1e-9))).plan.splits == ()


def test_enplace_suggests_splits_if_they_would_help():
    gains = Problem(one_layer(), gpus(4, b0=1.0, b1=1e-5))
    note = place(gains, "enplace").plan.note
    assert "With ops split by samples, even a list schedule was shorter" in note
    assert "try enplace-split" in note
    assert place(Problem(one_layer(), gpus(4, b0=1.0, b1=0.1)), "enplace").plan.note == ""


def test_enplace_suggests_no_splits_for_a_graph_that_is_split():
    problem = Problem(one_layer(), gpus(2, b0=1.0, b1=1e-5))
    start = place(problem, "os-dpos").plan
    assert start.splits
    plan = place(problem, "enplace", options=PlaceOptions(start=start)).plan
    assert plan.splits == start.splits
    assert plan.note == ""
