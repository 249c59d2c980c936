"""The default method: beats quick methods, keeps its time limit, is repeatable, starts anywhere."""

import itertools
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from tests.core.placers.problems import gpus, line, problems
from tests.core.solvers.warm import warm_solvers
from tests.problems import cluster_of, profile_of, with_measured_links

from enplace.errors import CancelledError, EnplaceError
from enplace.machine import simulate
from enplace.placers import PlaceOptions, Stop, place, placers
from enplace.placers.enplace import search, starts
from enplace.placers.enplace.methods import LP_START, SEARCHES, STARTS
from enplace.placing.incumbents import BestSchedule, is_better
from enplace.placing.options import Progress
from enplace.placing.rebalance import TIE
from enplace.placing.stopwatch import Stopwatch
from enplace.readers import read_profile
from enplace.readers.clusters import presets
from enplace.readers.samples import samples
from enplace.values.constraints import Constraints
from enplace.values.problem import Problem
from properties import examples

ONE_ROUND = {"rounds": 1}


@examples(4)
@given(problem=problems())
@warm_solvers()
def test_enplace_is_never_worse_than_a_list_scheduler(problem):
    problem = with_measured_links(problem)  # no step takes longer to save transfers
    options = PlaceOptions(values=ONE_ROUND)
    ours = simulate(problem, place(problem, "enplace", options=options).plan)
    for name, other in placers("step-time").items():
        if "anytime" in other.capabilities or name == "scotch":
            continue
        theirs = simulate(problem, place(problem, name).plan)
        if theirs.fits:
            assert ours.fits
            assert ours.makespan_us <= theirs.makespan_us * (1 + TIE)


def branches(n=24, depth=6):
    """Return branches of unequal length that join at the end."""
    costs, edges = [5.0], []
    ends = []
    for branch in range(n):
        last = 0
        for step in range(depth):
            costs.append(3.0 + (7 * branch + 3 * step) % 11)
            edges.append((last, len(costs) - 1, 20))
            last = len(costs) - 1
        ends.append(last)
    costs.append(1.0)
    edges += [(end, len(costs) - 1, 20) for end in ends]
    return line(costs, edges)


def test_the_time_limit_is_kept():
    problem = Problem(branches(), gpus(3, b1=0.5))
    looks = itertools.count()
    stopwatch = Stopwatch(lambda: 0.02 * next(looks))  # a fake clock: 20 ms per look
    plan = place(problem, "enplace", options=PlaceOptions(stop=Stop(2.0, clock=stopwatch))).plan
    assert 2.0 <= plan.solve_seconds < 2.6


def test_the_time_limit_is_kept_where_nothing_fits_and_each_plan_takes_long(monkeypatch):
    seconds, looks = 0.0, itertools.count()

    def take_long(*given):
        nonlocal seconds
        seconds += 0.2
        return simulate(*given)

    monkeypatch.setattr("enplace.placers.enplace.phases.simulate", take_long)
    monkeypatch.setattr(search, "SMALL", 0)
    problem = Problem(branches(), gpus(3, b1=0.5, capacity=30))
    stopwatch = Stopwatch(lambda: seconds + 0.001 * next(looks))
    plan = place(problem, "enplace", options=PlaceOptions(stop=Stop(4.0, clock=stopwatch))).plan
    assert seconds > 1.0
    assert plan.solve_seconds < 5.0


@pytest.fixture
def slow_clock(monkeypatch):
    """A clock on which each quick method takes six seconds, and nothing else takes any time.

    The methods run one after another, or the clock would add up what they take side by side.
    """
    seconds = 0.0
    run = starts.run_method
    monkeypatch.setattr(starts, "THREADS", 1)

    def take_six_seconds(name, problem, options):
        nonlocal seconds
        seconds += 6.0
        options.stop.check()
        return run(name, problem, options)

    monkeypatch.setattr(starts, "run_method", take_six_seconds)
    return lambda: seconds


