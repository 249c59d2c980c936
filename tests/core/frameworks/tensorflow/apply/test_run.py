"""Plans run exactly as planned on two logical CPUs and do not change the results."""

import re
from dataclasses import replace
from itertools import chain, count
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from enplace.cli.runs import describe_run
from enplace.errors import DeadlockError
from enplace.frameworks.measured import NOT_SEEN, run_from, run_message
from enplace.frameworks.source import source_of
from enplace.frameworks.tensorflow.apply import run as running
from enplace.frameworks.tensorflow.apply.run import TRACED, RunError, run_plan
from enplace.frameworks.tensorflow.devices import DevicesError, parse_devices
from enplace.frameworks.tensorflow.measure.profile import graph_profile
from enplace.frameworks.tensorflow.open.load import load
from enplace.placers import place
from enplace.values.problem import Problem
from steps import STYLES, problem_of, scattered_plan

N_STEPS = 20


@pytest.fixture(scope="module")
def two_cpus():
    return parse_devices("cpu:2")


def assert_same_result(run):
    assert run.ops_checked > 100
    assert run.ops_on_planned_device == run.ops_checked
    assert run.order_violations == 0
    assert run.loss_difference == 0.0
    assert run.weights_difference == 0.0


def assert_exact(run):
    assert_same_result(run)
    assert len(run.step_times_us) == N_STEPS
    assert min(run.step_time_us, run.stock_step_time_us, run.predicted_step_time_us) > 0


def test_a_run_reports_what_the_allocators_held_where_they_say_so(all_steps, two_cpus, monkeypatch):
    monkeypatch.setattr(running, "peak_bytes", lambda traces: {"/device:CPU:1": 7, "": 9})
    step = all_steps[next(iter(STYLES))]
    problem = problem_of(step, two_cpus.cluster)
    run = run_plan(step, problem, scattered_plan(problem), two_cpus, 1, compare=False)
    assert run_from(run_message(run), problem).allocator_peak_bytes == {"CPU:1": 7}
    assert (run.busy_us > 0).all()


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("policy", ["strict", "priority"])
def test_a_scattered_plan_runs_exactly_as_planned(style, policy, all_steps, two_cpus):
    step = all_steps[style]
    problem = problem_of(step, two_cpus.cluster)
    plan = scattered_plan(problem, policy=policy)
    run = run_plan(step, problem, plan, two_cpus, N_STEPS)
    assert_exact(run)
    assert run.facts["ordered"]
    assert run.facts["order_edges"] > 30
    assert set(np.unique(run.op_device)) == {NOT_SEEN, 0, 1}
    assert run.facts["not_in_plan"]["count"] == 0


@pytest.mark.parametrize("style", STYLES)
def test_the_plan_of_a_placer_runs_exactly_as_planned(style, all_steps, two_cpus):
    step = all_steps[style]
    problem = problem_of(step, two_cpus.cluster)
    assert_exact(run_plan(step, problem, place(problem, "heft").plan, two_cpus, N_STEPS))


def test_results_on_gpus_are_compared_with_deterministic_kernels(all_steps, two_cpus, monkeypatch):
    monkeypatch.setattr(running, "_uses_gpus", lambda plan, cluster: True)
    step = all_steps["custom"]
    problem = problem_of(step, two_cpus.cluster)
    run = run_plan(step, problem, scattered_plan(problem), two_cpus, 2)
    assert_same_result(run)
    assert run.as_planned
    assert "those of further steps with deterministic kernels" in describe_run(run, "gpu:2")

    def refuse(*arguments):
        running.disable_op_determinism()
        monkeypatch.setattr(running, "_run_part", usual)
        raise RunError("TensorFlow refuses the graph: no deterministic GPU kernel of Segment")

    usual = running._run_part
    monkeypatch.setattr(
        tf.config.experimental,
        "enable_op_determinism",
        lambda: monkeypatch.setattr(running, "_run_part", refuse),
    )
    run = run_plan(step, problem, scattered_plan(problem), two_cpus, 2)
    assert run.rounds
    assert run.as_planned
    assert run.first_step_difference == 0
    # A difference of the size of rounding is none that the plan has made.
    off = replace(run, loss_difference=1e-6, first_step_difference=5e-7)
    assert off.as_planned
    assert "(no deterministic GPU kernel of Segment)" in describe_run(off, "gpu:2")


