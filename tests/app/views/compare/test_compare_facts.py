"""Which plans stand side by side, and what differs between them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from documents import add_plan, chain_document, document_of, wide_document
from enplace.machine import critical_path, simulate
from enplace.names.groups import group_ops
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.splits import Split
from enplace_studio.explain.differences import path_parts
from enplace_studio.explain.intervals import Interval, busy_shares, bytes_within
from enplace_studio.model.ordering import Slot
from enplace_studio.timelines.rows import rows_of
from enplace_studio.views.compare.compare_facts import (
    choose,
    comparable,
    device_rows,
    differences,
    part_tip,
    path_by_device,
    path_by_place,
    waterfall,
    why_idle,
)
from problems import cluster_of, profile_of


def four_plans():
    """Ops a -> b, 10 µs each; b's plans: one GPU, two ways round, and the expert's."""
    profile = profile_of({"a": 10, "b": 10}, [("a", "b", 20)])
    document = document_of(profile, cluster_of(2), {"a": 0, "b": 1})
    add_plan(document, "one", {"a": 0, "b": 0})
    add_plan(document, "expert", {"a": 1, "b": 1}, method="expert")
    add_plan(document, "round", {"a": 1, "b": 0})
    return document


def names(entries):
    return [entry.name for entry in entries]


def entry_of(document, name):
    return next(entry for entry in document.plans if entry.name == name)


def test_the_current_plan_is_compared_with_the_experts():
    assert names(choose(four_plans().project, [])) == ["expert", "plan 1"]


def test_without_an_expert_the_first_plan_is_the_reference():
    document = four_plans()
    document.remove_plan(entry_of(document, "expert"))
    document.choose_plan(entry_of(document, "round"))
    assert names(choose(document.project, [])) == ["plan 1", "round"]


def test_the_expert_alone_is_compared_with_the_fastest_other_plan():
    document = four_plans()
    document.choose_plan(entry_of(document, "expert"))
    assert names(choose(document.project, [])) == ["expert", "one"]


def test_the_users_choice_and_its_order_are_kept():
    document = four_plans()
    wanted = [entry_of(document, name) for name in ("round", "one", "expert")]
    assert choose(document.project, wanted) == wanted


def test_a_chosen_plan_that_was_renamed_is_found():
    document = four_plans()
    wanted = [entry_of(document, name) for name in ("round", "one")]
    document.rename_plan(wanted[0], "new name")
    assert names(choose(document.project, wanted)) == ["new name", "one"]


def test_a_removed_plan_is_left_out_and_comes_back_with_undo():
    document = four_plans()
    wanted = [entry_of(document, name) for name in ("round", "one", "plan 1")]
    document.remove_plan(wanted[0])
    assert names(choose(document.project, wanted)) == ["one", "plan 1"]
    document.undo_stack.undo()
    assert names(choose(document.project, wanted)) == ["round", "one", "plan 1"]


def test_plans_of_another_cluster_are_not_offered():
    document = four_plans()
    document.set_cluster(replace(cluster_of(1), name="small"))
    assert [entry.name for entry in document.plans if entry.cluster is not None]
    assert names(comparable(document.project)) == ["one"]


def test_a_project_without_plans_compares_nothing():
    document = four_plans()
    for entry in document.plans:
        document.remove_plan(entry)
    assert choose(document.project, []) == []


def fall_of(document, one, other):
    schedules = [entry_of(document, name).schedule for name in (one, other)]
    paths = [critical_path(schedule) for schedule in schedules]
    return waterfall(*paths, tuple(schedule.makespan_us for schedule in schedules))


def test_the_waterfall_leads_from_one_step_time_to_the_other():
    """One GPU: 20 µs of compute. Two: as much, and a message of 21 µs in between."""
    fall = fall_of(four_plans(), "one", "round")
    assert fall.levels_us == pytest.approx((20, 20, 41, 41))
    assert fall.parts == ("compute", "transfers", "waiting")
    assert fall.sentence == (
        "0.020 ms to 0.041 ms: compute 0 ms, transfers +0.021 ms, waiting 0 ms"
    )


def test_the_critical_path_is_summed_by_device_and_link():
    document = four_plans()
    before, after = (
        path_by_place(schedule, critical_path(schedule))
        for schedule in (entry_of(document, name).schedule for name in ("one", "round"))
    )
    assert before["compute"] == {"GPU 0": 20}
    assert part_tip("transfers", before["transfers"], after["transfers"]) == (
        "transfers on the critical path\nGPU 1 → GPU 0: 0 → 0.021 ms"
    )


def number(text):
    return float(text.removesuffix(" ms").replace("−", "-").replace(",", ""))


@given(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3))
def test_the_numbers_of_the_waterfall_add_up(seed, one, other):
    fall = fall_of(WIDE, f"plan {one + 1}", f"plan {other + 1}")
    total = number(fall.levels[0]) + sum(map(number, fall.changes))
    assert total == pytest.approx(number(fall.levels[-1]), abs=1e-9)


def wide_plans():
    document = wide_document(n_ops=60)
    ops = document.problem.profile.op_names
    for shift in range(1, 4):
        devices = {name: (at * shift) % 3 for at, name in enumerate(ops)}
        add_plan(document, f"plan {shift + 1}", devices)
    return document


WIDE = wide_plans()


def test_what_differs_can_be_selected():
    document = four_plans()
    one, other = (entry_of(document, name).schedule for name in ("one", "round"))
    lines = differences(one, other, document.project)
    texts = {line.text: line.ops.tolist() for line in lines}
    assert texts["1 op on another device"] == [0]
    assert texts["1 tensor sent that A keeps"] == [0]
    assert texts["0 → 20 B sent"] == [0]


def test_what_does_not_differ_is_not_listed():
    document = four_plans()
    one, other = (entry_of(document, name).schedule for name in ("one", "round"))
    assert differences(one, one, document.project) == []
    assert [line.text for line in differences(one, other, document.project)] == [
        "1 op on another device",
        "1 tensor sent that A keeps",
        "0 → 20 B sent",
        "GPU 0: 0.020 → 0.010 ms busy",
        "GPU 1: 0 → 0.010 ms busy, peak 0 → 20 B",
        "Most moved: a",
    ]


def test_plans_with_other_orders_are_compared_by_what_they_send():
    profile = profile_of({"a": 10, "b": 10, "c": 10}, [("b", "c", 20)])
    document = document_of(profile, cluster_of(2), {"a": 0, "b": 0, "c": 1})
    before = document.current.schedule
    document.reorder([1], Slot(0, earlier=True))  # a control edge is the first tensor now
    after = document.current.schedule
    assert after.problem.profile.n_tensors > before.problem.profile.n_tensors
    texts = [line.text for line in differences(before, after, document.project)]
    assert "1 op in another order" in texts
    assert not [text for text in texts if "tensor" in text]


def test_ops_that_only_run_at_another_time_are_counted_and_can_be_selected():
    profile = profile_of({"a": 10, "b": 10, "c": 10, "d": 10})
    document = document_of(profile, cluster_of(2), {"a": 0, "b": 0, "c": 0, "d": 1})
    before = document.current.schedule
    document.reorder([2], Slot(0, earlier=True))
    lines = differences(before, document.current.schedule, document.project)
    texts = {line.text: line.ops.tolist() for line in lines}
    assert not [text for text in texts if "on another device" in text]
    assert texts["1 op in another order"] == [2]


def test_ops_of_a_plan_that_splits_some_are_compared_by_the_whole_op():
    """Op b is split: one half stays where a is; in A, all is on the first GPU."""
    profile = profile_of({"a": 10, "b": 10, "c": 10}, [("a", "b", 20), ("b", "c", 20)])
    document = document_of(profile, cluster_of(2), {"a": 0, "b": 0, "c": 1})
    project, whole = document.project, document.current.schedule
    splits = (Split("b", "rows", 2),)
    names = ["a", "c", "b/split/part_0", "b/split/part_1", "b/split/of_a_0", "b/split/join_0"]
    parts = profile_of(
        dict.fromkeys(names, 5.0),
        [("a", names[4], 20), (names[4], names[2], 10), (names[4], names[3], 10),
         (names[2], names[5], 10), (names[3], names[5], 10), (names[5], "c", 20)],
    )  # fmt: skip
    problem = Problem(parts, cluster_of(2), splits=splits)
    device, position = np.array([0, 1, 0, 1, 0, 0]), np.array([0, 5, 2, 3, 1, 4])
    plan = Plan(device, position, "by hand", splits=splits)
    split = simulate(problem, plan)

    lines = {line.text: line.ops.tolist() for line in differences(whole, split, project)}
    assert lines["1 op split that A keeps whole"] == [1]
    assert lines["1 op on another device"] == [1]
    assert not [text for text in lines if "in another order" in text]
    assert not any("sent that A keeps" in text for text in lines)
    assert lines["Most moved: b"] == []

    shown = replace(project, problem=problem, grouping=group_ops(parts))
    back = {line.text: line.ops.tolist() for line in differences(split, whole, shown)}
    assert back["1 op whole that A splits"] == [2, 3, 4, 5], "selected in the graph with parts"
    assert back["1 op on another device"] == [2, 3, 4, 5], "counted as one"


def test_devices_are_compared_by_busy_time_and_peak():
    document = four_plans()
    one, other = (entry_of(document, name).schedule for name in ("one", "expert"))
    lines = [line.text for line in differences(one, other, document.project)]
    assert "GPU 0: 0.020 → 0 ms busy, peak 20 → 0 B" in lines


def test_an_interval_counts_only_what_lies_within_it():
    """Ops a and b on GPU 0 until 20; 20 bytes of b on the way from 20 to 41; then c on GPU 1."""
    schedule = chain_document().schedule
    interval = Interval(15, 30.5)
    assert busy_shares(schedule, interval, [0, 1]) == pytest.approx([5 / 15.5, 0])
    assert bytes_within(schedule, interval) == pytest.approx(10)


def test_the_idle_device_and_its_reason_are_named():
    schedule = chain_document().schedule
    rows = rows_of(schedule)
    assert why_idle(schedule, rows, Interval(15, 30)) == (
        "GPU 1 was idle for 0.041 ms, waiting for the transfer of b from GPU 0."
    )
    assert why_idle(schedule, rows, Interval(42, 50)) == (
        "GPU 0 idle for 0.031 ms, to the end of the step."
    )
    assert why_idle(schedule, rows, Interval(60, 70)) == "The step has ended."


def test_no_device_is_said_to_wait_where_none_does():
    document = document_of(profile_of({"a": 10}), cluster_of(1), {"a": 0})
    rows = rows_of(document.schedule)
    assert why_idle(document.schedule, rows, Interval(2, 5)) == "No device is idle."


def test_the_parts_by_device_add_up_to_the_parts():
    document = chain_document()
    schedule = document.schedule
    path = critical_path(schedule)
    found = path_by_device(schedule, path)
    assert found.sum(axis=1) == pytest.approx(list(path_parts(path).values()))
    assert found[0].tolist() == pytest.approx([20, 10])
    assert found[1].tolist() == pytest.approx([0, 21]), "a transfer counts where it arrives"


def test_devices_that_change_little_share_a_row():
    before = np.zeros((3, 5))
    after = np.array([[10.0, 2.0, 30.0, 0.1, 20.0], [0] * 5, [0] * 5])
    rows = device_rows(before, after, "ABCDE", range(5))
    assert [row.name for row in rows] == ["A", "C", "E", "1 other"]
    assert rows[1].changes == ("+0.030 ms", "", "")
