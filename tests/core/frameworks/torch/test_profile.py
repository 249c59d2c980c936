from dataclasses import replace

import numpy as np
import pytest

from enplace.errors import EnplaceError
from enplace.frameworks.roofline import GPUS
from enplace.frameworks.torch.measure.costs import EstimatedCosts, MeasuredCosts
from enplace.frameworks.torch.measure.measure import (
    estimated_profile,
    measured_profile,
    replayed_peak_bytes,
)
from enplace.frameworks.torch.measure.profile import graph_of
from enplace.frameworks.torch.step import (
    BUFFER,
    GRADIENT,
    INPUT,
    PARAMETER,
    STATE,
    RecordedOp,
    Step,
    Storage,
    Timing,
    Work,
)
from enplace.machine import simulate
from enplace.machine.pipelines.pipeline import simulate_pipeline
from enplace.readers import recorded_plan
from enplace.values.cluster import Cluster, Device, Link
from enplace.values.load_rule import LoadRule
from enplace.values.measurement import Measurement
from enplace.values.op_kinds import OpKind, OpPass
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.splits import Split, legal_dimensions, split_profile
from torch_steps import read_step

H100 = GPUS["h100"]


def estimate(step):
    return estimated_profile("model", step, H100, Measurement(framework="torch"))


def ones(step):
    """Return the profile of a step on a CPU whose ops each take a microsecond."""
    timing = Timing(call_us={op.call: 1.0 for op in step.ops})
    return graph_of(step, MeasuredCosts(timing)).profile("model", Measurement())


def inputs(profile, name):
    op = profile.index[name]
    return {profile.op_names[source] for source, _, to, _ in profile.edges.tolist() if to == op}


def on_gpu(step):
    """Return a step as if it had run on a GPU, except for what counts its steps."""

    def of(each):
        return "cpu" if each.role == STATE and each.n_bytes == 4 else "cuda:0"

    storages = tuple(
        Storage(s.n_bytes, of(s), s.first, s.last, s.role, s.owner) for s in step.storages
    )
    ops = []
    for op in step.ops:
        on_host = op.reads and all(storages[s].device == "cpu" for s, _ in op.reads)
        ops.append(RecordedOp(**{**vars(op), "device": "cpu" if on_host else "cuda:0"}))
    return Step(step.name, tuple(ops), storages, step.batch_shapes)


def test_ops_are_named_after_modules_in_each_pass():
    profile = estimate(read_step("tied"))
    named = dict(zip(profile.op_names, profile.op_passes, strict=True))
    assert named["blocks_0/up/addmm"] == OpPass.FORWARD
    assert named["gradients/blocks_0/up/mm"] == OpPass.BACKWARD
    assert named["update/blocks_0/up/weight/AdamW"] == OpPass.UPDATE
    assert profile.scopes[profile.index["gradients/blocks_0/up/mm"]] == "gradients/blocks_0/up"
    kinds = dict(zip(profile.op_names, profile.op_kinds, strict=True))
    assert kinds["blocks_0/up/weight"] == OpKind.VARIABLE
    assert kinds["blocks_0/up/addmm"] == OpKind.MATMUL
    assert kinds["update/blocks_0/up/weight/AdamW"] == OpKind.UPDATE
    assert not any("view" in name or "detach" in name for name in profile.op_names)


@pytest.mark.parametrize("name", ["mlp", "tied"])
def test_simulated_memory_is_that_of_the_storages_that_existed(name):
    step = read_step(name)
    assert replayed_peak_bytes(ones(step)) == pytest.approx(
        step.counted_peak_bytes("cpu"), rel=0.01
    )


def test_a_parameter_holds_itself_and_its_states_and_keeps_its_ops_beside_it():
    profile = estimate(read_step("mlp"))
    weight = profile.index["0/weight"]
    assert profile.persistent_bytes[weight] == 3 * 64 * 32 * 4 + 4  # with the number of steps
    group = profile.colocation[weight]
    beside = [
        n for n, each in zip(profile.op_names, profile.colocation, strict=True) if each == group
    ]
    assert {"0/addmm", "update/0/weight/Adam"} <= {*beside}
    assert "2/addmm" not in beside