def test_a_measured_run_is_complete_and_survives_encoding(all_steps, two_cpus):
    step = all_steps["custom"]
    problem = problem_of(step, two_cpus.cluster)
    plan = scattered_plan(problem)
    shares = []
    run = run_plan(step, problem, plan, two_cpus, 5, progress=lambda _, share: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    assert run.facts["traced_steps"] == TRACED
    ran = run.op_device != NOT_SEEN
    not_run = run.facts["not_run"]
    assert np.isfinite(run.op_time_us[ran]).all()
    assert (run.op_finish_us[ran] >= run.op_start_us[ran]).all()
    assert np.nanmin(run.op_start_us) == 0
    assert int((~ran).sum()) == not_run["count"]
    assert not_run["reasons"]["fed"] == 2
    assert sum(not_run["reasons"].values()) == not_run["count"]
    arrived = run_from(run_message(run), problem)
    assert arrived.to_json() == run.to_json()


def test_a_machine_that_slows_down_affects_all_three_variants_alike(
    all_steps, two_cpus, monkeypatch
):
    """With this clock every step takes 1 ms longer than the one before."""
    step = all_steps["custom"]
    problem = problem_of(step, two_cpus.cluster)
    ticks = chain.from_iterable((0, 1_000_000 * number) for number in count())
    clock = SimpleNamespace(perf_counter_ns=lambda: next(ticks), time_ns=lambda: 0)
    monkeypatch.setattr(running, "time", clock)
    run = run_plan(step, problem, scattered_plan(problem), two_cpus, N_STEPS)
    assert run.step_time_us == run.stock_step_time_us == run.facts["unplaced_step_time_us"]
    assert len(run.step_times_us) == N_STEPS


def test_a_model_that_fits_only_with_the_plan_is_not_compared(all_steps, two_cpus, monkeypatch):
    step = all_steps["custom"]
    problem = problem_of(step, two_cpus.cluster)

    class Small(running.OpenStep):
        """A session on a machine that has memory only for the placed graph."""

        def run(self, options=None, metadata=None):
            if not any(node.device for node in self.session.graph_def.node):
                raise tf.errors.ResourceExhaustedError(None, None, "out of memory")
            return super().run(options, metadata)

    monkeypatch.setattr(running, "OpenStep", Small)
    run = run_plan(step, problem, scattered_plan(problem), two_cpus, 5)
    assert run.facts["fits_without_plan"] is False
    assert np.isnan([run.stock_step_time_us, run.loss_difference, run.weights_difference]).all()
    assert len(run.step_times_us) == 5
    assert run.ops_on_planned_device == run.ops_checked


def test_an_unordered_run_fixes_only_the_devices(all_steps, two_cpus):
    step = all_steps["custom"]
    problem = problem_of(step, two_cpus.cluster)
    run = run_plan(step, problem, scattered_plan(problem), two_cpus, 5, ordered=False)
    assert run.facts["order_edges"] == 0
    assert not run.facts["ordered"]
    assert run.ops_on_planned_device == run.ops_checked
    assert run.loss_difference == 0.0


def test_ops_missing_from_the_plan_are_listed_and_still_run(all_steps, two_cpus):
    step = all_steps["custom"]
    known = problem_of(step, two_cpus.cluster)
    graph_def = type(step.graph_def)()
    graph_def.CopyFrom(step.graph_def)
    loss = step.losses[0].partition(":")[0]
    graph_def.node.add(name="doubled", op="AddV2", input=[loss, loss]).attr["T"].type = 1
    larger = replace(step, graph_def=graph_def, outputs=(*step.outputs, "doubled:0"))
    run = run_plan(larger, known, scattered_plan(known), two_cpus, 5)
    assert run.facts["not_in_plan"]["ops"] == ["doubled"]
    assert run.ops_on_planned_device == run.ops_checked


def test_a_strict_order_that_contradicts_the_graph_is_refused(all_steps, two_cpus):
    step = all_steps["custom"]
    problem = problem_of(step, two_cpus.cluster)
    plan = scattered_plan(problem, policy="strict")
    turned = replace(plan, position=plan.position[::-1].copy())
    with pytest.raises(DeadlockError, match="order"):
        run_plan(step, problem, turned, two_cpus, 5)


def test_a_repeated_run_shows_its_spread_and_the_time_outside_of_ops(all_steps, two_cpus):
    step = all_steps["fit"]
    problem = problem_of(step, two_cpus.cluster)
    run = run_plan(step, problem, scattered_plan(problem), two_cpus, 4, repeat=2)
    assert len(run.step_times_us) == 8
    assert_same_result(run)
    found = run.to_json()
    low, high = found["step_quartiles_us"]
    assert low <= run.step_time_us <= high
    for name, middle in (("unplaced", run.one_device_us), ("stock", run.stock_step_time_us)):
        low, high = run.facts[f"{name}_quartiles_us"]
        assert low <= middle <= high
    assert min(run.outside) >= 0
    assert max(run.outside) > 0
    text = describe_run(run, "cpu:2")
    assert text.count("half of the steps") == 3
    assert "before the first op" in text
    in_ops_us, predicted_us = run.in_ops_us
    assert in_ops_us > 0
    assert 10.0 * problem.profile.n_ops / 2 <= predicted_us <= run.predicted_step_time_us
    assert re.search(r"in ops, busiest device .* ms +predicted .* ms\n", text)
    assert re.search(r"between its ops .* ms +waits, .* work for \d+ transfers\n", text)


def test_a_run_says_that_its_batches_are_not_those_of_the_profile(all_steps, two_cpus):
    step = all_steps["fit"]
    half = [tuple(part[:4] for part in batch) for batch in step.batches]
    for profiled, about in ((step, ""), (replace(step, batches=half), "of the profile 4 × 4, 4")):
        problem = problem_of(profiled, two_cpus.cluster)
        run = run_plan(step, problem, scattered_plan(problem), two_cpus, 1, compare=False)
        assert about in run.about_batches
        assert bool(run.about_batches) == bool(about)


def test_a_run_says_that_its_ops_have_other_sizes_than_in_the_profile(all_steps, two_cpus):
    step = all_steps["fit"]
    profile = graph_profile(step, two_cpus)
    tensor_bytes = profile.tensor_bytes.copy()
    wider = int(tensor_bytes.argmax())
    tensor_bytes[wider] *= 2
    for each, about in (
        (profile, ""),
        (replace(profile, tensor_bytes=tensor_bytes), "1 op has another size than in the profile"),
    ):
        problem = Problem(each, two_cpus.cluster)
        run = run_plan(step, problem, scattered_plan(problem), two_cpus, 1, compare=False)
        assert about in run.about_batches
        assert bool(run.about_batches) == bool(about)


def test_missing_devices_are_named(all_steps, two_cpus):
    step = all_steps["custom"]
    problem = problem_of(step, replace(two_cpus.cluster, devices=_renamed(two_cpus.cluster)))
    with pytest.raises(DevicesError, match=r"/device:CPU:7 does not exist here"):
        run_plan(step, problem, scattered_plan(problem), two_cpus, 5)


def _renamed(cluster):
    first, second = cluster.devices
    return first, replace(second, name="CPU:7")


def test_a_graph_that_tensorflow_refuses_is_explained_in_one_line(all_steps, two_cpus):
    step = all_steps["custom"]
    problem = problem_of(step, two_cpus.cluster)
    broken = replace(step, targets=(*step.targets, "nothing"))
    with pytest.raises(RunError, match=r"^TensorFlow refuses the graph: .*nothing") as caught:
        run_plan(broken, problem, scattered_plan(problem), two_cpus, 5)
    assert "\n" not in str(caught.value)


def test_inference_is_compared_by_all_its_outputs(all_steps, two_cpus):
    step = replace(all_steps["custom"], losses=())
    problem = problem_of(step, two_cpus.cluster)
    run = run_plan(step, problem, scattered_plan(problem), two_cpus, 5)
    assert run.facts["compared"] == list(step.outputs)
    assert run.loss_difference == 0.0


def test_a_tf1_graph_with_a_loop_and_reference_variables_runs_as_planned(tmp_path, two_cpus):
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        v1.set_random_seed(1)
        x = v1.placeholder(tf.float32, (8, 4), "x")
        weight = v1.get_variable("weight", (4, 4), use_resource=False)
        _, h = tf.while_loop(lambda i, _: i < 3, lambda i, h: (i + 1, tf.tanh(h)), [0, x @ weight])
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.nn.l2_loss(h @ weight, name="loss"))
        v1.train.export_meta_graph(str(tmp_path / "model.meta"), graph=graph)
    step = load(source_of(str(tmp_path / "model.meta")))
    problem = problem_of(step, two_cpus.cluster)
    run = run_plan(step, problem, scattered_plan(problem, policy="strict"), two_cpus, N_STEPS)
    assert run.ops_on_planned_device == run.ops_checked > 20
    assert set(run.facts["not_run"]["reasons"]) <= {"fed", "a constant, copied to its consumers"}
    assert (run.order_violations, run.loss_difference, run.weights_difference) == (0, 0.0, 0.0)