def test_methods_that_there_is_no_time_for_are_counted(slow_clock):
    options = PlaceOptions(stop=Stop(10.0, clock=Stopwatch(slow_clock)))
    plan = place(Problem(branches(), gpus(3, b1=0.5)), "enplace", options=options).plan
    later = len(["m-etf", *STARTS[2:], LP_START, *SEARCHES])
    assert plan.note == f"There was too little time for {later} methods and the search."


def _treat_as_large(patch):
    patch.setattr(starts, "LARGE", 1)
    patch.setattr(starts, "SMALL", 0)
    patch.setattr(search, "SMALL", 0)
    patch.setattr(search, "PHASE_S", 1e9)


@pytest.fixture
def large(monkeypatch):
    """A problem that is treated as one so large that there is no time to search it.

    Its links were measured: no step takes longer to save transfers.
    """
    _treat_as_large(monkeypatch)
    return with_measured_links(Problem(branches(), gpus(3, b1=0.5)))


@pytest.mark.parametrize("limit_s", [1.0, 7.0, 14.0])
def test_however_little_time_a_large_graph_gets_a_list_schedule(
    monkeypatch, large, slow_clock, limit_s
):
    monkeypatch.setattr("enplace.placing.incumbents._bound_s", lambda problem: 99.0)  # nor for that
    options = PlaceOptions(stop=Stop(limit_s, clock=Stopwatch(slow_clock)))
    plan = place(large, "enplace", options=options).plan
    list_schedule = place(large, "heft").plan
    assert simulate(large, plan).makespan_us <= simulate(large, list_schedule).makespan_us
    assert plan.solve_seconds <= max(6.0, 1.1 * limit_s)
    assert "methods and the search" in plan.note


def test_a_search_that_begins_from_a_plan_waits_for_no_method_beyond_the_limit(monkeypatch, large):
    seconds = 0.0

    def take_long(name, problem, options):
        nonlocal seconds
        while seconds < 60.0:
            options.stop.check()
            seconds += 0.1
        return run(name, problem, options)

    start, run = place(large, "round-robin").plan, starts.run_method
    monkeypatch.setattr(starts, "run_method", take_long)
    monkeypatch.setattr("enplace.placing.incumbents._bound_s", lambda problem: 99.0)  # no time
    options = PlaceOptions(stop=Stop(5.0, clock=Stopwatch(lambda: seconds)), start=start)
    plan = place(large, "enplace", options=options).plan
    assert plan.solve_seconds <= 5.5
    assert plan.acts_like(start)


def test_two_methods_are_tried_side_by_side_on_a_large_graph(monkeypatch, large):
    """The clock stands until both are under way, and then jumps to the end of the time limit."""
    alone_us = {m: place(large, m).schedule.makespan_us for m in ("heft", "m-etf")}
    both_run = threading.Barrier(2, timeout=600.0)  # ends a test that fails, however slow it is
    seconds, tried = 0.0, []
    run = starts.run_method

    def run_with_the_other(name, problem, options):
        nonlocal seconds
        tried.append(name)
        plan = run(name, problem, options)
        both_run.wait()
        seconds = 8.5
        return plan

    monkeypatch.setattr(starts, "run_method", run_with_the_other)
    options = PlaceOptions(stop=Stop(10.0, clock=Stopwatch(lambda: seconds)))
    found = place(large, "enplace", options=options)
    assert sorted(tried) == sorted(alone_us)
    assert found.schedule.makespan_us <= min(alone_us.values())
    later = len({*STARTS, LP_START} - {*alone_us})
    assert found.plan.note.startswith(f"There was too little time for {later} methods")


@examples(2)
@given(problem=problems())
def test_no_list_schedule_is_better_on_a_large_graph(problem):
    problem = with_measured_links(problem)
    with pytest.MonkeyPatch.context() as patch:
        _treat_as_large(patch)
        options = PlaceOptions(stop=Stop(1e6, clock=Stopwatch(lambda: 0.0)))
        ours = place(problem, "enplace", options=options).schedule
    for name in starts.STARTS:
        theirs = place(problem, name).schedule
        better = not ours.plan.nothing_fits and is_better(theirs, ours, margin=TIE)
        assert not better or BestSchedule(options, ours).is_close


