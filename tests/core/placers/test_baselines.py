"""Baselines run for an objective that they do not minimise report it truthfully."""

import numpy as np
import pytest
from tests.core.placers.problems import gpus, line

from enplace.errors import EnplaceError
from enplace.machine.latency import latency_us
from enplace.machine.pipelines.loads import max_load_us
from enplace.machine.pipelines.pipeline import fill_pipeline
from enplace.placers import LATENCY, THROUGHPUT, PlaceOptions, Stop, place, placers
from enplace.placing.options import load_values
from enplace.values.load_rule import LoadRule
from enplace.values.problem import Problem
from problems import cluster_of, profile_of

BASELINES = [m for m in ("expert", "metis", "scotch", "local-search") if placers()[m].installed]
each_baseline = pytest.mark.parametrize("method", BASELINES)


def chain():
    """Return a chain of eight 10 µs ops with transfers of 1 µs."""
    return Problem(line([10.0] * 8, [(i, i + 1, 8) for i in range(7)]), gpus(2))


@each_baseline
def test_the_time_per_sample_of_a_baseline_is_evaluated(method):
    rule, reports = LoadRule("duplex"), []
    options = PlaceOptions(objective=THROUGHPUT, values=load_values(rule), progress=reports.append)
    plan = place(chain(), method, options=options).plan
    assert plan.objective == THROUGHPUT
    assert plan.value_us == pytest.approx(max_load_us(chain(), plan.device, rule))
    assert plan.load_rule.transfers == "duplex"
    assert reports[-1].objective_us == plan.value_us == reports[-1].incumbent.value_us


def test_samples_in_flight_of_a_local_optimum_fit():
    times = {"f0": 9, "f1": 8, "gradients/b0": 19, "update/u0": 5, "update/u1": 160, "update/u2": 0}
    edges = [("f0", "f1", 2), ("f1", "gradients/b0", 8)]
    edges += [("gradients/b0", each, 7) for each in ("update/u1", "update/u2")]
    edges += [("update/u0", "update/u1", 2), ("update/u1", "update/u2", 2)]
    temporary = dict(zip(times, (4, 1, 2, 2, 3, 2), strict=True))
    profile = profile_of(times, edges, persistent={"f0": 13, "f1": 16}, temporary=temporary)
    cluster = cluster_of(2, b0_us=0.0, b1_us_per_byte=0.5, capacity_bytes=50)
    problem = Problem(profile, cluster)
    options = PlaceOptions(THROUGHPUT, values={"microbatches": 4})
    plan = place(problem, "local-search", options=options).plan
    assert (fill_pipeline(problem, plan).peak_bytes <= 50).all()
    assert not plan.note


@each_baseline
def test_the_latency_of_a_baseline_is_evaluated(method):
    plan = place(chain(), method, options=PlaceOptions(objective=LATENCY)).plan
    assert plan.objective == LATENCY
    assert plan.value_us == pytest.approx(latency_us(chain(), plan.device))
    assert f"by {method}, which does not minimise the latency" in plan.note


def test_a_proof_about_the_load_is_not_claimed_for_the_latency():
    plan = place(chain(), "max-load-dp", options=PlaceOptions(objective=LATENCY)).plan
    assert plan.value_us == pytest.approx(latency_us(chain(), plan.device))
    assert plan.bound_us is None
    assert not plan.proven
    assert plan.rivals is None


def test_local_search_minimises_the_time_per_sample():
    """Two chains with expensive edges take 28 and 20 µs on a device each."""
    edges = [(i, i + 2, 400_000_000) for i in range(4)]
    problem = Problem(line([10.0, 7.0, 10.0, 7.0, 8.0, 6.0], edges), gpus(2, b0=50.0))
    plan = place(problem, "local-search", options=PlaceOptions(objective=THROUGHPUT)).plan
    assert plan.value_us == 28.0
    assert not plan.note
    plain = place(problem, "local-search").plan
    assert plain.value_us is None


def test_a_deadline_ends_the_descents_with_a_plan():
    options = PlaceOptions(objective=THROUGHPUT, stop=Stop(1e-9), progress=(reports := []).append)
    plan = place(chain(), "local-search", options=options).plan
    assert len(reports) == 1
    assert np.array_equal(plan.device, reports[0].incumbent.device)


def test_a_method_refuses_an_objective_that_it_does_not_serve():
    with pytest.raises(EnplaceError, match="'heft' does not serve objective 'latency'; use one"):
        place(chain(), "heft", options=PlaceOptions(objective=LATENCY))
