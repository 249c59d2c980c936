"""A placer that lies about its own plan: what is shown is computed again."""

from dataclasses import replace

import numpy as np
import pytest
from tests.core.placers.problems import gpus, line
from tests.core.placers.test_os_dpos import one_layer

from enplace import summary
from enplace.bounds import Proof
from enplace.errors import PlanError
from enplace.machine import simulate
from enplace.machine.latency import latency_us
from enplace.machine.pipelines.loads import max_load_us
from enplace.placing import registry, run
from enplace.placing.candidates import unordered
from enplace.placing.options import PlaceOptions, Progress
from enplace.placing.run import place
from enplace.placing.settle import natural_position, settle
from enplace.placing.stop import Stop
from enplace.placing.stopwatch import Stopwatch
from enplace.values.plan import Plan
from enplace.values.problem import LATENCY, STEP_TIME, THROUGHPUT, Problem, split_problem

TRUE_US = {THROUGHPUT: max_load_us, LATENCY: latency_us}
LIE = {"value_us": 1.0, "bound_us": 1.0, "proven": True}


@pytest.fixture
def problem():
    return Problem(line([10.0, 20.0, 30.0], [(0, 1, 5), (1, 2, 5)]), gpus(2))


@pytest.fixture
def place_by(monkeypatch, problem):
    """Return a function that places the problem with a method of the test's own."""

    def run(method, objective):
        placer = registry.Placer("liar", "Liar", "", method, objectives=(objective,))
        monkeypatch.setitem(registry._registry, "liar", placer)
        return place(problem, "liar", options=PlaceOptions(objective=objective))

    return run


def alternate(device=(0, 1, 0), **claims):
    return Plan(np.array(device), np.arange(3), "liar", **claims)


@pytest.mark.parametrize("objective", [THROUGHPUT, LATENCY])
def test_a_false_value_is_computed_again_and_proves_nothing(place_by, problem, objective):
    result = place_by(lambda problem, options: alternate(objective=objective, **LIE), objective)
    assert result.value_us == TRUE_US[objective](problem, result.plan.device) > 1
    assert (result.gap, result.plan.proven) == (None, False)


@pytest.mark.parametrize("objective", [THROUGHPUT, LATENCY])
def test_a_bound_above_the_plans_own_value_proves_nothing(place_by, problem, objective):
    true_us = TRUE_US[objective](problem, alternate().device)
    claims = {"value_us": true_us, "bound_us": 2 * true_us, "proven": True}
    result = place_by(lambda problem, options: alternate(objective=objective, **claims), objective)
    assert result.value_us == true_us
    assert (result.gap, result.plan.proven) == (None, False)


def test_a_plan_for_another_objective_is_worth_its_step_time(place_by):
    result = place_by(lambda problem, options: alternate(objective=THROUGHPUT, **LIE), STEP_TIME)
    assert result.objective == STEP_TIME
    assert result.value_us == result.schedule.makespan_us > 60
    assert not result.plan.proven


def test_a_proof_for_another_objective_proves_nothing_even_if_the_values_are_equal(
    place_by, problem
):
    us = latency_us(problem, alternate((0, 0, 0)).device)
    proven = {"objective": THROUGHPUT, "value_us": us, "bound_us": us, "proven": True}
    result = place_by(lambda problem, options: alternate((0, 0, 0), **proven), LATENCY)
    assert result.value_us == us == max_load_us(problem, result.plan.device)
    assert (result.gap, result.plan.proven) == (None, False)


def test_a_proof_that_the_plan_itself_disproves_is_dropped(place_by):
    def prove_too_much(problem, options):
        options.proofs.add(problem, Proof(1e9, "CPLEX"))
        return alternate()

    result = place_by(prove_too_much, STEP_TIME)
    assert (result.bound_us, result.proven_by) == (None, "")
    assert "nothing is proven" in result.plan.note


@pytest.mark.parametrize("objective", [STEP_TIME, THROUGHPUT, LATENCY])
def test_a_device_that_the_cluster_does_not_have_is_refused(place_by, objective):
    def invent(problem, options):
        return alternate(device=(0, 7, 0), objective=objective)

    with pytest.raises(PlanError, match="a device that the cluster does not have"):
        place_by(invent, objective)


def test_compiling_is_told_apart_from_solving(monkeypatch, problem):
    now_s = [0.0]

    def compiles(problem, options):
        with options.stop.clock.paused():
            now_s[0] += 58.0
        now_s[0] += 2.0
        return alternate()

    monkeypatch.setitem(registry._registry, "liar", registry.Placer("liar", "Liar", "", compiles))
    stop = Stop(clock=Stopwatch(lambda: now_s[0]))
    result = place(problem, "liar", options=PlaceOptions(stop=stop))
    assert (result.plan.solve_seconds, result.compile_seconds) == (2.0, 58.0)
    head = summary.describe(result, summary.Others()).splitlines()[0]
    assert head.endswith("solved in 2.0 s, after 58 s of compiling")


def test_a_plan_that_was_reported_is_evaluated_once(monkeypatch, problem):
    evaluated = []
    monkeypatch.setattr(run, "check_claims", lambda problem, plan: evaluated.append(plan) or plan)

    def reports(problem, options):
        plan = alternate()
        options.progress(Progress(0.0, "a plan", incumbent=plan))
        return plan

    monkeypatch.setitem(registry._registry, "liar", registry.Placer("liar", "Liar", "", reports))
    place(problem, "liar")
    assert len(evaluated) == 1


def test_a_proof_that_comes_after_the_last_report_counts_for_a_split_graph(monkeypatch):
    model = Problem(one_layer(), gpus(4, b0=1.0, b1=1e-5))
    problem = split_problem(model, place(model, "os-dpos").plan.splits)
    assert problem.splits

    def proves_late(graph, options):
        plan = Plan(settle(graph, np.zeros(graph.profile.n_ops, int)), natural_position(graph), "x")
        options.progress(Progress(0.0, "a plan", incumbent=plan))
        options.proofs.add(graph, Proof(7.0, "CP-SAT"))
        return plan

    placer = registry.Placer("liar", "Liar", "", proves_late)
    monkeypatch.setitem(registry._registry, "liar", placer)
    result = place(problem, "liar")
    assert (result.bound_us, result.proven_by) == (7.0, "CP-SAT")


@pytest.mark.parametrize("method", ["enplace", "heft", "local-search", "mcmc", "expert"])
def test_plans_for_a_step_of_pytorch_are_found_and_told_in_the_order_of_the_script(method):
    draw = np.random.default_rng(0)
    edges = [(int(draw.integers(max(op - 6, 0), op)), op, 5) for op in range(1, 40)]
    profile = line(draw.uniform(1, 30, 40).tolist(), edges)
    recorded = replace(profile, measured=replace(profile.measured, framework="torch"))
    problem = Problem(recorded, gpus(2))
    asked = PlaceOptions(values={} if method in ("heft", "expert") else {"rounds": 30})
    plan = place(problem, method, options=asked).plan
    assert (plan.policy, plan.links) == ("fifo", "fifo")
    assert plan.position.tolist() == [*range(40)]
    whole = simulate(problem, unordered(problem, np.zeros(40, np.int64), "")[0]).makespan_us
    assert simulate(problem, plan).makespan_us <= whole
