"""What would make a model fit: changes, their plans, and what they cost."""

import time
from dataclasses import replace

import numpy as np
import pytest

import enplace as ep
from enplace.cli.answer import NO, YES
from enplace.errors import EnplaceError
from enplace.inputs import make_roomy_problem, usual_method
from enplace.machine.op_passes import state_bytes
from enplace.mends import search
from enplace.mends.changes import larger_than, list_ladders
from enplace.mends.search import Row
from enplace.placers import PlaceOptions, Stop
from enplace.placing.stopwatch import Stopwatch
from enplace.readers import read_plan
from enplace.readers.archive import read_project
from enplace.values.cluster import Device
from enplace.values.cluster_variants import THROUGH_HOST, boundless, with_gpus, with_host
from enplace.values.measurement import Measurement
from enplace.values.problem import STEP_TIME, Problem
from problems import cluster_of, profile_of

KB, LAYERS, BATCH = 1000, 4, 8


def training_step(weights=100):
    """Return layers that keep 80 kB for a batch of 8 each, their gradients and updates."""
    edges, persistent, types = [], {}, {"x": "IteratorGetNext"}
    before = "x"
    for i in range(LAYERS):
        types |= {f"w{i}": "VariableV2", f"h{i}": "Relu"}
        persistent[f"w{i}"] = weights
        edges += [(before, f"h{i}", 80 * KB), (f"w{i}", f"h{i}", weights)]
        before = f"h{i}"
    behind = before
    for i in reversed(range(LAYERS)):
        back = f"gradients/h{i}"
        types |= {back: "ReluGrad", f"gradients/w{i}": "BiasAddGrad"}
        types[f"update/w{i}"] = "ApplyGradientDescent"
        edges += [(behind, back, 80 * KB), (f"h{i}", back, 80 * KB)]
        edges += [(back, f"gradients/w{i}", 80 * KB), (f"gradients/w{i}", f"update/w{i}", weights)]
        edges += [(f"w{i}", f"update/w{i}", weights)]
        behind = back
    profile = profile_of(
        dict.fromkeys(types, 100.0),
        list(dict.fromkeys(edges)),
        persistent=persistent,
        cpu={f"w{i}": 1.0 for i in range(LAYERS)},
    )
    measured = Measurement(config={"batch": BATCH}, launch_gap_us=1.0)
    kinds = tuple(types[name] for name in profile.op_names)
    return replace(profile, op_types=kinds, measured=measured)


def fit(profile, cluster):
    """Do as ``ep.fit`` does, by CPU time: a busy machine then finds as much."""
    problem, machine = make_roomy_problem(profile, cluster)
    options = PlaceOptions(STEP_TIME, Stop(clock=Stopwatch(time.process_time)))
    return search.find_fit(problem, machine, usual_method, options, 0.05)


def row(found, name):
    return next(each for each in found.rows if each.change.key == name)


def test_a_model_that_fits_needs_nothing_and_its_free_memory_is_said():
    found = fit(training_step(), cluster_of(1, capacity_bytes=1 << 30))
    assert found.fits
    assert len(found.rows) == 1
    assert "has 1.0 GiB free" in found.headline


@pytest.fixture(scope="module")
def ways():
    """Return what makes the step fit one card with 60 % of the memory that it needs."""
    return fit(training_step(), cluster_of(1, capacity_bytes=240 * KB))


def test_each_change_that_fits_has_a_plan_within_the_memory_of_its_machine(ways):
    assert not ways.fits
    for each in ways.rows:
        if each.fits:
            assert (each.result.schedule.peak_bytes <= each.cluster.capacity_bytes).all()
            assert each.batch_us >= ways.best_us
    smaller = next(each for each in ways.rows if each.fits and each.change.key.startswith("batch"))
    assert smaller.batch_us == pytest.approx(smaller.step_us / smaller.change.share)
    more = next(each for each in ways.rows if each.change.key == "2-gpus")
    assert "assumed" in more.change.about


