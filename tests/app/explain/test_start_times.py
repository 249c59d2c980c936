"""The words for why a schedule is as it is."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from documents import chain_document, document_of
from enplace.errors import EnplaceError
from enplace.machine import critical_path, simulate
from enplace.machine.limits import Limit, find_limits, time_if_free
from enplace.names.groups import group_ops
from enplace.text import ms
from enplace.values.constraints import Constraints
from enplace.values.problem import Problem
from enplace_studio.explain.reasons import why_here, why_not, why_there
from enplace_studio.explain.start_times import (
    Gap,
    explain_place,
    explain_step,
    sum_waits,
)
from enplace_studio.model.edits import moved_schedule
from enplace_studio.model.ordering import Slot
from problems import cluster_of, plan_of, planned_problems, profile_of


def schedules(places, moved, device, **cluster):
    """Simulate a fork of two branches, a to d, before and after some ops move."""
    times = {"a": 1000.0, "b": 4000.0, "c": 4000.0, "d": 1000.0}
    edges = [("a", "b", 1000), ("a", "c", 1000), ("b", "d", 1000), ("c", "d", 1000)]
    problem = Problem(profile_of(times, edges), cluster_of(2, b1_us_per_byte=0.5, **cluster))
    before = simulate(problem, plan_of(problem, dict(zip("abcd", places, strict=True))))
    ops = np.array(["abcd".index(name) for name in moved])
    return before, moved_schedule(problem, before.plan, ops, device), ops


def test_a_move_is_explained_by_the_critical_path():
    before, after, _ = schedules((0, 0, 0, 0), "c", 1)
    text = explain_step(before, after)
    saved_us = before.makespan_us - after.makespan_us
    assert saved_us > 0
    assert text.startswith(f"The step is {saved_us / 1000:.1f} ms shorter: on the critical path, ")
    assert "compute −4.0 ms" in text


def test_a_later_start_names_the_input_its_way_and_its_arrival():
    before, after, ops = schedules((0, 0, 0, 0), "b", 1)
    why = next(why for why in why_there(before, after, ops, 1) if why.kind == "waits for")
    assert why.ops == (0,)
    assert why.figure == "1,000 B over GPU 0 → GPU 1, 1.5 ms"
    arrival = why.marks[-1]
    assert (arrival.source, arrival.device, arrival.finish_us) == (0, 1, pytest.approx(1501))


def test_an_op_that_is_there_already_is_displaced():
    before, after, ops = schedules((0, 0, 1, 0), "b", 1)
    whys = {why.kind: why for why in why_there(before, after, ops, 1)}
    assert whys["displaces"].ops == (2,), "c is there already, and runs after b"


def test_the_op_that_would_be_displaced_is_named_with_its_delay():
    profile = profile_of({"a": 4000.0, "b": 1000.0, "c": 500.0}, [("b", "c", 8)])
    problem = Problem(profile, cluster_of(2))
    before = simulate(problem, plan_of(problem, {"a": 0, "b": 1, "c": 1}))
    after = moved_schedule(problem, before.plan, [0], 1)
    whys = {why.kind: why for why in why_there(before, after, np.array([0]), 1)}
    displaced = whys["displaces"]
    assert displaced.ops[0] in (1, 2)
    late_us = float((after.op_start_us - before.op_start_us)[displaced.ops[0]])
    assert displaced.figure == ms(late_us, signed=True)
    assert len(displaced.marks) == 2, "where it is, and where it would be"


def test_a_group_names_the_op_that_decides():
    before, _, _ = schedules((0, 1, 0, 0), "b", 0)
    ops = np.array([1, 3])
    whys = why_here(before, ops)
    assert whys[0].kind == "decided by"
    assert whys[0].ops == (1,), "b idles until its input arrives; d waits for b itself"
    assert whys[1].ops == (0,)


def test_an_op_that_cannot_run_on_a_device_is_named_in_plain_words():
    problem = Problem(profile_of({"a": 10.0}, cpu={"c": 1.0}), cluster_of(1, cpu_lanes=1))
    why = why_not(problem, np.array([0, 1]), problem.cluster.n_devices - 1)
    assert why.tip == "a cannot run on a CPU: no measured time there"
    assert why.ops == (0,)


def test_a_forbidden_device_is_said_to_be_the_users_wish():
    problem = Problem(
        profile_of({"a": 10.0}), cluster_of(2), Constraints(forbidden=frozenset({(0, 1)}))
    )
    assert why_not(problem, np.array([0]), 1).tip == "a must not run there: it is forbidden there"
    assert why_not(problem, np.array([0]), 0) is None


def test_missing_memory_is_mentioned():
    times = {"a": 10.0, "b": 10.0}
    profile = profile_of(times, [("a", "b", 4)], persistent={"a": 80, "b": 80})
    problem = Problem(profile, cluster_of(2, capacity_bytes=100))
    before = simulate(problem, plan_of(problem, {"a": 0, "b": 1}))
    after = moved_schedule(problem, before.plan, [1], 0)
    lacking = why_there(before, after, np.array([1]), 0)[-1]
    assert (lacking.kind, lacking.about) == ("lacks memory", "GPU 0")


def test_a_move_without_effect_says_so():
    before, after, _ = schedules((0, 0, 0, 0), "c", 0)
    assert explain_step(before, after) == "The step stays as long."


def test_the_place_is_explained_with_its_start_and_its_share_of_the_critical_path():
    before, _, ops = schedules((0, 0, 0, 0), "b", 1)
    assert explain_place(before, ops) == (
        "It starts at 1.0 ms. Started as soon as it could, after a. "
        "On the critical path for 4.0 ms."
    )


def amounts_ms(text):
    """Return the times in a text."""
    found = re.findall(r"([+−]?[0-9.,]+) (ms|µs|ns)", text)
    per_ms = {"ms": 1, "µs": 1e3, "ns": 1e6}
    return [float(n.replace("−", "-").replace(",", "")) / per_ms[unit] for n, unit in found]


@given(planned=planned_problems(), data=st.data())
def test_the_parts_add_up_to_the_change_of_the_step(planned, data):
    problem, plan = planned
    before = simulate(problem, plan)
    op = data.draw(st.integers(0, problem.profile.n_ops - 1))
    device = data.draw(st.integers(0, problem.cluster.n_devices - 1))
    try:
        after = moved_schedule(problem, plan, [op], device)
    except EnplaceError:
        return
    text = explain_step(before, after)
    match = re.match(r"The step is (.*?) (longer|shorter): on the critical path, (.*)\.$", text)
    if match is None:
        assert text.startswith("The step stays as long.")
        return
    (change,) = amounts_ms(match[1])
    change *= 1 if match[2] == "longer" else -1
    parts = amounts_ms(match[3])
    assert change == pytest.approx(sum(parts), abs=0.06 * (len(parts) + 1) + 0.02 * abs(change))


@given(planned=planned_problems())
def test_the_limits_of_a_step_add_up_to_it(planned):
    problem, plan = planned
    schedule = simulate(problem, plan)
    limits = find_limits(schedule, group_ops(problem.profile))
    times_us = [limit.time_us for limit in limits]
    waiting_us = critical_path(schedule).waiting_us
    assert sum(times_us) + waiting_us == pytest.approx(schedule.makespan_us, abs=1e-3)
    assert times_us == sorted(times_us, reverse=True)
    assert all(limit.ops for limit in limits)


def test_what_a_part_of_the_step_costs_is_simulated_without_it():
    document = chain_document()
    schedule, grouping = document.schedule, document.project.grouping
    limits = {limit.name: limit for limit in find_limits(schedule, grouping)}
    assert schedule.makespan_us == pytest.approx(51)
    assert time_if_free(schedule, limits["a on GPU 0"]) == pytest.approx(41)
    assert time_if_free(schedule, limits["GPU 0 → GPU 1"]) == pytest.approx(30)


def test_a_gain_of_next_to_nothing_is_none():
    profile = profile_of({"a": 10, "b": 9.7, "end": 1}, [("a", "end", 0), ("b", "end", 0)])
    document = document_of(profile, cluster_of(2, b0_us=0), {"a": 0, "b": 1, "end": 0})
    schedule = document.schedule
    limits = {limit.name: limit for limit in find_limits(schedule, document.project.grouping)}
    assert time_if_free(schedule, limits["a on GPU 0"]) == schedule.makespan_us


def test_a_part_beside_which_another_takes_as_long_gains_little():
    profile = profile_of({"a": 10, "b": 8, "end": 1}, [("a", "end", 0), ("b", "end", 0)])
    document = document_of(profile, cluster_of(2, b0_us=0), {"a": 0, "b": 1, "end": 0})
    schedule = document.schedule
    limits = {limit.name: limit for limit in find_limits(schedule, document.project.grouping)}
    assert time_if_free(schedule, limits["a on GPU 0"]) == pytest.approx(schedule.makespan_us - 2)


def test_short_waits_are_summed_up_below_the_cause_and_the_longest():
    times_us = [5.0, 900.0, 4.0, 3.0, 80.0]
    steps = [Limit(f"part {n}", us, (n,)) for n, us in enumerate(times_us)]
    waits = sum_waits(Gap(0, 0.0, sum(times_us), 9), steps)
    assert (waits.cause.name, waits.cause.time_us) == ("part 4", 80.0)
    assert [limit.name for limit in waits.long] == ["part 1"]
    assert (waits.short.name, waits.short.time_us) == ("3 short waits", 12.0)
    assert set(waits.short.ops) == {0, 2, 3}


def test_parts_of_one_name_are_one_wait():
    steps = [Limit("a", 10.0, (1,)), Limit("b", 30.0, (2,)), Limit("a", 10.0, (3,))]
    waits = sum_waits(Gap(0, 0.0, 50.0, 9), steps)
    assert (waits.cause.time_us, set(waits.cause.ops)) == (20.0, {1, 3})
    assert [limit.name for limit in waits.long] == ["b"]


def test_an_op_that_was_only_ordered_after_another_does_not_need_it():
    profile = profile_of({"a": 10, "b": 10, "c": 10}, [("a", "c", 20)])
    document = document_of(profile, cluster_of(2), {"a": 0, "b": 0, "c": 0})
    document.reorder([0], Slot(1, earlier=True))
    assert document.problem.before
    needed = [why.ops for why in why_here(document.schedule, np.array([0])) if
              why.kind == "needed by"]  # fmt: skip
    assert needed == [(2,)], "c reads what a makes; b was only to run after it"
