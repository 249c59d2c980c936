"""Estimate the costs of a large batch from small ones, by hand and from start to end."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enplace.errors import FileError, ProfileError
from enplace.frameworks.evaluation import advice, deviations, estimate, evaluate, extrapolated
from enplace.frameworks.measured import MeasuredRun, run_message
from enplace.frameworks.source import Source
from enplace.machine import simulate
from enplace.processes.codecs import plan_from, problem_from, profile_from, profile_message
from enplace.values.measurement import Deviation, Evaluation, Measurement
from problems import cluster_of, profile_of

NAN = float("nan")
SOURCE = Source("/models/train.py", "script", ("--batch", "{batch}"), batch_size=32)


def profile_of_batch(size, unknown=False, **more):
    """Return a -> b -> c: a takes 10 + 2 per sample and sends 100 bytes per sample, b takes 5."""
    sent = 0 if unknown else 100 * size
    profile = profile_of(
        {"a": 10.0 + 2 * size, "b": 5.0},
        [("a", "b", sent), ("b", "c", 8)],
        cpu={"c": 1.0 * size},
        temporary={"b": 7 * size},
        persistent={"a": 64},
    )
    object.__setattr__(profile, "measured", Measurement(cluster=cluster_of(2, cpu_lanes=1)))
    return profile


def test_costs_follow_the_fitted_lines():
    sizes = (4, 8, 16)
    found = estimate(
        profile_of_batch(32, unknown=True), [profile_of_batch(n) for n in sizes], sizes, 32
    )
    truth = profile_of_batch(32)
    np.testing.assert_allclose(found.time_us, truth.time_us)
    assert found.temporary_bytes.tolist() == truth.temporary_bytes.tolist()
    assert found.tensor_bytes.tolist() == truth.tensor_bytes.tolist()
    assert found.persistent_bytes.tolist() == truth.persistent_bytes.tolist()


def small_batches(*n_bytes):
    return [profile_of({"a": n, "b": 1}, [("a", "b", n)]) for n in n_bytes]


def test_tensor_sizes_follow_a_line_too():
    graph = profile_of({"a": 1, "b": 1}, [("a", "b", 75)])
    assert estimate(graph, small_batches(10, 20), (1, 2), 8).tensor_bytes.tolist() == [80]


def test_a_model_that_does_not_follow_the_batch_size_is_refused():
    """The data may have too few samples, or the model may ignore the option."""
    graph = profile_of({"a": 1, "b": 1}, [("a", "b", 20)])
    with pytest.raises(ProfileError, match="should hold 80 B but hold 20 B"):
        estimate(graph, small_batches(10, 20), (1, 2), 8)
    with pytest.raises(ProfileError, match="as much memory with a batch of 1 as with one of 2"):
        estimate(graph, small_batches(20, 20), (1, 2), 8)


def test_a_graph_that_depends_on_the_batch_size_is_refused():
    small = [profile_of({"a": 1.0}), profile_of({"a": 1.0, "tail": 1.0})]
    with pytest.raises(ProfileError, match="'tail' are not in the graphs of all batch sizes"):
        estimate(profile_of({"a": 1.0}), small, (1, 2), 8)


@given(
    st.lists(st.integers(1, 64), min_size=2, max_size=5, unique=True).map(sorted),
    st.floats(0, 1e6),
    st.floats(0, 1e4),
)
def test_an_exact_line_is_recovered(sizes, at_0, slope):
    values = np.array([[at_0 + slope * size] for size in sizes])
    assert extrapolated(sizes, values, 1000)[0] == pytest.approx(at_0 + slope * 1000, rel=1e-6)


def test_no_line_falls_and_missing_values_are_skipped():
    values = np.array([[9.0, NAN, NAN], [8.0, 4.0, NAN], [10.0 - 4.0, 6.0, NAN]])
    falling, two_points, nowhere = extrapolated((1, 2, 3), values, 10)
    assert falling == pytest.approx(values[:, 0].mean())
    assert two_points == pytest.approx(20.0)
    assert np.isnan(nowhere)


class Worker:
    """A fake TensorFlow worker; a batch of 32 takes more time and memory than estimated."""

    def __init__(self):
        self.asked = []

    def __call__(self, messages, report):
        job = messages[-1]
        self.asked.append(job.details)
        report("Measuring", 0.5)
        size = job.details["source"]["batch_size"]
        if job.do == "profile":
            return profile_message(profile_of_batch(size, unknown=size == 32), "done")
        problem = problem_from(profile_from(messages[0]), job.details["problem"])
        plan = plan_from(job)
        schedule = simulate(problem, plan)
        n = problem.profile.n_ops
        return run_message(
            MeasuredRun(
                problem.profile,
                plan,
                problem.cluster,
                step_times_us=np.full(5, 200.0),
                op_time_us=1.25 * (schedule.op_finish_us - schedule.op_start_us),
                op_start_us=schedule.op_start_us.copy(),
                op_finish_us=schedule.op_finish_us.copy(),
                op_device=plan.device.copy(),
                op_memory_bytes=np.array([3200, 240, 0]),
                ops_checked=n,
                ops_on_planned_device=n,
                order_violations=0,
                predicted_step_time_us=schedule.makespan_us,
            )
        )


def test_a_large_batch_is_estimated_from_start_to_end():
    worker, reports = Worker(), []
    profile = evaluate(
        SOURCE, (4, 8, 16), "gpu:2", 20, 2, worker, lambda *report: reports.append(report)
    )
    assert [details["source"]["batch_size"] for details in worker.asked] == [4, 8, 16, 32, 32]
    assert [details["steps"] for details in worker.asked] == [20, 20, 20, 0, 5]
    assert worker.asked[-1]["compare"] is False
    shares = [share for _, share in reports]
    assert shares == sorted(shares)
    assert reports[0][0] == "Batch 4: Measuring"
    # The final costs are those measured in the steps across the devices.
    np.testing.assert_allclose(profile.time_us, 1.25 * profile_of_batch(32).time_us)
    found = profile.measured.evaluation
    assert found.time.mean == pytest.approx(0.2)
    assert found.memory.mean == pytest.approx((0 + 8 / 240) / 2)
    assert found.memory.near == 1.0
    assert (found.batch_size, found.batch_sizes) == (32, (4, 8, 16))
    assert found.step_time_us == 200.0


@pytest.mark.parametrize(
    ("source", "sizes", "message"),
    [
        (Source("t.py", "script", ("--batch", "8"), batch_size=32), (4, 8), "take its batch size"),
        (SOURCE, (8,), "at least two smaller ones"),
        (SOURCE, (8, 32), "others below that"),
        (Source("m.keras", "keras"), (8, 16), "its own batch size"),
    ],
)
def test_useless_batch_sizes_are_refused_before_anything_runs(source, sizes, message):
    worker = Worker()
    with pytest.raises(FileError, match=message):
        evaluate(source, sizes, "gpu:2", 20, 2, worker, lambda *report: None)
    assert not worker.asked


def test_without_measurements_there_is_no_deviation():
    profile = profile_of_batch(4)
    none = np.full(3, NAN)
    run = MeasuredRun(
        profile,
        None,
        cluster_of(2, cpu_lanes=1),
        np.ones(1),
        none,
        none.copy(),
        none.copy(),
        np.full(3, -1),
        np.zeros(3, dtype=np.int64),
    )
    _, time = deviations(run)
    assert time.ops == 0


def test_advice_covers_poor_estimates_and_batches_that_fit_one_device():
    exact, near, far = (Deviation(mean, 0.0, 1.0, ops=3) for mean in (0.0, 0.2, 0.35))
    found = Evaluation(exact, near, 32, (8, 16), devices_used=2, step_time_us=100.0)
    assert advice(found) == []
    (line,) = advice(replace(found, time=far))
    assert line.startswith("The estimated times are 35.0 % off on average")
    assert "memory" in line
    (line,) = advice(replace(found, time=far, memory=far))
    assert "memory" not in line
    (line,) = advice(replace(found, devices_used=1))
    assert "measured directly" in line


def test_legal_splits_are_those_of_the_large_batch():
    def with_lengths(size):
        return replace(
            profile_of_batch(size), measured=Measurement(split_lengths={"a": {"batch": size}})
        )

    sizes = (4, 8)
    found = estimate(with_lengths(30), [with_lengths(n) for n in sizes], sizes, 30)
    assert found.measured.split_lengths == {"a": {"batch": 30}}
