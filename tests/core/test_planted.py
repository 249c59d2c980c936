"""Planted problems: the planted plan is feasible and takes as long as the work of each device."""

import csv

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks import planted as benchmark
from benchmarks import report
from benchmarks.planted import BRANCHES, HEADS, RECURRENCES, Case, planted
from enplace.bounds.step_time import lower_bound_us
from enplace.machine import simulate


# An op that sends to two devices over one channel.
@example(5, 3, 2.0, 1.0, 2, 10.0, 1, "", 1.0, True, np.inf, 0)
@given(
    st.integers(1, 20),
    st.integers(1, 4),
    st.floats(0.5, 6.0),
    st.floats(0.0, 1.0),
    st.integers(1, 50),
    st.floats(10.0, 2000.0),
    st.integers(1, 3),
    st.sampled_from(["", RECURRENCES, BRANCHES, HEADS]),
    st.sampled_from([1.0, 3.0]),
    st.booleans(),
    st.sampled_from([np.inf, 0.1]),
    st.integers(0, 99),
)
def test_the_planted_plan_keeps_every_device_busy_to_the_end(
    each,
    n_gpus,
    degree,
    crossing,
    span,
    transfer_us,
    copies,
    structure,
    spread,
    shared,
    spare,
    seed,
):
    found = planted(
        each * n_gpus * copies,
        n_gpus,
        degree,
        crossing=crossing,
        span=span,
        transfer_us=transfer_us,
        copies=copies,
        structure=structure,
        spread=spread,
        shared=shared,
        spare=spare,
        seed=seed,
    )
    schedule = simulate(found.problem, found.plan)
    assert schedule.fits
    assert schedule.makespan_us == pytest.approx(found.best_us)
    assert np.allclose(schedule.busy_us, found.best_us)
    assert lower_bound_us(found.problem) <= found.best_us * (1 + 1e-9)


def test_the_benchmark_reports_and_draws_the_distance_to_the_optimum(monkeypatch, tmp_path):
    monkeypatch.setattr(benchmark, "CASES", (Case(24, 2, 2, 0.3, 5, 50, copies=2),))
    monkeypatch.setattr(benchmark, "QUICK_S", 1.0)
    monkeypatch.setattr(report, "ROOT", tmp_path)
    made = report.Report("planted", "Planted optima", "Simulated.", quick=True)
    benchmark.main(made)
    made.write(0.1, 0.0)
    page = (tmp_path / "build" / "benchmarks.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith("| 24 x 2"))
    gaps = [float(cell) for cell in row.strip("|").split("|")[1:]]
    assert min(gaps) >= 0.0
    with (tmp_path / "build" / "benchmarks" / "planted.csv").open() as file:
        looks = list(csv.DictReader(file))
    assert float(looks[-1]["above_optimum"]) == pytest.approx(gaps[-1] / 100, abs=1e-4)
    assert (tmp_path / "build" / "benchmarks" / "planted.svg").read_text().startswith("<?xml")
