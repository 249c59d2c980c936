"""The phases of the search: where they start, which of them run, and what they keep at the end."""

import itertools

import numpy as np
import pytest
from tests.core.placers.enplace.test_enplace import branches
from tests.core.placers.problems import gpus

from enplace.placers import PlaceOptions, Stop, place
from enplace.placers.enplace import phases
from enplace.placers.enplace.phases import PROBE_SWEEPS, PhasedSearch
from enplace.placing.incumbents import BestSchedule
from enplace.placing.moves import make_level
from enplace.placing.moves.steps import balance_step, measure, state_of
from enplace.placing.stopwatch import Stopwatch
from enplace.values.problem import Problem


def search_of(problem, method="single", plans=(), stop=None):
    """Return a search of many ops from the plan of a method."""
    options = PlaceOptions(stop=stop or Stop())
    incumbent = BestSchedule(options, place(problem, method).schedule)
    return PhasedSearch(problem, incumbent, plans, options, share=1.0, is_small=False)


def ticking(tick_s):
    """Return a clock on which each look takes a while."""
    looks = itertools.count()
    return Stopwatch(lambda: tick_s * next(looks))


@pytest.mark.parametrize("links", ["priority", "fifo"])
def test_when_time_is_up_a_state_still_becomes_a_plan_as_it_was_simulated(links):
    problem = Problem(branches(), gpus(3, b0=1.0, b1=0.5))
    level = make_level(problem, np.arange(problem.profile.n_ops))
    state = measure(state_of(level, place(problem, "heft").plan), links)
    search = search_of(problem, stop=Stop(1.0, clock=ticking(100.0)))
    search._try_state(state)
    found = search.incumbent.found
    assert (found.plan.policy, found.plan.links) == ("priority", links)
    assert found.makespan_us == pytest.approx(state.makespan_us)


@pytest.mark.parametrize("promising", [phases.PROMISING, np.inf])
def test_a_large_graph_is_balanced_for_long_only_if_a_short_balance_promises_something(
    monkeypatch, promising
):
    tried = []

    def balance(sweeps, left_s):
        tried.append(sweeps)
        return balance_step(sweeps, left_s)

    monkeypatch.setattr(phases, "FINE", 1)
    monkeypatch.setattr(phases, "MOVE_S", 1e-4)
    monkeypatch.setattr(phases, "PROMISING", promising)
    monkeypatch.setattr(phases, "balance_step", balance)
    problem = Problem(branches(), gpus(3, b0=1000.0))  # any two GPUs are slower than one
    search_of(problem, stop=Stop(20.0, clock=ticking(0.01))).run()
    assert tried[0] == PROBE_SWEEPS
    assert (len(set(tried)) > 1) == (promising > phases.PROMISING)


def test_the_second_thread_starts_from_the_best_plan_with_another_placement(monkeypatch):
    begun = []
    usual = PhasedSearch._run_phase

    def watch(search, states, steps, end):
        begun.append(states)
        return usual(search, states, steps, end)

    monkeypatch.setattr(PhasedSearch, "_run_phase", watch)
    monkeypatch.setattr(PhasedSearch, "_balance", lambda *_: [])
    problem = Problem(branches(), gpus(3, b1=0.5))
    plans = tuple(place(problem, name).plan for name in ("heft", "m-topo", "single"))
    search_of(problem, "heft", plans, Stop(1.0, clock=ticking(0.01))).run()
    device = [state.device[state.level.group].tolist() for state in begun[0]]
    assert device == [plans[0].device.tolist(), plans[1].device.tolist()]
