"""The best of a search: what is better, and what is reported."""

import numpy as np
import pytest
from tests.core.placers.problems import gpus, line

from enplace.machine import simulate
from enplace.placing.incumbents import BETTER, Best, BestSchedule, Incumbent, best_among
from enplace.placing.options import PlaceOptions
from enplace.values.plan import Plan
from enplace.values.problem import Problem

NOWHERE = np.zeros(0, dtype=np.int64)


def placement(objective_us, excess_bytes=0.0):
    return Incumbent(NOWHERE, objective_us, 0.0, excess_bytes=excess_bytes)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (placement(9.0), placement(1.0, excess_bytes=1)),
        (placement(9.0, excess_bytes=1), placement(1.0, excess_bytes=2)),
        (placement(1.0, excess_bytes=2), placement(9.0, excess_bytes=2)),
        (placement(1.0), placement(9.0)),
        (placement(9.0), placement(np.inf)),
    ],
)
def test_what_fits_comes_first_then_the_smaller_excess_then_the_smaller_value(better, worse):
    assert best_among([better, worse]) is better
    assert best_among([worse, better]) is better


def test_of_equals_the_first_is_kept_and_only_the_better_are_reported():
    first, equal, better = placement(2.0), placement(2.0 * (1 - BETTER / 2)), placement(1.0)
    reported = []
    best = Best(first, lambda found, engine: reported.append((found, engine)), BETTER)
    assert [best.offer(found, "a part") for found in (equal, better, first)] == [False, True, False]
    assert best.found is better
    assert reported == [(better, "a part")]


def test_a_better_schedule_is_reported_with_its_step_time():
    problem = Problem(line([1.0] * 3, []), gpus(2))
    together, apart = (
        simulate(problem, Plan(np.array(device), np.arange(3), "heft"))
        for device in ([0, 0, 0], [0, 1, 0])
    )
    reports = []
    best = BestSchedule(PlaceOptions(progress=reports.append))
    assert best.kept is None
    assert [best.offer(found) for found in (together, apart, together)] == [True, True, False]
    assert [report.objective_us for report in reports] == [3.0, 2.0]
    assert best.is_enough
