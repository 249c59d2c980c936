"""The choice between several plans."""

import numpy as np
from tests.core.placers.problems import gpus, line

from enplace.placers import PlaceOptions
from enplace.placing.candidates import best_that_fits
from enplace.values.plan import Plan
from enplace.values.problem import Problem


def two_heavy_ops():
    """Return a chain of two ops whose variables do not fit one GPU together."""
    profile = line([10.0, 10.0], [(0, 1, 100)], persistent=[500, 500])
    return Problem(profile, gpus(2, b0=5.0, capacity=800))


def plan_on(*devices):
    return Plan(np.array(devices), np.arange(len(devices)), "heft")


def test_a_plan_that_fits_beats_a_faster_one_that_does_not():
    apart, together = plan_on(0, 1), plan_on(0, 0)
    for plans in ([apart, together], [together, apart]):
        best = best_that_fits(two_heavy_ops(), lambda share, plans=plans: plans, PlaceOptions())
        assert best.fits
        assert best.plan is apart
