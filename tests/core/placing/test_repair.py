"""Plans that exceed memory, and the time to make them fit."""

import itertools

import numpy as np
import pytest
from tests.core.placers.problems import gpus, line

from benchmarks.planted import planted
from enplace.machine import simulate
from enplace.placing import fitting, registry, repair
from enplace.placing.options import PlaceOptions
from enplace.placing.packing import Packing
from enplace.placing.run import FOUND_NO_FIT, NO_FIT_IN_TIME, place
from enplace.placing.stop import Stop
from enplace.placing.stopwatch import Stopwatch
from enplace.values.plan import Plan
from enplace.values.problem import Problem

LIMIT_S = 10.0


@pytest.fixture
def too_full(monkeypatch):
    """A problem, and a registered method that puts all of it on one GPU, where it does not fit."""

    def run(problem, options):
        n_ops = problem.profile.n_ops
        return Plan(np.zeros(n_ops, dtype=np.int64), np.arange(n_ops), "full")

    capabilities = frozenset({registry.MEMORY})
    monkeypatch.setitem(
        registry._registry, "full", registry.Placer("full", "", "", run, capabilities=capabilities)
    )
    return Problem(line([1.0] * 21, [], persistent=[6] * 21), gpus(2, capacity=63))


@pytest.mark.parametrize(("needed_s", "begun"), [(5.4, True), (5.6, False)])
def test_a_repair_is_begun_only_if_there_is_time(monkeypatch, too_full, needed_s, begun):
    now_s, repairs = iter([0.0, 0.0]), []
    options = PlaceOptions(stop=Stop(LIMIT_S, clock=Stopwatch(lambda: next(now_s, 0.5 * LIMIT_S))))
    monkeypatch.setattr(repair, "MERGE_OP_S", needed_s / too_full.profile.n_ops)
    monkeypatch.setattr(
        repair, "_with_blocks_moved", lambda *given: repairs.append(given) or iter(())
    )
    monkeypatch.setattr(fitting, "pack", lambda problem, stop: Packing())
    plan = place(too_full, "full", options=options).plan
    assert len(repairs) == begun
    assert plan.note == (FOUND_NO_FIT if begun else NO_FIT_IN_TIME)


def test_that_nothing_fits_is_proven_for_the_step_time(too_full):
    found = place(too_full, "full")
    assert (
        found.schedule.fit_verdict == "Does not fit, proven for every plan that keeps what ops make"
    )


def test_moves_of_a_repair_end_with_the_time(monkeypatch, too_full):
    def step(state, seed, share, stop):
        while not stop[0]:
            pass
        seeds.append(seed)
        return state

    seeds, clock = [], itertools.count()
    monkeypatch.setattr(repair, "blocks_step", lambda links, rounds: step)
    options = PlaceOptions(stop=Stop(9.0, clock=Stopwatch(lambda: next(clock))))
    full = simulate(too_full, registry.placers()["full"].run(too_full, options))
    assert repair.rearrange(full, options) is full
    assert len(seeds) == 1


@pytest.fixture(scope="module")
def one_sided():
    """A schedule of 2,000 ops on one of four GPUs that together have 2 % of memory to spare."""
    problem = planted(2000, 4, 4, span=200, transfer_us=300, spare=0.02).problem
    order = np.empty(2000, dtype=np.int64)
    order[problem.profile.topological_order] = np.arange(2000)
    return simulate(problem, Plan(np.zeros(2000, dtype=np.int64), order, "one"))


def test_ops_placed_afresh_fit_in_tight_memory(one_sided):
    assert not one_sided.fits
    found = repair.place_afresh(one_sided, PlaceOptions())
    assert found.fits
    assert found.plan.method == "one"


def test_ops_are_not_placed_afresh_without_time(one_sided):
    cancelled = PlaceOptions(stop=Stop(cancelled=lambda: True))
    assert repair.place_afresh(one_sided, cancelled) is one_sided
    clock = iter([0.0])
    late = PlaceOptions(stop=Stop(1.0, clock=Stopwatch(lambda: next(clock, 1.0))))
    assert repair.place_afresh(one_sided, late) is one_sided
