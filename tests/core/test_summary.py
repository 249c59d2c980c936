"""What is said of a plan before anything runs."""

from dataclasses import replace

import pytest

from enplace.machine import simulate
from enplace.summary import Others, worth_it
from enplace.values.measurement import Measurement
from enplace.values.problem import Problem
from problems import cluster_of, plan_of, profile_of


@pytest.mark.parametrize(
    ("stock_us", "elsewhere", "said"),
    [
        (8.0, False, "One device is faster: nothing to split. It takes 0.0080 ms"),
        (8.0, True, "One device takes 0.060 ms, the plan −"),
        (None, False, "One device takes 0.060 ms, the plan −"),
    ],
)
def test_a_framework_that_was_faster_by_itself_on_these_devices_leaves_nothing_to_split(
    stock_us, elsewhere, said
):
    cluster = cluster_of(2)
    profile = profile_of({"a": 30, "b": 30}, [])
    measured = Measurement(step_time_us=60.0, stock_step_time_us=stock_us, cluster=cluster)
    here = replace(cluster, name="another") if elsewhere else cluster
    problem = Problem(replace(profile, measured=measured), here)
    apart = simulate(problem, plan_of(problem, {"a": 0, "b": 1}))
    alone = simulate(problem, plan_of(problem, {"a": 0, "b": 0}))
    assert worth_it(apart, Others(alone=alone)).startswith(said)
