from dataclasses import replace

import numpy as np

from enplace.machine import simulate
from enplace.machine.check_claims import check_claims
from enplace.machine.plan_words import limits_title, name_ranges, say_limits, say_where
from enplace.names.groups import group_ops
from enplace.values.problem import THROUGHPUT, Problem
from problems import cluster_of, plan_of, profile_of


def layers(n, inside=40):
    return [
        f"{side}/layer_{i}/op_{j:02}"
        for side in ("enc", "dec")
        for i in range(n)
        for j in range(inside)
    ]


def schedule_of(places, n_gpus=3):
    problem = Problem(profile_of(dict.fromkeys(places, 1000.0)), cluster_of(n_gpus))
    return simulate(problem, plan_of(problem, places))


def test_consecutive_layers_are_a_range_in_whatever_order_they_run():
    profile = profile_of(dict.fromkeys(layers(4), 1.0))
    grouping = group_ops(profile)
    groups = np.arange(grouping.n_groups)[::-1].tolist()
    assert sorted(name_ranges(grouping, groups)) == ["dec / layer 0–3", "enc / layer 0–3"]
    hole = [g for g in groups if grouping.names[g] != "enc / layer 2"]
    assert "enc / layer 0–1" in name_ranges(grouping, hole)
    assert "enc / layer 3" in name_ranges(grouping, hole)


def test_every_group_is_named_once_whole_mostly_or_divided():
    names = layers(2)
    places = {name: int(name.startswith("dec")) for name in names}
    places |= dict.fromkeys(names[:10], 2)  # a quarter of enc / layer 0
    places |= {name: 2 * (i % 2) for i, name in enumerate(names[-40:])}  # half of dec / layer 1
    schedule = schedule_of(places)
    assert say_where(schedule, group_ops(schedule.problem.profile)) == [
        "GPU 0 runs enc / layer 1; most of enc / layer 0.",
        "GPU 1 runs dec / layer 0.",
        "Divided between GPU 0 and GPU 2: dec / layer 1.",
    ]


def test_what_limits_a_step_is_told_with_what_it_would_gain():
    names = layers(2)
    schedule = schedule_of({name: int(name.startswith("dec")) for name in names}, 3)
    told = say_limits(schedule, group_ops(schedule.problem.profile))
    assert told[0] == "Of the step of 80.0 ms, the critical path computes for 80.0 ms."
    # the other GPU computes as long, so that nothing is gained
    assert told[1].endswith("were that free, the step would be no shorter.")
    assert told[-1] == "GPU 2 does next to nothing."


def test_what_limits_a_pipeline_is_told_for_a_sample():
    problem = Problem(profile_of({"a": 5000.0, "b": 3000.0, "c": 6000.0}), cluster_of(2))
    plan = plan_of(problem, {"a": 0, "b": 0, "c": 1})
    plan = check_claims(problem, replace(plan, objective=THROUGHPUT))
    schedule = simulate(problem, plan)
    assert limits_title(schedule) == "What limits the time per sample"
    assert say_limits(schedule, group_ops(problem.profile))[:3] == [
        "A sample leaves the pipeline every 8.0 ms.",
        "5.0 ms of it is a on GPU 0; were that free, the time per sample would be 2.0 ms shorter.",
        "3.0 ms of it is b on GPU 0; were that free, the time per sample would be 2.0 ms shorter.",
    ]