def test_plans_that_exceed_memory_count_as_their_methods_repair_them(monkeypatch):
    """The best list schedule that fits at once takes 41.4 µs; m-sct's takes 39 once repaired."""
    _treat_as_large(monkeypatch)
    monkeypatch.setattr("enplace.placing.run.is_small", lambda problem: False)
    edges = [(0, 1, 12), (0, 2, 56), (1, 3, 34), (2, 4, 52), (2, 5, 34), (5, 6, 44), (6, 7, 26)]
    costs, held = [7, 7, 9, 2, 9, 1, 5, 1, 2, 3, 4], [30, 20, 40, 60, 90, 20, 50, 70, 80, 20, 40]
    profile = line(costs, [*edges, (5, 8, 54), (7, 9, 40), (8, 10, 0)], persistent=held)
    problem = with_measured_links(Problem(profile, gpus(2, b1=0.1, capacity=362)))
    options = PlaceOptions(stop=Stop(1e6, clock=Stopwatch(lambda: 0.0)))
    ours, theirs = (place(problem, name, options=options).schedule for name in ("enplace", "m-sct"))
    assert ours.fits
    assert ours.makespan_us <= theirs.makespan_us


def test_a_method_that_does_not_heed_the_limit_is_not_begun_near_it(monkeypatch, large):
    monkeypatch.setattr(starts, "UNCHECKED_OP_S", {"expert": 1.0})
    options = PlaceOptions(stop=Stop(60.0, clock=Stopwatch(lambda: 0.0)))
    plan = place(large, "enplace", options=options).plan
    assert plan.note == "There was too little time for 1 method and the search."


def test_a_method_that_is_cut_short_counts_with_its_best_plan_so_far(monkeypatch, large):
    monkeypatch.setattr(starts, "STARTS", ("single", "dpos"))
    monkeypatch.setattr(starts, "QUICKEST", ())
    first, second = (place(large, method).plan for method in ("single", "heft"))

    def cut_the_second_short(name, problem, options):
        if name != "dpos":
            return first
        options.progress(Progress(1.0, "a plan", incumbent=second))
        raise CancelledError

    monkeypatch.setattr(starts, "run_method", cut_the_second_short)
    monkeypatch.setattr(starts, "_on_fewer_gpus", lambda *given: ())
    found = place(large, "enplace", options=PlaceOptions(stop=Stop(60.0)))
    assert found.schedule.makespan_us <= simulate(large, second).makespan_us


def test_a_method_is_abandoned_while_there_is_time_to_simulate_its_plan(monkeypatch, large):
    seconds = 0.0

    def take_all_time(name, problem, options):
        nonlocal seconds
        while seconds < 10.0 and not options.stop.cancelled():
            seconds += 0.5
        ends.append(seconds)
        return run(name, problem, options.quiet)

    run, ends = starts.run_method, []
    monkeypatch.setattr(starts, "run_method", take_all_time)
    monkeypatch.setattr(starts, "THREADS", 1)
    monkeypatch.setattr(starts, "LAST_OP_S", 3.0 / large.profile.n_ops)
    start = place(large, "round-robin").plan
    options = PlaceOptions(stop=Stop(10.0, clock=Stopwatch(lambda: seconds)), start=start)
    place(large, "enplace", options=options)
    assert set(ends) == {7.0}  # some of the 10 s are kept for ties


@pytest.mark.parametrize("cost", ["OP_S", "OP_DEVICE_S"])
def test_a_time_limit_too_short_for_any_plan_is_refused(monkeypatch, cost):
    monkeypatch.setattr(starts, "LARGE", 10)
    monkeypatch.setattr(starts, cost, 1.0)
    problem = Problem(branches(), gpus(3, b1=0.5))
    with pytest.raises(EnplaceError, match="raise the time limit, or choose a method"):
        place(problem, "enplace", options=PlaceOptions(stop=Stop(2.0)))


