"""Devices that are alike are renamed to agree with another plan, and nothing else changes."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from enplace.machine import simulate
from enplace.placing.relabel import relabel_like
from enplace.values.problem import Problem
from problems import cluster_of, plan_of, planned_problems, profile_of
from properties import examples

TIMES = {"a": 10, "b": 20, "c": 30}
EDGES = [("a", "b", 5), ("b", "c", 5)]


def test_colours_that_were_exchanged_are_exchanged_back():
    problem = Problem(profile_of(TIMES, EDGES), cluster_of(3))
    one, other = (
        plan_of(problem, {"a": 0, "b": 1, "c": 2}),
        plan_of(problem, {"a": 2, "b": 0, "c": 1}),
    )
    before = simulate(problem, other)
    found = relabel_like(before, one)
    assert found.plan.device.tolist() == one.device.tolist()
    assert found.makespan_us == before.makespan_us


def test_a_faster_device_and_a_pinned_one_keep_their_names():
    profile = profile_of(TIMES, EDGES)
    faster = Problem(profile, cluster_of(2, speeds=[1.0, 2.0]))
    pinned = Problem(profile, cluster_of(2)).constrained(pins={0: 1})
    for problem in (faster, pinned):
        schedule = simulate(problem, plan_of(problem, {"a": 1, "b": 1, "c": 0}))
        like = plan_of(problem, {"a": 0, "b": 0, "c": 1})
        assert relabel_like(schedule, like) is schedule


def test_replicas_and_recomputing_devices_go_along():
    problem = Problem(profile_of(TIMES, EDGES), cluster_of(4))
    plan = plan_of(problem, {"a": 0, "b": 0, "c": 2})
    plan = replace(plan, replicas=((0, 1),), recompute=(2,))
    like = plan_of(problem, {"a": 2, "b": 2, "c": 0})
    found = relabel_like(simulate(problem, plan), like).plan
    assert found.device.tolist() == [2, 2, 0]
    assert found.recompute == (0,)
    assert found.replicas[0][0] == 2


@examples(15)
@given(planned_problems(), st.data())
def test_the_schedule_is_the_same_and_no_less_agrees(planned, data):
    problem, plan = planned
    before = simulate(problem, plan)
    choices = [np.flatnonzero(row).tolist() for row in problem.unit_allowed]
    unit_device = np.array([data.draw(st.sampled_from(choice)) for choice in choices])
    like = replace(plan, device=unit_device[problem.unit])
    found = relabel_like(before, like)
    time_us = before.op_finish_us - before.op_start_us
    agreed = [time_us[each.plan.device == like.device].sum() for each in (before, found)]
    assert agreed[1] >= agreed[0] * (1 - 1e-2)
    assert found.makespan_us == before.makespan_us
    assert sorted(found.peak_bytes.tolist()) == sorted(before.peak_bytes.tolist())