def test_a_tied_weight_is_a_copy_elsewhere_whose_gradient_is_summed_in_the_update():
    profile = estimate(read_step("tied"))
    names = "embedding/weight", "embedding/embedding", "head/mm", "gradients/head/mm_1"
    weight, embedding, head, back = (profile.index[name] for name in names)
    group = profile.colocation
    assert group[weight] == group[embedding] != group[head] == group[back] != ""
    sent = {(source, to): n for source, _, to, n in profile.edges.tolist()}
    n_bytes = sent[weight, head]
    assert n_bytes == sent[weight, back] == (profile.persistent_bytes[weight] - 4) // 3
    total = profile.index["update/embedding/weight/add"]
    assert group[total] == group[weight]
    assert sent[profile.index["gradients/head/mm"], total] == n_bytes


@pytest.mark.parametrize("is_written", [False, True])
def test_other_modules_read_copies_of_a_buffer_that_nothing_changes(is_written):
    sizes = (2048, 1000, 1000, 1000)
    roles = ((BUFFER, "angles"), *[("", "")] * 3)
    storages = tuple(
        Storage(size, "cpu", number - 2 if number > 1 else -1, 2, *role)
        for number, (size, role) in enumerate(zip(sizes, roles, strict=True))
    )
    ops = tuple(
        RecordedOp(
            "mul", f"layers.{n}", "module", "forward", n,
            reads=((0, 2048), (n + 1, 1000)), makes=(n + 2,), writes=(0,) * (is_written and n),
        )
        for n in range(2)
    )  # fmt: skip
    profile = ones(Step("rotary", ops, storages))
    held, first, second = (profile.index[n] for n in ("angles", "layers_0/mul", "layers_1/mul"))
    group, sent = profile.colocation, {(a, b): n for a, _, b, n in profile.edges.tolist()}
    assert profile.op_types[held] == "Buffer"
    assert group[held] == group[first] != ""
    assert (group[held] == group[second]) == is_written
    assert sent[held, second] == (0 if is_written else 2048)


def test_an_optimiser_is_one_op_for_each_parameter_after_the_whole_backward_pass():
    profile = estimate(read_step("mlp"))
    updates = [name for name in profile.op_names if name.endswith("/Adam")]
    assert len(updates) == 4
    assert all("update/step" in inputs(profile, name) for name in updates)
    assert "gradients/0/mm" in inputs(profile, "update/step")


def test_an_op_in_place_makes_its_tensor_anew():
    profile = estimate(read_step("mlp"))
    assert "0/addmm" in inputs(profile, "1/relu_")
    assert "1/relu_" in inputs(profile, "2/addmm")
    assert "0/addmm" not in inputs(profile, "2/addmm")
    shares = [[profile.op_names[op] for op in (a, b)] for a, _, b, _ in profile.shares.tolist()]
    assert ["1/relu_", "0/addmm"] in shares  # in the same memory


def test_what_clips_one_gradient_belongs_to_its_parameter():
    profile = estimate(read_step("tied"))
    norm = next(n for n in profile.op_names if n.startswith("update/blocks_0/up/weight/_foreach"))
    assert profile.scopes[profile.index[norm]] == "update/blocks_0/up"


def test_a_step_that_holds_more_than_its_ops_show_is_noted():
    step = read_step("mlp")
    assert not estimate(step).measured.notes
    lost = Storage(1 << 20, "cpu", 3, 50)  # no op made it
    (note,) = estimate(replace(step, storages=(*step.storages, lost))).measured.notes
    assert "too low: replayed on one device" in note
    assert note.endswith("but the recorded step held 1.1 MiB.")


def with_averages(step):
    """Return a step that begins as averages of two parameters follow the step before."""
    n_ops, n_bytes = len(step.ops), 4096
    owners = ("0.weight", "2.weight")
    at = [next(n for n, e in enumerate(step.storages) if (e.role, e.owner) == (PARAMETER, owner))
          for owner in owners]  # fmt: skip
    first = len(step.storages)
    averages = [
        RecordedOp(
            "_foreach_lerp_", "", INPUT, OpPass.FORWARD, -1, 0.5,
            ((first + n, n_bytes), (each, n_bytes)), (first + n,), work=Work(n_bytes=n_bytes),
        )
        for n, each in enumerate(at)
    ]  # fmt: skip
    storages = [replace(e, first=e.first + 2 * (e.first >= 0), last=e.last + 2)
                for e in step.storages]  # fmt: skip
    storages += [Storage(n_bytes, "cpu", -1, n_ops + 2)] * 2
    return replace(step, ops=(*averages, *step.ops), storages=tuple(storages))