def test_a_huge_graph_is_not_searched_without_the_time_for_it(monkeypatch):
    monkeypatch.setattr(search, "PHASE_S", 1.0)
    problem = Problem(branches(), gpus(3, b1=0.5))
    plan = place(problem, "enplace", options=PlaceOptions(stop=Stop(60.0))).plan
    assert plan.note == "There was too little time for the search."
    best_start = place(problem, "heft").plan
    assert simulate(problem, plan).makespan_us <= simulate(problem, best_start).makespan_us


def test_no_further_method_is_tried_once_a_plan_is_optimal(monkeypatch):
    tried = []
    run = starts.run_method
    monkeypatch.setattr(
        starts, "run_method", lambda name, *rest: tried.append(name) or run(name, *rest)
    )
    chain = Problem(line([1.0] * 20, [(i, i + 1, 1) for i in range(19)]), gpus(2))
    plan = place(chain, "enplace", options=PlaceOptions(stop=Stop(60.0))).plan
    assert (tried, plan.note) == (["single", "m-etf"], "")


def test_enplace_beats_the_list_schedules_it_starts_from():
    problem = Problem(branches(), gpus(3, b1=0.5))
    options = PlaceOptions(values=ONE_ROUND)
    ours = simulate(problem, place(problem, "enplace", options=options).plan)
    assert ours.makespan_us < simulate(problem, place(problem, "heft").plan).makespan_us


@pytest.fixture
def layers(monkeypatch):
    """Three layers of four ops in a row, each with a heavy input that an op before it makes."""
    monkeypatch.setattr(starts, "STARTS", ("single",))
    monkeypatch.setattr(starts, "LP_START", "single")
    monkeypatch.setattr(starts, "SEARCHES", ())
    monkeypatch.setattr(starts, "FEWER", ())
    monkeypatch.setattr(starts, "fillings", lambda *_: ())
    names = [f"layer_{i // 4}/op_{i}" for i in range(12)]
    inputs = [(f"{name}_input", name, 90) for name in names]
    times = dict.fromkeys([*names, *(source for source, _, _ in inputs)], 10.0)
    return profile_of(times, [(a, b, 1) for a, b in itertools.pairwise(names)] + inputs)


def test_layers_in_blocks_are_a_start(layers):
    problem = Problem(layers, cluster_of(3, shared=True))
    found = starts.find_start(problem, PlaceOptions()).best
    layer = [int(scope.removeprefix("layer_")) for scope in layers.scopes]
    assert found.plan.device.tolist() == [min(each, 1) for each in layer]
    assert found.makespan_us == 80 + 2 + 80  # with a third block it is 164


def test_all_blocks_are_a_start_though_lists_took_the_time(layers):
    problem = Problem(layers, cluster_of(3))
    clock = Stopwatch(itertools.chain([0.0], itertools.repeat(9.0)).__next__)
    found = starts.find_start(problem, PlaceOptions(stop=Stop(10.0, clock=clock))).best
    assert found.makespan_us == 162  # the least of all blocks, those that are tried last


def test_lists_for_fewer_gpus_are_a_start():
    problem = Problem(branches(8, 3), cluster_of(4), Constraints(pins={3: 3}))
    best = simulate(problem, place(problem, "single").plan)
    options = PlaceOptions()
    _, *plans = starts._on_fewer_gpus(problem, BestSchedule(options, best), options)
    used = [set(np.delete(plan.device, 3).tolist()) for plan in plans]
    assert used == [{0, 1}, {0, 1}, {0, 1, 2}, {0, 1, 2}]
    assert [plan.device[3] for plan in plans] == [3, 3, 3, 3]


def test_a_search_continues_from_a_given_plan():
    problem = Problem(branches(), gpus(3, b1=0.5))
    start = place(problem, "enplace", options=PlaceOptions(seed=5, values=ONE_ROUND)).plan
    reports = []
    options = PlaceOptions(start=start, progress=reports.append, values=ONE_ROUND)
    again = place(problem, "enplace", options=options).plan
    reached = simulate(problem, start).makespan_us
    assert (reports[0].objective_us, reports[0].engine) == (reached, "the plan given")
    assert reports[0].message == "the plan given"  # and not a better one
    assert "the plan given" not in [progress.engine for progress in reports[1:]]
    assert simulate(problem, again).makespan_us <= reached