def test_what_is_fastest_comes_first_and_no_way_is_left_out_because_another_fits(ways):
    times = [each.batch_us for each in ways.rows[1:] if each.fits]
    assert times == sorted(times)
    fits = [each.fits for each in ways.rows[1:]]
    assert fits == sorted(fits, reverse=True)
    assert {"recompute", "offload", "offload-recompute"} <= {each.change.key for each in ways.rows}
    two = fit(training_step(), cluster_of(2, capacity_bytes=200 * KB))
    assert {"recompute", "pipeline-recompute"} <= {each.change.key for each in two.rows}


@pytest.mark.parametrize(
    ("times", "tried"), [((9, 7, 8, 1), 3), ((9, 9, 1, 1), 2), ((0, 9, 8, 7), 4)]
)
def test_smaller_parts_are_tried_as_long_as_they_get_faster(monkeypatch, times, tried):
    """A time of 0 stands for a change with which nothing fits."""
    each = dict(zip((2, 4, 8, 16), times, strict=True))

    def row(change, method, options):
        us = each.get(change.steps, 0)
        return Row(change, None, None, us > 0, False, "", float(us) if us else np.nan)

    monkeypatch.setattr(search, "_try", row)
    step = training_step()
    step = replace(step, measured=replace(step.measured, config={"batch": 16}))
    narrow = cluster_of(1, capacity_bytes=KB)
    asked = PlaceOptions(STEP_TIME, Stop())
    rows = search.list_rows(Problem(step, boundless(narrow)), narrow, lambda _: "", asked)
    assert len([found for found in rows if found.change.steps > 1]) == tried


def test_of_accumulated_steps_only_the_last_changes_the_weights(ways):
    parts = [each for each in ways.rows if each.change.steps > 1]
    least = next(each for each in parts if each.fits)
    n, step_us = least.change.steps, least.result.value_us
    updates_us = LAYERS * 100
    assert n * step_us > least.batch_us >= n * step_us - (n - 1) * updates_us - 1


def test_sums_of_gradients_take_memory_when_they_are_accumulated():
    found = fit(training_step(weights=KB), cluster_of(1, capacity_bytes=300 * KB))
    parts = next(each for each in found.rows if each.fits and each.change.steps > 1)
    alone = row(found, f"batch-{BATCH // parts.change.steps}")
    kept = parts.result.schedule.problem.profile.persistent_bytes.sum()
    plain = alone.result.schedule.problem.profile.persistent_bytes.sum()
    assert kept - plain == LAYERS * KB


def test_variables_that_are_too_large_are_a_proof_and_more_cards_are_the_mend():
    found = fit(training_step(weights=90 * KB), cluster_of(2, capacity_bytes=150 * KB))
    assert found.rows[0].verdict == "no, proven: variables"
    assert found.rows[0].result is None
    with pytest.raises(EnplaceError, match="has no plan"):
        found.save_row(1, "unused")
    with pytest.raises(EnplaceError, match="there is no row 99"):
        found.row(99)
    assert any(each.fits and "gpus" in each.change.key for each in found.rows)
    assert row(found, "host").cluster.devices[-1].kind == "cpu"


def test_variables_that_only_gpus_may_hold_and_are_too_large_for_them_leave_other_changes():
    profile = training_step(weights=90 * KB)
    profile = profile.with_costs(np.where([True, False], profile.time_us, np.nan))
    found = fit(profile, cluster_of(2, capacity_bytes=150 * KB))
    assert row(found, "offload").verdict == "no, proven: variables"
    assert any(each.fits and "gpus" in each.change.key for each in found.rows)


def with_states(profile, framework, update):
    """Return a step whose updates are of some type, with states that its variables hold."""
    types = [update if kind == "ApplyGradientDescent" else kind for kind in profile.op_types]
    held = np.where(profile.persistent_bytes > 0, 80 * KB, 0)
    return replace(
        profile,
        op_types=tuple(types),
        op_kinds=tuple("update" if kind == update else "" for kind in types),
        op_passes=tuple("update" if kind == update else "" for kind in types),
        persistent_bytes=profile.persistent_bytes + held,
        state_bytes=held,
        measured=replace(profile.measured, framework=framework),
    )