def test_averages_that_follow_the_step_before_are_updates_beside_their_parameters():
    plain, step = read_step("mlp"), with_averages(read_step("mlp"))
    profile, without = estimate(step), estimate(plain)
    for path in ("0", "2"):
        update = profile.index[f"update/{path}/weight/_foreach_lerp_"]
        weight = profile.index[f"{path}/weight"]
        assert np.isfinite(profile.time_us[update, 0])
        assert profile.colocation[update] == profile.colocation[weight]
        before = without.persistent_bytes[without.index[f"{path}/weight"]]
        assert profile.persistent_bytes[weight] == before + 4096


def test_a_tensor_is_held_until_it_was_freed():
    n_bytes = 1 << 20
    storages = (Storage(n_bytes, "cpu", 0, 2), Storage(8, "cpu", 1, 3), Storage(8, "cpu", 2, 3))
    ops = (
        RecordedOp("relu", "", "module", "forward", 0, makes=(0,)),
        RecordedOp("sum", "", "module", "forward", 1, reads=((0, n_bytes),), makes=(1,)),
        RecordedOp("mul", "", "module", "forward", 2, reads=((1, 8),), makes=(2,)),
    )
    profile = ones(Step("kept", ops, storages))
    assert "relu" not in inputs(profile, "mul")
    names = [[profile.op_names[op] for op in (source, until)] for source, _, until in profile.holds]
    assert names == [["relu", "mul"]]
    assert replayed_peak_bytes(profile) == n_bytes + 8


def updates_on_lists():
    """Return a step whose optimiser makes a tensor for each of two parameters, then uses both."""
    sizes = (3000, 1000)
    storages = (
        *(
            Storage(size, "cpu", -1, 4, PARAMETER, name)
            for size, name in zip(sizes, "ab", strict=True)
        ),
        *(Storage(size, "cpu", number, 3) for number, size in enumerate(sizes)),
    )

    def part(kind, call, number, **more):
        return RecordedOp(
            kind, "", "module", "update", call, sizes[number] / sum(sizes), step_call=1,
            optimizer="AdamW", **more,
        )  # fmt: skip

    made = (part("_foreach_sqrt", 0, n, reads=((n, sizes[n]),), makes=(n + 2,)) for n in range(2))
    used = (
        part("_foreach_addcdiv_", 1, n, reads=((n, sizes[n]), (n + 2, sizes[n])), writes=(n,))
        for n in range(2)
    )
    return Step("lists", (*made, *used), storages)


def test_what_an_optimiser_makes_for_all_parameters_at_once_is_held_until_its_last_update():
    step = updates_on_lists()
    profile = ones(step)
    assert replayed_peak_bytes(profile) == step.counted_peak_bytes("cpu") == 8000
    assert not profile.temporary_bytes.any()
    names = [[profile.op_names[op] for op in (source, until)] for source, _, until in profile.holds]
    assert names == [["update/a/AdamW", "update/b/AdamW"]]
    of_a = ["a", "update/a/AdamW", "update/a/free"]
    assert len({profile.colocation[profile.index[name]] for name in of_a}) == 1


@pytest.mark.parametrize("dropped_at", [0, 1, 3])
def test_an_output_that_no_op_reads_counts_while_the_script_keeps_it(dropped_at):
    sizes = (1000, 1000, 4000, 1000, 2500, 1000)
    ends = (4, 1, dropped_at, 2, 3, 4)
    firsts = (-1, 0, 0, 1, 2, 3)
    storages = tuple(
        Storage(size, "cpu", *life) for size, *life in zip(sizes, firsts, ends, strict=True)
    )
    makes = ((1, 2), (3,), (4,), (5,))
    ops = tuple(
        RecordedOp("tanh", "m", "module", OpPass.FORWARD, n, reads=((read, 1000),), makes=made)
        for n, (read, made) in enumerate(zip((0, 1, 3, 4), makes, strict=True))
    )
    step = Step("lstm", ops, storages)
    assert replayed_peak_bytes(ones(step)) == step.counted_peak_bytes("cpu")