def test_a_start_plan_is_adapted_to_new_pins():
    problem = Problem(branches(8, 3), gpus(3, b1=0.5))
    start = place(problem, "enplace", options=PlaceOptions(values=ONE_ROUND)).plan
    elsewhere = (int(start.device[5]) + 1) % 3
    pinned = Problem(problem.profile, problem.cluster, Constraints(pins={5: elsewhere}))
    options = PlaceOptions(start=start, values=ONE_ROUND)
    plan = place(pinned, "enplace", options=options).plan
    assert plan.device[5] == elsewhere


def test_the_search_respects_tight_memory():
    profile = line([10.0] * 12, [(i, i + 2, 1) for i in range(10)], persistent=[100] * 12)
    problem = Problem(profile, gpus(2, capacity=640))
    schedule = simulate(problem, place(problem, "enplace").plan)
    assert schedule.fits
    assert (schedule.peak_bytes > 0).all()


@pytest.mark.parametrize("seed", [0, pytest.param(2, marks=pytest.mark.long)])
def test_one_of_few_plans_that_fit_is_found(seed):
    """Few of the 256 placements of five ops on different devices fit, and no list schedule does."""
    names = [f"op{i}" for i in range(5)]
    held = dict(zip(names, [43, 26, 32, 44, 19], strict=True))
    profile = profile_of(
        dict(zip(names, [2.0, 1.0, 5.0, 0.0, 3.5], strict=True)),
        [("op1", "op4", 8), ("op2", "op4", 6), ("op3", "op4", 8)],
        control=[("op0", "op1"), ("op0", "op2"), ("op0", "op3")],
        persistent=held,
        temporary=dict(zip(names, [45, 7, 31, 5, 36], strict=True)),
    )
    cluster = cluster_of(3, speeds=(1.0, 0.5, 1.0), b1_us_per_byte=0.5)
    capacities = (150, 100, 60)
    devices = [
        replace(device, capacity_bytes=capacity_bytes)
        for device, capacity_bytes in zip(cluster.devices, capacities, strict=True)
    ]
    problem = Problem(profile, replace(cluster, devices=tuple(devices)), Constraints(pins={1: 1}))
    assert simulate(problem, place(problem, "enplace", options=PlaceOptions(seed=seed)).plan).fits


def test_enplace_is_no_worse_than_other_searches_on_small_problems():
    profile = line([float(3 + i % 7) for i in range(30)], [(i, i + 5, 3) for i in range(25)])
    problem = with_measured_links(Problem(profile, gpus(3, capacity=10**6)))
    ours = simulate(problem, place(problem, "enplace").plan).makespan_us
    for other in ("mcmc", "local-search"):
        assert ours <= simulate(problem, place(problem, other).plan).makespan_us


def test_moves_respect_pins_and_colocation():
    profile = branches(8, 3)
    together = tuple(range(1, 7))
    problem = Problem(profile, gpus(3, b1=0.5), Constraints(pins={10: 2}, together=(together,)))
    device = place(problem, "enplace").plan.device
    assert device[10] == 2
    assert len({int(device[op]) for op in together}) == 1


LARGE_SAMPLES = ("gpt-2", "llama-7b", "nasnet-4-212", "nmt-2-1024", "transformer-6-16-2048")
"""These take far longer than the others; the acceptance tests place them at every change."""


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(sample, marks=[pytest.mark.long] * (sample.name in LARGE_SAMPLES))
        for sample in samples()
    ],
    ids=lambda sample: sample.path.name,
)
def test_enplace_beats_the_expert_on_measured_profiles(sample):
    problem = Problem(read_profile(sample.path), presets()["pesto"])
    options = PlaceOptions(values={"rounds": 2})
    ours = simulate(problem, place(problem, "enplace", options=options).plan)
    hand = simulate(problem, place(problem, "expert").plan)
    assert ours.fits
    assert ours.makespan_us <= 0.95 * hand.makespan_us


