"""When a run stops; long kernels stop with it."""

import itertools

import numpy as np
import pytest
from tests.core.placers.problems import gpus, line

from enplace.coarsen import cpd_topo, group_graph
from enplace.errors import CancelledError
from enplace.machine import simulate
from enplace.placers import PlaceOptions, Stop
from enplace.placers.baechi.m_etf import earliest_first
from enplace.placers.celeritas import adjust
from enplace.placers.heft import list_schedule
from enplace.placing.candidates import best_that_fits
from enplace.placing.incumbents import BestSchedule, find_proof
from enplace.placing.stopwatch import Stopwatch
from enplace.values.plan import Plan
from enplace.values.problem import Problem

PROBLEM = Problem(line([1.0] * 3, []), gpus(2))
STOPPED = PlaceOptions(stop=Stop(cancelled=lambda: True))


def run_m_etf():
    earliest_first(PROBLEM, np.full(3, -1), STOPPED)


def run_heft():
    list_schedule(PROBLEM, np.ones(3), PROBLEM.unit, STOPPED)


def run_celeritas():
    graph = group_graph(PROBLEM, np.arange(3))
    adjust(PROBLEM, graph, cpd_topo(graph, np.zeros(0)), STOPPED)


@pytest.mark.parametrize("run", [run_m_etf, run_heft, run_celeritas])
def test_a_list_scheduler_can_be_cancelled_during_a_placement(run):
    with pytest.raises(CancelledError):
        run()


def test_the_flag_is_set_while_the_kernel_runs():
    looks = itertools.count()

    def run(stop):
        while not stop[0]:
            pass

    with pytest.raises(CancelledError):
        Stop(cancelled=lambda: next(looks) > 2).interrupt_if_cancelled(run)


@pytest.mark.parametrize(("seconds", "stopped"), [(9.9, False), (11.0, True)])
def test_the_bound_is_weaker_if_the_time_is_over(monkeypatch, seconds, stopped):
    flags = []
    monkeypatch.setattr(
        "enplace.bounds.proofs.lower_bound_us", lambda problem, stop: flags.append(stop[0]) or 1.0
    )
    now_s = iter([0.0])
    stopwatch = Stopwatch(lambda: next(now_s, seconds))
    assert find_proof(PROBLEM, PlaceOptions(stop=Stop(10.0, clock=stopwatch))) == (1.0, "")
    assert flags == [stopped]


def test_a_bound_that_is_under_way_ends_with_the_time(monkeypatch):
    clock = itertools.count()

    def find(problem, stop):
        while not stop[0]:
            pass
        return 1.0

    monkeypatch.setattr("enplace.bounds.proofs.lower_bound_us", find)
    options = PlaceOptions(stop=Stop(3.0, clock=Stopwatch(lambda: next(clock))))
    assert find_proof(PROBLEM, options) == (1.0, "")


def test_an_error_of_the_kernel_reaches_the_caller():
    with pytest.raises(ZeroDivisionError):
        Stop().interrupt_if_cancelled(lambda flag: 1 // 0)


def test_the_best_schedule_so_far_survives_cancelling():
    best = simulate(PROBLEM, Plan(np.zeros(3, dtype=int), np.arange(3), "heft"))

    def cancelled(memory_share):
        raise CancelledError("stopped")

    options = PlaceOptions()
    assert best_that_fits(PROBLEM, cancelled, options, BestSchedule(options, best)) is best
    with pytest.raises(CancelledError):
        best_that_fits(PROBLEM, cancelled, PlaceOptions())


def test_parts_of_a_run_stop_earlier_and_with_it():
    now_s, asked = iter([0.0]), []
    clock = Stopwatch(lambda: next(now_s, 4.0))
    stop = Stop(10.0, cancelled=lambda: bool(asked), clock=clock)
    assert [stop.left_s(), stop.within(0.5).left_s(), stop.until(5.0).left_s()] == [6.0, 3.0, 1.0]
    assert stop.limited(60.0) is stop
    assert Stop(clock=clock).limited(60.0).left_s() == 56.0
    assert stop.left_s(share=0.5) == 1.0
    assert not stop()
    assert stop.when(lambda: True)()
    asked.append("now")
    assert stop.until(None).within(0.5)()
    with pytest.raises(CancelledError):
        stop.check()