def states_row(profile):
    problem, options = Problem(profile, cluster_of(1)), PlaceOptions(STEP_TIME)
    changes = [c for ladder in list_ladders(problem, problem.cluster, options) for c in ladder]
    return next((each for each in changes if each.key.startswith("states")), None)


def test_states_of_fewer_bits_take_less_and_the_row_names_what_to_use():
    profile = with_states(training_step(), "torch", "AdamW")
    change = states_row(profile)
    assert change.title == "optimiser states in 8 bits, 233 KiB less"
    assert "bitsandbytes.optim.AdamW8bit" in change.about
    after = change.make().profile
    saved = (profile.persistent_bytes - after.persistent_bytes).sum()
    assert saved == pytest.approx(LAYERS * 80 * KB * (1 - 65 / 256), abs=LAYERS)
    assert np.array_equal(after.time_us, profile.time_us, equal_nan=True)
    need = ep.place(profile, cluster_of(1), "single").schedule.peak_bytes[0]
    found = fit(profile, cluster_of(1, capacity_bytes=int(need) - 230 * KB))
    assert row(found, "states-8-bits").fits


def test_no_row_of_states_where_they_or_such_an_optimiser_are_not_known():
    assert states_row(training_step()) is None
    assert states_row(with_states(training_step(), "torch", "Muon")) is None
    small = with_states(training_step(), "torch", "AdamW")
    small = replace(small, state_bytes=np.minimum(small.state_bytes, 100))
    assert states_row(small) is None