def test_the_last_report_has_the_step_time_of_the_plan():
    problem = Problem(branches(), gpus(2, b1=0.5))
    reports = []
    options = PlaceOptions(progress=reports.append, values=ONE_ROUND)
    plan = place(problem, "enplace", options=options).plan
    last = [report for report in reports if report.incumbent is not None][-1]
    assert last.objective_us == simulate(problem, plan).makespan_us
    assert np.array_equal(last.incumbent.device, plan.device)
    assert plan.method == "enplace"


COMPILED = """
import sys, warnings
from numba.core.dispatcher import Dispatcher
from enplace.machine import critical_path
from enplace.readers.clusters import presets
from enplace.placers import PlaceOptions, place
from enplace.placers.enplace.kernels import load_all_kernels
from enplace.readers import read_profile
from enplace.values.problem import Problem
from enplace.values.profile import make_profile
from enplace.readers.samples import samples

def compiled():
    modules = [module for name, module in sys.modules.items() if name.startswith("enplace")]
    loops = {v for m in modules for v in vars(m).values() if isinstance(v, Dispatcher)}
    return {(loop.__name__, str(kinds)) for loop in loops for kinds in loop.signatures}

warnings.simplefilter("ignore")
load_all_kernels(lambda message: None)
known = compiled()
one_round = PlaceOptions(values={"rounds": 1})
profiles = sorted((read_profile(sample.path) for sample in samples()), key=lambda p: p.n_ops)
for profile in profiles[:2]:
    found = place(Problem(profile, presets()["celeritas"]), "enplace", options=one_round)
    critical_path(found.schedule)  # as a window does with each plan
# Two ops that are merged to one, and would be faster apart, were it not for the transfer.
pair = make_profile(
    "pair", op_names=["a", "b"], op_types=["Op"] * 2, scopes=[""] * 2,
    time_us=[[30.0, 900.0], [300.0, 90.0]], persistent_bytes=[0, 0], temporary_bytes=[0, 0],
    colocation=[""] * 2, edge_source=[0], edge_output=[0], edge_op=[1], edge_bytes=[20 << 20],
)
place(Problem(pair, presets()["pesto"]), "enplace", options=one_round)
print(len(known), sorted(compiled() - known))
"""


def test_nothing_is_compiled_during_the_search():
    """On a machine that has never run the method, everything is compiled before the search."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, check=True
    )
    n_known, new = done.stdout.split(maxsplit=1)
    assert int(n_known) > 20
    assert new.strip() == "[]"


def test_a_method_that_fails_is_left_out_and_named(monkeypatch):
    """One quick method may fail; the others still find a plan."""
    problem = Problem(line([3.0, 4.0] + [5.0] * 18, [(0, 2, 1), (1, 2, 1)]), gpus(20))

    def fails(problem, options):
        raise EnplaceError("it is broken")

    known = placers() | {"m-etf": replace(placers()["m-etf"], run=fails)}
    monkeypatch.setattr("enplace.placers.enplace.methods.placers", lambda: known)
    plan = place(problem, "enplace").plan
    assert simulate(problem, plan).makespan_us <= 12
    assert plan.note == "Left out: m-etf (it is broken)."


@pytest.mark.parametrize(("share", "n_asked"), [(1.05, 1), (3.0, 0)])
def test_merged_ops_are_placed_where_a_plan_fills_much_of_the_memory(monkeypatch, share, n_asked):
    asked = []
    monkeypatch.setattr(starts, "place_afresh", lambda best, options: asked.append(best) or best)
    roomy = Problem(branches(), gpus(3, b1=0.5))
    most = starts.find_start(roomy, PlaceOptions()).best.peak_bytes[:3].max()
    assert not asked
    starts.find_start(
        Problem(branches(), gpus(3, b1=0.5, capacity=int(share * most))), PlaceOptions()
    )
    assert len(asked) == n_asked