def test_a_pipeline_holds_what_updates_make_after_all_samples():
    profile = ones(updates_on_lists())
    problem = Problem(profile, Cluster("one", (Device("CPU:0", "cpu", 1 << 40),), (), ()))
    plan = Plan(np.zeros(profile.n_ops, dtype=np.int64), np.arange(profile.n_ops), method="test")
    found = simulate_pipeline(problem, plan, "1f1b", 4, LoadRule(microbatches=4))
    assert found.memory[0].peak_bytes == 8000  # once, not for each sample


def test_gradients_live_until_they_are_zeroed():
    step = read_step("mlp")
    profile, last = ones(step), {}
    for source, _, until in profile.holds.tolist():
        last[profile.op_names[source]] = until
    made = [name for name in last if name.startswith("gradients/0/")]
    assert made
    assert all(last[name] == profile.n_ops - 1 for name in made)
    sizes = profile.tensor_bytes[profile.hold_tensor]
    weights = sum(each.n_bytes for each in step.storages if each.role == GRADIENT)
    assert sizes[profile.hold_op == profile.n_ops - 1].sum() >= weights / 2


def test_states_that_a_step_adds_are_there_in_the_next_one_from_its_start():
    step = read_step("mlp")
    end, owner = len(step.ops), "0.weight"
    lives = ((-1, end - 1), (end - 1, end), (end - 1, end))  # one of two takes an old one's place
    states = tuple(Storage(4096, "cpu", *life, STATE, owner) for life in lives)
    last = replace(
        step.ops[-1], makes=(*step.ops[-1].makes, *(len(step.storages) + n for n in (1, 2)))
    )
    grown = replace(step, ops=(*step.ops[:-1], last), storages=(*step.storages, *states))
    assert grown.counted_peak_bytes("cpu") == step.counted_peak_bytes("cpu") + 2 * 4096
    assert replayed_peak_bytes(ones(grown)) == pytest.approx(
        grown.counted_peak_bytes("cpu"), rel=0.01
    )


def with_old_gradients(step, last):
    """Return a step that begins with gradients, which are freed after an op."""
    made = {each.owner: each.n_bytes for each in step.storages if each.role == GRADIENT}
    old = (Storage(size, "cpu", -1, last, GRADIENT, owner) for owner, size in made.items())
    return replace(step, storages=(*step.storages, *old))


def test_gradients_that_are_zeroed_after_the_forward_pass_live_through_it():
    step = read_step("mlp")
    loss = next(n for n, op in enumerate(step.ops) if op.kind == "nll_loss_forward")
    early, late = (ones(with_old_gradients(step, last)) for last in (1, loss))
    assert {*late.op_names} - {*early.op_names} == {"0/weight/grad", "2/weight/grad"}
    ends = {late.op_names[a]: late.op_names[b] for a, _, b in late.holds.tolist()}
    assert ends["0/weight/grad"] == ends["2/weight/grad"] == "loss/nll_loss_forward"
    groups = [late.colocation[late.index[name]] for name in ("2/weight", "2/weight/grad")]
    assert len({*groups}) == 1 != groups[0]


def test_a_pipeline_has_the_sums_of_gradients_instead_of_older_ones():
    step, found = read_step("mlp"), []
    for last in (1, 10):
        profile = ones(with_old_gradients(step, last))
        cpus = tuple(Device(f"CPU:{n}", "cpu", 1 << 40) for n in range(2))
        links = (Link(0, 1, 1.0, 1e-3, (0,)), Link(1, 0, 1.0, 1e-3, (1,)))
        problem = Problem(profile, Cluster("two", cpus, ("there", "back"), links))
        is_second = [{"2", "loss"} & {*scope.split("/")} for scope in profile.scopes]
        device = np.array([int(bool(each)) for each in is_second])
        plan = Plan(device, np.arange(profile.n_ops), method="test")
        pipeline = simulate_pipeline(problem, plan, "1f1b", 4, LoadRule(microbatches=4))
        found.append([each.peak_bytes for each in pipeline.memory])
    assert found[0] == found[1]