def test_variables_that_only_the_optimiser_reads_are_its_states():
    profile = training_step(weights=KB)
    edges = [(f"m{i}", f"update/w{i}", KB) for i in range(LAYERS)]
    names = [*profile.op_names, *(f"m{i}" for i in range(LAYERS))]
    own = [(names[a], names[b], n) for a, _, b, n in profile.edges.tolist()]
    types = [*profile.op_types, *["VariableV2"] * LAYERS]
    made = profile_of(
        dict.fromkeys(names, 1.0),
        [*own, *edges],
        persistent=dict.fromkeys((n for n in names if n[0] in "wm"), KB),
    )
    kind = dict(zip(names, types, strict=True))
    made = replace(made, op_types=tuple(kind[name] for name in made.op_names))
    states = state_bytes(made)
    assert {made.op_names[op] for op in np.flatnonzero(states)} == {f"m{i}" for i in range(LAYERS)}
    change = states_row(made)
    assert change.key == "states-16-bits"
    assert "add_variable_from_reference" in change.about
    assert change.make().profile.persistent_bytes.sum() == LAYERS * (KB + KB // 2)


def test_larger_cards_keep_what_is_known_of_their_speed(ways):
    assert any("as fast as now" in each.change.title for each in ways.rows)
    v100 = Device("GPU:0", "gpu", 16 << 30, 0.3)
    title, n_bytes, speed = next(card for card in larger_than(v100) if card[1] >> 30 >= 24)
    assert (title.partition(" of ")[0], n_bytes >> 30) == ("RTX 4090", 24)
    assert speed == pytest.approx(0.21)


def first_changes(cluster):
    """Return the first change of each kind for a step that every device can run."""
    step = training_step()
    problem = Problem(replace(step, time_us=step.time_us[:, [0, 0]]), boundless(cluster))
    ladders = list_ladders(problem, cluster, PlaceOptions(STEP_TIME, Stop()))
    return [each.key for each in (next(iter(ladder), None) for ladder in ladders) if each]


def test_offloading_or_recomputing_is_no_slower_than_either(monkeypatch):
    """The search with both is cut short here, as by a large model."""
    search_for = search._try

    def find(change, method, options):
        found = search_for(change, method, options)
        return replace(found, fits=False, batch_us=np.nan) if change.parts else found

    monkeypatch.setattr(search, "_try", find)
    found = fit(training_step(), cluster_of(1, capacity_bytes=260 * KB))
    both, *parts = (row(found, name) for name in ("offload-recompute", "offload", "recompute"))
    assert both.batch_us == min(part.batch_us for part in parts if part.fits)
    assert both.cluster is both.problem.cluster
    assert both.peak_bytes[0] <= 260 * KB


def test_a_cluster_with_as_many_gpus_as_there_can_be_gets_no_host(monkeypatch):
    monkeypatch.setattr("enplace.mends.changes.MAX_DEVICES", 16)
    full = with_gpus(cluster_of(2, capacity_bytes=KB), 16)
    names = first_changes(full)
    assert names[:4] == ["recompute", "pipeline-recompute", "accumulate-2", "batch-4"]
    assert not {"host", "offload"}.intersection(names)


def test_activations_are_kept_on_a_host_that_is_assumed_where_there_is_none():
    narrow = cluster_of(1, capacity_bytes=260 * KB)
    sent = row(fit(training_step(), narrow), "offload")
    assert sent.fits
    assert sent.cluster.devices[-1].kind == "cpu"
    assert "assumed" in sent.change.about
    assert all(each.is_offload for each in sent.result.plan.splits)
    assert sent.result.schedule.peak_bytes[-1] > 0


def test_a_machine_without_gpus_gets_no_cards():
    cpu = replace(cluster_of(1), devices=(Device("CPU:0", "cpu", KB),))
    assert first_changes(cpu) == ["recompute", "accumulate-2", "batch-4"]


def test_plans_that_fit_are_written_and_can_be_opened(ways, tmp_path):
    names = ways.save(tmp_path / "ways")
    assert len(names) == 2 * sum(each.fits for each in ways.rows) > 0
    for name in names:
        if name.endswith(".enplace"):
            project = read_project(tmp_path / "ways" / name)
            ((title, plan),) = project.plans
            problem = Problem(project.profile, project.cluster, project.constraints)
            assert title.lower() in str(ways).lower()
            again = read_plan(tmp_path / "ways" / name.replace(".enplace", ".plan.json"), problem)
            np.testing.assert_array_equal(again.plan.device, plan.device)


def test_the_command_shows_a_table_and_writes_a_row(tmp_path, enplace):
    ep.write(tmp_path / "P.enplace", training_step())
    machine = tmp_path / "c.json"
    machine.write_text(
        '{"name": "one", "devices": [{"name": "GPU:0", "kind": "gpu", "capacity_bytes": 250000},'
        '{"name": "CPU:0", "kind": "cpu", "capacity_bytes": 1000000}],'
        '"default_links": {"gpu-cpu": {"b0_us": 1, "b1_us_per_byte": 0},'
        '"cpu-gpu": {"b0_us": 1, "b1_us_per_byte": 0}}}'
    )
    given = ("fit", tmp_path / "P.enplace", "--cluster", machine, "--time-limit", 0.05)
    done = enplace(*given, "--json")
    assert done.status == YES
    rows = done.document["rows"]
    assert min(each["price"] for each in rows if each["feasible"]) == 0
    number = next(each["row"] for each in rows if each["feasible"])
    done = enplace(*given, "--row", number, "-o", tmp_path / "plan.json")
    assert "accumulate gradients" in done.out
    assert (tmp_path / "plan.json").exists()
    assert "needs --output" in enplace(*given, "--row", 1).err
    refused = enplace(*given, "--row", 99, "-o", tmp_path / "none.json")
    assert "there is no row 99; there are at most" in refused.err
    ep.write(tmp_path / "Q.enplace", training_step(weights=300 * KB))
    done = enplace("fit", tmp_path / "Q.enplace", *given[2:], "-o", tmp_path / "ways")
    assert done.status == (YES if "of the changes below fit" in done.out else NO)
    assert "no, proven: variables" in done.out


def test_one_gpu_gets_a_companion_and_a_cluster_gets_a_host_over_assumed_links():
    one = cluster_of(1, cpu_lanes=1, b0_us=3.0)
    two = with_gpus(one, 2, THROUGH_HOST)
    assert [device.kind for device in two.devices] == ["gpu", "cpu", "gpu"]
    assert two.b0_us[0, 2] == two.b0_us[2, 0] == THROUGH_HOST.b0_us
    assert two.b0_us[1, 2] == two.b0_us[2, 1] == 3.0
    assert len(with_gpus(one, 4, THROUGH_HOST).gpus) == 4
    assert [device.kind for device in with_host(cluster_of(2)).devices] == ["gpu", "gpu", "cpu"]