def test_updates_that_wait_for_each_other_stay_apart():
    """Each parameter is scaled by the norm of all, in one step of the optimiser."""
    storages = (
        *(Storage(64, "cpu", -1, 9, PARAMETER, name) for name in "ab"),
        *(Storage(4, "cpu", first, 9) for first in (0, 1, 2)),
    )
    within = {"step_call": 1, "optimizer": "Norms"}

    def update(kind, call, reads, **more):
        return RecordedOp(kind, "", "module", "update", call, reads=reads, **within, **more)

    ops = (
        update("norm", 0, ((0, 64),), makes=(2,)),
        update("norm", 1, ((1, 64),), makes=(3,)),
        update("add", 2, ((2, 4), (3, 4)), makes=(4,)),
        update("mul_", 3, ((0, 64), (4, 4)), writes=(0,)),
        update("mul_", 4, ((1, 64), (4, 4)), writes=(1,)),
    )
    profile = ones(Step("norms", ops, storages))
    assert sum("Norms" in name for name in profile.op_names) == 0
    assert {"update/a/norm", "update/b/norm"} <= {*profile.op_names}


def test_an_estimate_names_its_gpu_and_has_times_of_a_gpu_only():
    profile = estimate(read_step("mlp"))
    assert profile.measured.estimated == "H100"
    assert profile.measured.batch_shapes == ((32, 32),)
    ran = [op for op, scope in enumerate(profile.scopes) if scope not in ("", "input")]
    assert np.isfinite(profile.time_us[ran, 0]).all()
    assert "estimated" in str(profile)


def test_a_slower_kernel_than_the_roofline_takes_its_time():
    plain = RecordedOp("mm", "", "module", "forward", 0, device="cuda:0")
    slow = RecordedOp(**{**vars(plain), "work": type(plain.work)(flops=1e12, effort=2.0)})
    fast = RecordedOp(**{**vars(plain), "work": type(plain.work)(flops=1e12)})
    costs = EstimatedCosts(H100)
    assert costs.of(slow).time_us[0] == pytest.approx(2 * costs.of(fast).time_us[0], rel=1e-3)


def test_a_part_of_an_op_on_lists_launches_a_part_of_a_kernel_in_an_optimiser_or_not():
    costs, work = EstimatedCosts(H100), Work(n_bytes=64)
    alone = RecordedOp("lerp_", "", "module", OpPass.UPDATE, 0, device="cuda:0", work=work)
    part = replace(alone, kind="_foreach_lerp_", share=0.02)
    assert costs.of(part).time_us[0] < 0.5 * costs.of(alone).time_us[0]
    assert costs.of(part) == costs.of(replace(part, step_call=1))


def test_a_measured_step_on_a_gpu_is_simulated_as_long_as_it_took():
    step = on_gpu(read_step("mlp"))
    calls = {op.call for op in step.ops}
    timing = Timing(
        (900.0, 1000.0, 1100.0),
        call_us=dict.fromkeys(calls, 5.0),
        call_kernels=dict.fromkeys(calls, 1),
        peak_bytes={"GPU:0": 12345},
        gpu="NVIDIA H100 80GB HBM3",
        gpu_bytes=80 << 30,
    )
    profile = measured_profile("model", step, timing, Measurement(framework="torch"))
    measured = profile.measured
    assert measured.step_time_us == 1000
    assert measured.peak_bytes == {"GPU:0": 12345}
    assert measured.launch_gap_us > 1
    assert measured.op_devices["0/addmm"] == "GPU:0"
    assert set(measured.op_devices.values()) == {"GPU:0"}  # what counts steps goes along
    plan = recorded_plan(profile, measured.cluster)
    schedule = simulate(Problem(profile, measured.cluster), plan)
    assert schedule.makespan_us == pytest.approx(1000, rel=0.01)
    assert measured.config["kernels_us"] == pytest.approx(5 * len(calls))


def test_kernels_that_were_slower_while_traced_are_scaled_to_the_plain_step():
    step = on_gpu(read_step("mlp"))
    calls = {op.call for op in step.ops}
    timing = Timing(
        (100.0,),
        call_us=dict.fromkeys(calls, 200.0 / len(calls)),
        call_kernels=dict.fromkeys(calls, 1),
        gpu="NVIDIA H100 80GB HBM3",
        gpu_bytes=80 << 30,
    )
    profile = measured_profile("model", step, timing, Measurement(framework="torch"))
    assert "Kernels took 100.0 % longer" in " ".join(profile.measured.notes)
    assert np.nansum(profile.time_us[:, 0]) < 150


def test_a_gpu_whose_kernels_were_not_traced_is_told_so():
    timing = Timing((100.0,), gpu="NVIDIA H100 80GB HBM3", gpu_bytes=80 << 30)
    with pytest.raises(EnplaceError, match="traced no kernels"):
        measured_profile("model", on_gpu(read_step("mlp")), timing, Measurement())


def test_a_tensor_that_no_op_wrote_is_a_sign_of_kernels_that_are_not_dispatched():
    storages = (Storage(64, "cpu", 0, 3), Storage(64, "cpu", 1, 3), Storage(64, "cpu", 2, 3))
    ops = (
        RecordedOp("empty", "", "module", "forward", 0, makes=(0,), line="train.py, line 7"),
        RecordedOp("relu", "", "module", "forward", 1, reads=((0, 64),), makes=(1,)),
        RecordedOp("relu", "", "module", "forward", 2, reads=((1, 64),), makes=(2,)),
    )
    notes = estimate(Step("triton", ops, storages)).measured.notes
    assert notes[0].startswith("train.py, line 7: ")
    assert "what fills 1 tensor of this step" in notes[0]
    assert "torch.library.custom_op" in notes[0]
    filled = RecordedOp("fill_", "", "module", "forward", 1, reads=((0, 64),), writes=(0,))
    assert not estimate(Step("plain", (ops[0], filled, *ops[1:]), storages)).measured.notes


def test_a_measured_step_names_the_lines_of_ops_whose_work_is_not_known():
    ops = tuple(
        RecordedOp("wavelet", "", "module", "forward", n, work=Work(known=False),
                   line=f"train.py, line {line}")
        for n, line in enumerate((11, 7, 11))
    )  # fmt: skip
    timing = Timing((100.0,), dict.fromkeys(range(3), 1.0))
    notes = measured_profile("model", Step("model", ops, ()), timing, Measurement()).measured.notes
    assert any(each.startswith("train.py, lines 7 and 11: no formula says") for each in notes)


@pytest.mark.parametrize(
    ("op_us", "says"), [(60.0, "longer while"), (1e6, "other programs used this machine")]
)
def test_ops_that_took_far_longer_than_the_step_say_that_the_machine_was_busy(op_us, says):
    step = read_step("mlp")
    calls = {op.call for op in step.ops}
    timing = Timing((55.0 * len(calls),), dict.fromkeys(calls, op_us))
    notes = " ".join(measured_profile("model", step, timing, Measurement()).measured.notes)
    assert says in notes
    assert "0.0 %" not in notes


def test_ops_that_work_on_each_sample_can_be_split_by_them():
    attention = "_scaled_dot_product_flash_attention"
    kinds = ("tanh", attention, f"{attention}_backward", "nll_loss_forward")
    sizes = (1024, 1024, 1024, 1024, 4)
    storages = tuple(Storage(size, "cpu", n - 1, 9) for n, size in enumerate(sizes))
    ops = tuple(
        RecordedOp(kind, "m", "module", OpPass.FORWARD, n, reads=((n, 1024),), makes=(n + 1,))
        for n, kind in enumerate(kinds)
    )
    profile = estimate(Step("model", ops, storages, batch_shapes=((4, 64),)))
    legal = [legal_dimensions(profile, profile.index[f"m/{kind}"], 2) for kind in kinds]
    assert legal == [("batch", "channel"), ("batch",), ("batch",), ()]  # the loss is one number
    splits = tuple(Split(f"m/{kind}", "batch", 2) for kind in kinds[:3])
    names = split_profile(profile, splits).op_names
    assert f"m/{attention}/split/part_1" in names
    assert sum("/split/of_" in name for name in names) == 1  # parts feed parts
