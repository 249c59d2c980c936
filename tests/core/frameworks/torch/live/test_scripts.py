"""Real scripts under the recorder; `make test-torch` has PyTorch and runs them."""

import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # else PyTorch 2.6 leaves a thread running
torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from enplace.errors import EnplaceError  # noqa: E402
from enplace.frameworks.jobs import measure_profile  # noqa: E402
from enplace.frameworks.roofline import GPUS  # noqa: E402
from enplace.frameworks.source import source_of  # noqa: E402
from enplace.frameworks.torch.device_map import device_map, find_blocks  # noqa: E402
from enplace.frameworks.torch.measure.costs import MeasuredCosts  # noqa: E402
from enplace.frameworks.torch.measure.measure import (  # noqa: E402
    estimated_profile,
    measured_profile,
    replayed_peak_bytes,
)
from enplace.frameworks.torch.measure.profile import graph_of  # noqa: E402
from enplace.frameworks.torch.open.fake import OF_FAKES, record_on_fake_tensors  # noqa: E402
from enplace.frameworks.torch.open.scripts import OF_STEPS, LoadError, record_script  # noqa: E402
from enplace.frameworks.torch.pipelines.calls import PipelineRefusedError  # noqa: E402
from enplace.frameworks.torch.pipelines.first_rows import first_rows  # noqa: E402
from enplace.frameworks.torch.record.recorder import HOOKS, check_hooks  # noqa: E402
from enplace.frameworks.torch.record.recording import Recording  # noqa: E402
from enplace.frameworks.torch.record.timing import Clock  # noqa: E402
from enplace.frameworks.torch.step import GRADIENT, INPUT, PARAMETER, Timing  # noqa: E402
from enplace.frameworks.torch.worker import check_imports  # noqa: E402
from enplace.machine import simulate  # noqa: E402
from enplace.processes import worker  # noqa: E402
from enplace.processes.worker import ignore  # noqa: E402
from enplace.readers.clusters import presets  # noqa: E402
from enplace.values.measurement import Measurement  # noqa: E402
from enplace.values.op_kinds import OpPass  # noqa: E402
from enplace.values.plan import Plan  # noqa: E402
from enplace.values.problem import Problem  # noqa: E402
from enplace.values.result import Result  # noqa: E402
from forking import fork_workers, run_fork  # noqa: E402
from torch_scripts import profile_of, script  # noqa: E402
from torch_steps import read_step  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

TRAIN = Path(__file__).parents[5] / "benchmarks" / "gpu" / "train.py"
SIX = ("resnet50", "gpt2", "bert", "llama-1b", "vit", "lstm")

LOOP = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(inplace=True), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(8):
    x, y = torch.randn(32, 32), torch.randint(0, 10, (32,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if len(sys.argv) > 1:
        print(float(loss), file=open(sys.argv[1], "a"))
"""

GAN = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

G = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32))
D = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2, True), nn.Linear(64, 1))
of_g, of_d = torch.optim.Adam(G.parameters()), torch.optim.SGD(D.parameters(), 0.1)
bce = nn.BCEWithLogitsLoss()
for _ in range(6):
    real, z = torch.randn(8, 32), torch.randn(8, 16)
    of_d.zero_grad()
    loss = bce(D(real), torch.ones(8, 1)) + bce(D(G(z).detach()), torch.zeros(8, 1))
    loss.backward()
    of_d.step()
    of_g.zero_grad()
    bce(D(checkpoint(G, z, use_reentrant=False)), torch.ones(8, 1)).backward()
    of_g.step()
"""

LOADER = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    model = torch.compile(nn.Linear(16, 4))
    data = TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in DataLoader(data, batch_size=8, num_workers=2):
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y) / 2
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


IN_A_THREAD = f"""
import threading
def train():
{textwrap.indent(LOOP, "    ")}
        sys.exit()
thread = threading.Thread(target=train)
thread.start()
thread.join()
"""


def record(source, steps=0):
    return record_script(source, steps, 0, ignore).step


def kinds(step):
    return [(op.kind, op.module, op.pass_) for op in step.ops]


def peak_bytes(step):
    """Simulate the profile of a step on one device, in the order of the script."""
    timing = Timing(call_us={op.call: 1.0 for op in step.ops})
    profile = graph_of(step, MeasuredCosts(timing)).profile("model", Measurement())
    return replayed_peak_bytes(profile)


def test_what_other_processes_load_is_no_part_of_an_estimated_step(tmp_path):
    source = script(tmp_path, LOADER)
    real, fake = record(source), record_on_fake_tensors(source, ignore).step
    assert [e.kind for e in fake.ops if e.place == INPUT] == [
        e.kind for e in real.ops if e.place == INPUT
    ]
    here = script(tmp_path, LOADER.replace("num_workers=2", "num_workers=0"))
    step = record_on_fake_tensors(here, ignore).step
    assert "stack" in [op.kind for op in step.ops]
    profile = estimated_profile("here", step, GPUS["h100"], Measurement())
    assert profile.persistent_bytes.sum() > 64 * 16 * 4
    assert f" {(16 * 4 + 4) * 4} B of variables" in str(profile)  # the data set is none


PREPARED = """
import torch
from accelerate import Accelerator
class Data(torch.utils.data.Dataset):
    __len__ = lambda self: 64
    __getitem__ = lambda self, n: torch.full((16 + n % 3,), 1 / (n + 1)).sqrt()
def cut(samples):
    return torch.stack([each[:16] for each in samples])
if __name__ == "__main__":
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = torch.utils.data.DataLoader(Data(), 8, True, None, None, 2, cut)
    model, optimizer, loader = Accelerator(cpu=True).prepare(model, optimizer, loader)
    for x in loader:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_what_other_processes_load_for_accelerate_is_no_part_of_an_estimated_step(tmp_path):
    pytest.importorskip("accelerate")
    found = record_on_fake_tensors(script(tmp_path, PREPARED), ignore).step
    assert {"stack", "sqrt"}.isdisjoint(op.kind for op in found.ops)
    assert "mm" in {op.kind for op in found.ops} or "addmm" in {op.kind for op in found.ops}
    assert found.batch_shapes == ((8, 16),)


EPOCHS = """
import torch
class Data(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from torch.ones(16, 4)
if __name__ == "__main__":
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = torch.utils.data.DataLoader(
        Data(), 16, num_workers=1, persistent_workers=True, prefetch_factor=4, timeout=60
    )
    for _ in range(4):
        for x in loader:
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
"""


def test_processes_that_persist_load_each_epoch_of_an_estimate(tmp_path):
    found = record_on_fake_tensors(script(tmp_path, EPOCHS), ignore)
    assert found.step.batch_shapes == ((16, 4),)


WORKER = """
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

class Opened(Dataset):
    __len__ = lambda self: 64
    __getitem__ = lambda self, n: self.rows[n]

def begin(number):
    get_worker_info().dataset.rows = torch.ones(64, 4)

class Shared(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        return iter([torch.ones(4) for _ in range(info.id, 64, info.num_workers)])

if __name__ == "__main__":
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x in DataLoader({data}, 8, num_workers=2):
        assert get_worker_info() is None
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("data", ["Opened(), worker_init_fn=begin, batch_size=", "Shared(), "])
def test_what_loads_in_an_estimate_is_told_that_it_is_a_worker(tmp_path, data):
    text = WORKER.replace("{data}, ", data)
    step = record_on_fake_tensors(script(tmp_path, text), ignore).step
    assert step.batch_shapes == ((8, 4),)
    assert {"ones", "fill_", "stack"}.isdisjoint(kinds(step))


def test_the_recorded_script_trains_as_it_does_alone(tmp_path):
    alone, recorded = tmp_path / "alone", tmp_path / "recorded"
    source = script(tmp_path, LOOP, str(recorded))
    run_fork([sys.executable, source.path, str(alone)], check=True)
    found = record_script(source, 2, 1, ignore)
    losses = recorded.read_text().splitlines()
    assert losses == alone.read_text().splitlines()[: len(losses)]
    assert len(losses) >= 5
    assert len(found.timing.step_times_us) == 2
    assert found.timing.call_us.keys() == {op.call for op in found.step.ops}


@pytest.mark.parametrize("steps", [0, 3])
def test_a_recording_leaves_no_hook_behind(tmp_path, steps):
    record(script(tmp_path, LOOP), steps)
    hooks = torch.nn.modules.module
    assert not hooks._global_forward_pre_hooks
    assert not hooks._global_forward_hooks


def test_an_evaluation_between_steps_is_no_part_of_the_step(tmp_path):
    text = LOOP + "    model(x) if step == 6 else None\n"
    step = record_script(script(tmp_path, text), 3, 0, ignore).step
    (other := tmp_path / "other").mkdir()
    assert kinds(step) == kinds(record(script(other, LOOP)))


@pytest.mark.parametrize("work", ["model(torch.randn(64, 32))", "[p.norm() for p in weights]"])
def test_what_follows_the_first_step_alone_is_no_part_of_an_estimated_step(tmp_path, work):
    text = (
        LOOP
        + f"""    weights = [*model.parameters()]
    if step % 50 == 0:
        with torch.no_grad():
            [{work} for _ in range(1000)]
"""
    )
    step = record_on_fake_tensors(script(tmp_path, text), ignore).step
    (other := tmp_path / "other").mkdir()
    assert kinds(step) == kinds(record_on_fake_tensors(script(other, LOOP), ignore).step)
    assert step.batch_shapes == ((32, 32),)


@pytest.mark.parametrize(
    "rows", ["16, 16, 12", "12, 16, 16, 16", "12, 12, 16, 16, 16, 16, 16", "16, 4", "4, 16"]
)
def test_a_batch_of_the_usual_size_is_recorded_and_timed(tmp_path, rows):
    """The first step has more ops, and the short last batch of an epoch comes in between."""
    text = LOOP.replace("range(8):", f"range(21):\n    n = [{rows}][step % len([{rows}])]")
    text = text.replace("randn(32,", "randn(n,").replace("10, (32,))", "10, (n,))")
    source = script(tmp_path, text)
    assert record(source).batch_shapes == ((16, 32),)
    found = record_script(source, 8, 0, ignore)
    assert found.step.batch_shapes == ((16, 32),)
    assert found.timing.step_times_us
    assert found.timing.n_unlike


@pytest.mark.parametrize("rows", ["50 + step", "2 ** step"])
def test_op_times_of_batches_that_vary_fit_a_plain_step_or_are_said_not_to(tmp_path, rows):
    text = LOOP.replace("range(8):", f"range(12):\n    n = {rows}")
    text = text.replace("randn(32,", "randn(n,").replace("10, (32,))", "10, (n,))")
    found = record_script(script(tmp_path, text), 12, 0, ignore)
    profile = measured_profile("model", found.step, found.timing, Measurement())
    step_us = profile.measured.step_time_us
    unscaled = [each for each in profile.measured.notes if "op times are not scaled" in each]
    assert bool(unscaled) == (step_us is None) == (rows == "2 ** step")
    if step_us is not None:
        assert np.nansum(profile.time_us) <= 1.01 * step_us


def test_a_script_that_ends_early_gives_the_steps_it_has(tmp_path):
    found = record_script(script(tmp_path, LOOP), 1000, 1000, ignore)
    assert 1 <= len(found.timing.step_times_us) <= 6


@pytest.mark.skipif(torch.__version__ < "2.7", reason="PyTorch 2.6 makes a step of other ops")
def test_the_steps_that_are_kept_for_other_tests_are_still_recorded_so(tmp_path):
    assert kinds(record(script(tmp_path, LOOP))) == kinds(read_step("mlp"))


@pytest.mark.parametrize("name", SIX)
def test_fake_tensors_give_the_same_step_in_the_same_memory(name):
    source = source_of(str(TRAIN), arguments=(name, "--small"), framework_name="torch")
    real, fake = record(source), record_on_fake_tensors(source, ignore).step
    if name == "resnet50":  # the optimisers of an estimate take lists, as on a GPU
        assert [each for each in kinds(fake) if each[2] != OpPass.UPDATE] == [
            each for each in kinds(real) if each[2] != OpPass.UPDATE
        ]
    else:  # attention, dropout and recurrent layers of an estimate are those of a GPU
        assert {op.module for op in fake.ops} == {op.module for op in real.ops}
    counted = real.counted_peak_bytes("cpu")
    assert peak_bytes(real) == pytest.approx(counted, rel=0.01)


OF_TWO_GROUPS = "[{'params': model[2].parameters(), 'lr': 0.1}, {'params': model[0].parameters()}]"


@pytest.mark.parametrize("words", ["AdamW(GROUPS)", "Adagrad(GROUPS, weight_decay=0.1)"])
def test_optimisers_on_lists_hold_what_they_make_for_all_parameters_of_a_group(tmp_path, words):
    call = words.replace("GROUPS", OF_TWO_GROUPS)
    text = LOOP.replace("Adam(model.parameters(), 1e-3)", call).replace("64", "512")
    loop = record(script(tmp_path, text))
    lists = record(script(tmp_path, text.replace(call, f"{call[:-1]}, foreach=True)")))
    fake = record_on_fake_tensors(script(tmp_path, text), ignore).step
    assert kinds(fake) == kinds(lists) != kinds(loop)
    assert lists.counted_peak_bytes("cpu") != loop.counted_peak_bytes("cpu")
    for number, op in enumerate(fake.ops):
        assert all(fake.storages[each].first == number for each in op.makes)
    for step in (lists, loop, fake):
        assert peak_bytes(step) == pytest.approx(step.counted_peak_bytes("cpu"), rel=0.01)
    plain = text.replace(call, f"{call[:-1]}, foreach=False)")
    assert kinds(record_on_fake_tensors(script(tmp_path, plain), ignore).step) == kinds(loop)


@pytest.mark.parametrize("call", ["zero_grad()", "zero_grad(set_to_none=False)"])
def test_gradients_that_are_zeroed_after_the_forward_pass_count_in_it(tmp_path, call):
    zero, back = "    optimizer.zero_grad()\n", "    loss.backward()\n"
    text = LOOP.replace(zero, "").replace(back, f"    optimizer.{call}\n{back}")
    inner = "nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128)"
    text = text.replace("64, 10", "128, 10").replace("64)", f"128), {inner}")
    groups = "[{'params': model[:3].parameters()}, {'params': model[3:].parameters(), 'lr': 0.2}]"
    source = script(tmp_path, text.replace("Adam(model.parameters(), 1e-3)", f"SGD({groups}, 0.1)"))
    for step in (record(source), record_on_fake_tensors(source, ignore).step):
        assert peak_bytes(step) == pytest.approx(step.counted_peak_bytes("cpu"), rel=0.01)


BEYOND_THE_STEP = {
    "averages": "kept = [0.9 * p + 0.1 * q.detach() for p, q in zip(kept, model.parameters())]",
    "a bank, made anew": "bank = torch.cat([bank[32:], torch.randn(32, 256)])",
    "a bank, in place": "bank.mul_(0.9).add_(torch.randn(256, 256))",
    "results, unread": "some = [*some[-2:], torch.randn(256, 256)]",
    "copies of weights": "kept = [p.detach().clone() for p in model.parameters()]",
    "weights, made anew": "[setattr(p, 'data', p.data * 0.5) for p in model.parameters()]",
    "gradients, made anew": "[setattr(p, 'grad', p.grad * 0.5) for p in model.parameters()]",
}


@pytest.mark.parametrize("what", BEYOND_THE_STEP)
def test_what_a_script_keeps_from_step_to_step_counts_in_memory(tmp_path, what):
    text = LOOP.replace("64", "512").replace(
        "for step", "kept, some, bank = [*model.parameters()], [], torch.randn(256, 256)\nfor step"
    )
    source = script(tmp_path, text + f"    {BEYOND_THE_STEP[what]}\n")
    for step in (record(source), record_on_fake_tensors(source, ignore).step):
        assert peak_bytes(step) == pytest.approx(step.counted_peak_bytes("cpu"), rel=0.01)


def test_a_forward_pass_alone_holds_its_result(tmp_path):
    text = "import torch\nmodel = torch.nn.Linear(32, 4096)\nfor _ in range(3):\n"
    source = script(tmp_path, text + "    out = model(torch.randn(64, 32))\n")
    profile = profile_of(source, 1)
    assert replayed_peak_bytes(profile) == profile.measured.peak_bytes["CPU:0"] > 4 * 64 * 4096


def test_flops_are_those_of_pytorchs_own_counter(tmp_path):
    step = record(script(tmp_path, LOOP))
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(32, 32)).sum().backward()
    matrix = ("mm", "addmm")
    assert sum(op.work.flops for op in step.ops if op.kind in matrix) == counter.get_total_flops()


def recorded_flops(function):
    """Return the FLOPs of each kind of op of a call."""
    recording = Recording(Clock())
    recording.begin()
    with torch.no_grad():
        function()
    return {op.kind: op.work.flops for op in recording.end().ops}


def test_products_that_pytorch_does_not_count_have_formulas():
    matrix, row, low = torch.ones(8, 5), torch.ones(5), torch.ones(32, 16, dtype=torch.int8)
    assert recorded_flops(lambda: matrix @ row)["mv"] == 2 * 8 * 5
    assert recorded_flops(lambda: torch.addmv(torch.ones(8), matrix, row))["addmv"] == 2 * 8 * 5
    assert recorded_flops(lambda: row @ row)["dot"] == 2 * 5
    right = torch.ones(16, 24, dtype=torch.int8)
    assert recorded_flops(lambda: torch._int_mm(low, right))["_int_mm"] == 2 * 32 * 16 * 24


def test_a_layer_that_runs_as_one_op_has_the_flops_of_its_parts():
    layer, x = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), torch.ones(2, 16, 64)
    with FlopCounterMode(display=False) as counter:
        layer(x)
    layer.eval()
    whole = recorded_flops(lambda: layer(x, src_mask=torch.zeros(16, 16)))
    assert whole["_transformer_encoder_layer_fwd"] == counter.get_total_flops()


def test_a_fused_optimiser_passes_once_over_parameter_gradient_and_state(tmp_path):
    step = record(script(tmp_path, LOOP.replace("1e-3)", "1e-3, fused=True)")))
    sizes = {each.owner: each.n_bytes for each in step.storages if each.role == PARAMETER}
    moved = sum(op.work.n_bytes for op in step.ops if op.kind == "_fused_adam_")
    assert moved == pytest.approx(8 * sum(sizes.values()), rel=0.01)  # 4 read, 4 written


@pytest.mark.parametrize(("kind", "bits"), [("float", 32), ("bfloat16", 16)])
def test_states_of_an_optimiser_are_told_apart_from_weights(tmp_path, kind, bits):
    text = f"""
import torch
model = torch.nn.Linear(64, 256, bias=False, dtype=torch.{kind})
optimizer = torch.optim.AdamW(model.parameters())
for step in range(9):
    optimizer.zero_grad()
    model(torch.randn(8, 64, dtype=torch.{kind})).square().mean().backward()
    optimizer.step()
"""
    profile = profile_of(script(tmp_path, text), 1)
    held = profile.state_bytes[profile.index["weight"]]
    assert held == pytest.approx(2 * bits // 8 * 64 * 256, abs=4)  # and how many steps were made
    assert profile.measured.state_bits == bits


def test_a_round_of_two_optimisers_is_one_step(tmp_path):
    step = record(script(tmp_path, GAN))
    assert {op.optimizer for op in step.ops if op.step_call} == {"Adam", "SGD"}
    assert {each.owner.partition(".")[0] for each in step.storages if each.role} == {"G", "D"}
    assert {"G.0", "D.2"} < {op.module for op in step.ops}
    recomputed = [op for op in step.ops if op.pass_ == "backward" and op.kind == "relu"]
    assert recomputed


def test_an_optimiser_that_steps_less_often_than_another_is_in_the_step(tmp_path):
    critic = "of_d.step()\n"
    more = GAN.replace(critic, critic + "    of_d.step()\n" * 2)
    unused = more.replace("bce = ", "unused = torch.optim.Adam(G.parameters())\nbce = ")
    for text in (more, unused):
        step = record_on_fake_tensors(script(tmp_path, text), ignore).step
        assert {op.optimizer for op in step.ops if op.step_call} == {"Adam", "SGD"}
        assert sum(op.optimizer == "SGD" for op in step.ops if op.step_call) >= 3


def test_loaders_with_workers_compilation_and_autocast_are_recorded(tmp_path):
    source = script(tmp_path, LOADER)
    real, fake = record(source), record_on_fake_tensors(source, ignore).step
    assert "_to_copy" in {op.kind for op in real.ops}
    assert {op.kind for op in real.ops} & {"addmm", "mm"}
    assert any(each.role == GRADIENT for each in fake.storages)


CHECKPOINTS = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.drop = nn.Linear(64, 64), nn.Dropout(0.1)

    def forward(self, x):
        q = self.inner(x).view(2, 16, 4, 16).transpose(1, 2)
        q = nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.1)
        return self.drop(q.transpose(1, 2).reshape(2, 16, 64))

blocks = nn.ModuleList([Block(), Block()])
optimizer = torch.optim.AdamW(blocks.parameters())
scaler = torch.amp.GradScaler("cpu")
for _ in range(3):
    x = torch.randn(2, 16, 64, requires_grad=True)
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False)
    scaler.scale(x.square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


def test_an_estimate_runs_checkpoints_and_scaled_gradients_with_kernels_of_a_gpu(tmp_path):
    step = record_on_fake_tensors(script(tmp_path, CHECKPOINTS), ignore).step
    attention = [op.pass_ for op in step.ops if "efficient_attention" in op.kind]
    assert attention.count("forward") == 2
    assert attention.count("backward") == 4  # again, and their gradients
    assert any(op.optimizer == "AdamW" for op in step.ops)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import torch\n", "without a step of an optimiser of torch.optim and called no model"),
        (LOOP.replace("optimizer.step()", "pass"), "it makes gradients, but no optimiser"),
        (LOOP.replace("range(8)", "range(1)"), "it made only one step"),
        ("import torch\nraise ValueError('no data')\n", r"line 2: it failed .* no data"),
        (LOOP.replace("nn.Linear(32", "FSDPModule(32"), "failed before it trained"),
        (f"{LOOP}    import os; os._exit(3)\n", r"line \d+: .* ended before it trained \(3\)"),
        (IN_A_THREAD, "it made only one step"),
    ],
)
def test_a_script_without_a_step_is_told_so_in_one_line(text, says, tmp_path):
    with pytest.raises(LoadError, match=says):
        record(script(tmp_path, text))


def test_a_script_that_leaves_at_once_when_it_has_trained_gives_its_steps(tmp_path):
    text = LOOP.replace("range(8)", "range(4)") + "import os; os._exit(0)\n"
    assert record_script(script(tmp_path, text), 9, 0, ignore).timing.step_times_us


def test_a_model_of_which_this_process_has_a_part_is_refused(tmp_path):
    text = LOOP.replace(
        "optimizer =",
        "class Shard(nn.Linear):\n    pass\nShard.__module__ = 'torch.distributed.fsdp.shard'\n"
        "model.append(Shard(10, 10))\noptimizer =",
    )
    with pytest.raises(LoadError, match=r"train\.py, line \d+: the model is divided by FSDP"):
        record(script(tmp_path, text))


PACKED = """
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

layer = torch.nn.LSTM(4, 8)
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for _ in range(4):
    x = pack_padded_sequence(torch.randn(5, 3, 4), [2, 5, 3], enforce_sorted=False)
    pad_packed_sequence(layer(x)[0])[0].mean().backward()
    optimizer.step()
"""


def test_recurrent_layers_are_one_kernel_in_an_estimate_also_of_packed_sequences(tmp_path):
    step = record_on_fake_tensors(script(tmp_path, PACKED), ignore).step
    (layer,) = [op for op in step.ops if op.kind == "_cudnn_rnn"]
    made = [step.storages[each].n_bytes for each in layer.makes]
    assert 10 * 8 * 4 in made  # of 2 + 5 + 3 rows, not of 15


def test_each_weight_of_a_recurrent_layer_has_its_own_update(tmp_path):
    text = PACKED.replace("SGD", "Adam")
    step = record_on_fake_tensors(script(tmp_path, text), ignore).step
    profile = estimated_profile("model", step, GPUS["h100"], Measurement())
    assert profile.op_types.count("Adam") == 4  # though their gradients are parts of one tensor


COMPARED_LATER = """
model = torch.nn.Linear(4, 4)
optimizer, best, total, right = torch.optim.SGD(model.parameters(), 0.1), math.inf, 0.0, 0
for step in range(9):
    x, y = torch.randn(8, 4), torch.randint(4, (8,))
    out = model(x)
    loss = torch.nn.functional.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
    total += loss.item()
    print(f"{total / (step + 1):.3f}", json.dumps(copy.deepcopy([loss.item(), {total: right}])))
"""


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("", None),
        ("    lowest = loss.item()  # read\n    if lowest < best: best = lowest", "to be 1"),
        ("    right += (out.argmax(1) == y).sum().item()\n    best = max(best, right)", None),
        ("    for _ in range(int(out.argmax(1).max())): model(x)  # read", "to be 1"),
        ("    if (out > 0).numpy().mean() > 0.1: model(x)  # read", "to be true"),
        ("    if math.exp(loss) > 3: model(x)  # read", "to be 1"),
        ("    out[x.sum(1) > 0].mean().item()  # read", "to be true for all rows"),
        ("    longest = int(out.argmax(1).max())  # read\n    x[:, :longest]", "the whole length"),
        ("    x[:, : out.argmax(1).sum()].max()  # read", "the whole length"),
        ("    x.unique().max()  # read", "to be all different"),
        ("    x[:, : int(y.max()) + 1].max(), x[:, : y.max()].max(), y.unique().max()", None),
        ("    if loss.isnan().item():  # read\n        break", "to be finite"),
        ("    if not loss.isfinite():\n        raise ValueError", None),
        ("    x / y.sum().item(), x[0] * y.tolist()[0]", None),
        ("    print(float(loss)) if step % 4 else None", None),
    ],
)
def test_an_estimate_names_the_lines_that_go_by_what_it_asked_for(tmp_path, more, says):
    text = "import copy, json, math, torch\n" + COMPARED_LATER + more
    about = record_on_fake_tensors(script(tmp_path, text), ignore).about
    read = [n for n, line in enumerate(text.splitlines(), 1) if "# read" in line]
    assert len(about) == len(read)
    for note, n in zip(about, read, strict=True):
        assert f"(train.py, line {n})" in note
        assert says in note


ROUTED = """
import torch
from torch import nn
functional = nn.functional
gate, experts = nn.Linear(16, 4), nn.ModuleList(nn.Linear(16, 64) for _ in range(4))
optimizer = torch.optim.SGD([*gate.parameters(), *experts.parameters()], 0.1)
for _ in range(3):
    x, loss = torch.randn(256, 16), 0
    weights, chosen = gate(x).softmax(-1).topk(2)
    ones = functional.one_hot(chosen, 4)
    for n, expert in enumerate(experts):
        {pick}
        loss = loss + (expert(x[rows]) * weights.sum(-1)[rows, None]).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def work_of_products(step):
    return sum(op.work.flops for op in step.ops if op.kind in ("addmm", "mm"))


@pytest.mark.parametrize(
    "pick",
    [
        "_, rows = torch.where(ones.permute(2, 1, 0)[n])",
        "rows = (chosen == n).any(-1)",
        "rows = ones.sum(1)[:, n].bool()",
        "rows = ones.flatten(1)[:, n::4].any(1).nonzero()[:, 0]",
        "rows = torch.zeros(256, 4).scatter_(1, chosen, 1)[:, n] > 0",
    ],
)
def test_an_estimate_divides_rows_evenly_among_the_experts_that_a_router_chooses(tmp_path, pick):
    source = script(tmp_path, ROUTED.format(pick=pick))
    real, fake = record(source), record_on_fake_tensors(source, ignore)
    assert work_of_products(fake.step) == work_of_products(real) > 0
    (about,) = fake.about
    assert re.search(r"taken to be true for (25|50)\.0 % of rows \(train.py, line 1", about)


def test_experts_of_a_library_share_the_rows_of_an_estimate(tmp_path):
    pytest.importorskip("transformers")
    sizes = "vocab_size=96, hidden_size=32, intermediate_size=48, num_local_experts=4"
    heads = "num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2"
    made = f"transformers.MixtralConfig({sizes}, {heads}, experts_implementation='eager')"
    text = LOADED.replace(
        "transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=96)", made
    )
    source = script(tmp_path, text.replace("GPT2LMHeadModel", "MixtralForCausalLM"))
    real, fake = record(source), record_on_fake_tensors(source, ignore).step
    assert work_of_products(fake) == pytest.approx(work_of_products(real), rel=0.02)


HIT = """
import torch
gate, experts = torch.nn.Linear(16, 4), torch.nn.ModuleList(torch.nn.Linear(16, 8) for _ in "abcd")
optimizer = torch.optim.Adam([*gate.parameters(), *experts.parameters()], 0.1)
for _ in range(3):
    x, loss = torch.randn(256, 16), 0
    weights, chosen = gate(x).softmax(-1).topk(2)
    ones = torch.nn.functional.one_hot(chosen, 4).permute(2, 1, 0)
    for n in torch.greater(ones.sum((-1, -2)), 0).nonzero():
        which, rows = torch.where(ones[n].squeeze(0))
        loss = loss + (experts[n](x[rows]) * weights[rows, which, None]).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_each_expert_that_is_hit_runs_in_an_estimate(tmp_path):
    source = script(tmp_path, HIT)
    real, fake = record(source), record_on_fake_tensors(source, ignore).step
    assert {op.module for op in fake.ops} == {op.module for op in real.ops}
    assert work_of_products(fake) == work_of_products(real)
    states = [sum(each.role == PARAMETER for each in step.storages) for step in (fake, real)]
    assert states[0] == states[1]


TRIMMED = """
import torch
n = torch.randint(9, 14, (64,))
masks = (torch.arange(40) < n[:, None]).long()
words = torch.randint(50, masks.shape) * masks
model = torch.nn.EmbeddingBag(50, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.utils.data.TensorDataset(words, masks)
for words, mask in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
    longest = mask.sum(1).max()
    optimizer.zero_grad()
    model(words[:, :longest]).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("read", ["", ".item()"])
def test_batches_of_an_estimate_are_trimmed_to_what_their_masks_say(tmp_path, read):
    text = TRIMMED.replace("max()", f"max(){read}")
    found = record_on_fake_tensors(script(tmp_path, text), ignore)
    rows, longest = found.step.batch_shapes[0]
    assert rows == 8
    assert 9 <= longest < 14
    assert not found.about


TWICE = """
held = torch.load("held.pt")
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
for name, layer in (("one", model[0]), ("other", model[2])):
    layer.weight = nn.Parameter(held[name])
assert not torch.equal(model[0].weight, model[0].bias)
if torch.equal(model[0].weight, model[2].weight):
    model[2].weight = model[0].weight
"""


def test_an_estimate_ties_a_weight_that_a_file_has_under_two_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({name: torch.ones(64, 64) for name in ("one", "other")}, "held.pt")
    text = LOOP.replace("optimizer = ", f"{TWICE}optimizer = ", 1).replace("32, 32", "32, 64")
    step = record_on_fake_tensors(script(tmp_path, text), ignore).step
    weights = {each.owner for each in step.storages if each.role == PARAMETER}
    assert len(weights) == 3


TIED = """
model[2].weight = model[0].weight
optimizer = """
LOAD_TIED = """
from safetensors.torch import load_model, save_model
assert load_model(model, "held.safetensors") == (set(), [])
save_model(model, "mine.safetensors")
assert load_model(model, "mine.safetensors") == (set(), [])
optimizer = """


def test_an_estimate_loads_a_tied_weight_of_which_a_file_has_one_name(tmp_path, monkeypatch):
    files = pytest.importorskip("safetensors.torch")
    monkeypatch.chdir(tmp_path)
    square = LOOP.replace("64", "32").replace("10)", "32)")
    text = square.replace("optimizer = ", TIED, 1)
    kept = {name: torch.ones(32) for name in ("0.bias", "2.bias")} | {
        "0.weight": torch.ones(32, 32)
    }
    files.save_file(kept, "held.safetensors")
    loading = text.replace("optimizer = ", LOAD_TIED, 1)
    found = record_on_fake_tensors(script(tmp_path, loading), ignore).step
    assert kinds(found) == kinds(record_on_fake_tensors(script(tmp_path, text), ignore).step)
    files.save_file({"0.weight": torch.ones(32, 32)}, "held.safetensors")
    with pytest.raises(LoadError, match=r'Missing key.*"0.bias", "2.bias"'):
        record_on_fake_tensors(script(tmp_path, loading), ignore)


@pytest.mark.parametrize("asked", ["check(x)", "(x > 1).any() and model(x)"])
def test_an_estimate_names_no_line_for_a_condition_inside_of_a_library(tmp_path, asked):
    library = tmp_path / "site-packages" / "asks.py"
    library.parent.mkdir()
    library.write_text("def check(x):\n    return x * 2 if (x > 1).any() and x.mean() > 0 else x\n")
    text = LOOP.replace("import sys", f"import sys\nsys.path.append({str(library.parent)!r})")
    text = text.replace("import torch\n", "import torch\nfrom asks import check\n", 1)
    text = text.replace("    optimizer.zero_grad()", f"    optimizer.zero_grad(); {asked}")
    about = record_on_fake_tensors(script(tmp_path, text), ignore).about
    assert bool(about) == ("check" not in asked)


def test_what_pytorchs_own_layers_fill_is_no_kernel_of_others(tmp_path):
    notes = profile_of(script(tmp_path, PACKED)).measured.notes
    assert not [note for note in notes if "does not dispatch" in note]
    own = PACKED.replace("torch.randn(5, 3, 4)", "torch.empty(5, 3, 4)")
    notes = profile_of(script(tmp_path, own)).measured.notes
    assert [note for note in notes if "line 8: PyTorch does not dispatch" in note]


def test_the_gradient_of_an_op_in_place_belongs_to_its_module(tmp_path):
    share = """
class Share(nn.Module):
    def forward(self, x):
        x = 1 + x.abs()
        x /= x.sum(-1, keepdim=True)
        return x * x

model ="""
    text = LOOP.replace("\nmodel =", share).replace("nn.ReLU(inplace=True)", "Share()")
    step = record(script(tmp_path, text))
    divided = [op for op in step.ops if op.pass_ == "backward" and op.kind in ("div", "neg")]
    assert {op.module for op in divided} == {"1"}


GATE = """
import torch
from torch import nn

class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.gate = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        x = self.before(x)
        return torch.sigmoid(self.gate(x)) * x

model = WRAP(Gate())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(8):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("wrap", ["", "nn.Sequential"])
def test_what_a_model_calls_between_blocks_and_its_gradients_are_with_the_last_one(tmp_path, wrap):
    profile = profile_of(script(tmp_path, GATE.replace("WRAP", wrap)))
    names = [[profile.op_names[op] for op in ops] for ops in find_blocks(profile)]
    gate = next(each for each in names if any("gate/addmm" in name for name in each))
    between = ["mul", "sigmoid", "gradients/mul", "gradients/mul_1", "gradients/sigmoid_backward"]
    known = {each.replace("/0/", "/").removeprefix("0/") for each in gate}
    assert known.issuperset(between)


OF_ANOTHER_LIBRARY = """
import torch

@torch.library.custom_op("mine::attend", mutates_args=())
def attend(x: torch.Tensor) -> torch.Tensor:
    return x @ x.T

attend.register_fake(lambda x: x.new_empty(len(x), len(x)))

class Model(torch.nn.Linear):
    def forward(self, x):
        return attend(super().forward(x))

model = Model(16, 4).eval()
with torch.no_grad():
    model(torch.randn(4, 16))
"""


def test_an_estimate_names_ops_whose_flops_no_formula_tells(tmp_path):
    step = record_on_fake_tensors(script(tmp_path, OF_ANOTHER_LIBRARY), ignore).step
    notes = estimated_profile("model", step, GPUS["h100"], Measurement()).measured.notes
    assert [note for note in notes if "no formula says how many FLOPs attend takes" in note]
    formula = """from torch.utils.flop_counter import register_flop_formula
register_flop_formula(torch.ops.mine.fail)(lambda *_, **__: float("nan"))

class Model"""
    text = OF_ANOTHER_LIBRARY.replace("attend", "fail").replace("class Model", formula)
    step = record_on_fake_tensors(script(tmp_path, text), ignore).step
    notes = estimated_profile("model", step, GPUS["h100"], Measurement()).measured.notes
    assert [note for note in notes if "a formula fails, or gives NaN" in note]


NOT_FOUND = "import importlib.metadata; raise importlib.metadata.PackageNotFoundError"
PARALLEL = "from torch.distributed.tensor.parallel import parallelize_module as f; f"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("assert (torch.randn(2) > 1).any(), 'no data'", "no data; .* without --estimate"),
        ("import deepspeed", "line 2: it divides its model by DeepSpeed"),
        ("raise ImportError('DeepSpeed is not installed => run')", "line 2: .* by DeepSpeed"),
        (f"{NOT_FOUND}('The \"deepspeed>=0.9\" package was not found')", "line 2: .* by DeepSpeed"),
        (f"{NOT_FOUND}('The \"peft\" package was not found')", "PackageNotFoundError: No package"),
        ("torch.cuda.reset_peak_memory_stats()", "line 2: it wants a GPU of its own"),
        ("raise SystemExit('nan')", "until then, or profile .* without --estimate"),
        (f"{PARALLEL}(torch.nn.Linear(2, 2))", "line 2: .* divided by tensor parallelism"),
        ("raise KeyError('LOCAL_RANK')", "line 2: .* torchrun .* set RANK=0"),
    ],
)
def test_what_an_estimate_cannot_do_is_said_with_the_line_and_the_mend(line, says, tmp_path):
    with pytest.raises(LoadError, match=says):
        record_on_fake_tensors(script(tmp_path, f"import torch\n{line}\n"), ignore)


@pytest.mark.parametrize(
    "first",
    ["model.double()\ntorch.set_default_dtype(torch.double)", "model(torch.ones(2, 3, 8, 8))"],
)
def test_modules_without_sizes_get_them_in_an_estimate(tmp_path, request, first):
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    lazy = """nn.Sequential(
        nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(10)
    )
"""
    sizes = ("Conv2d(3, 4, 3)", "BatchNorm2d(4)", "Linear(144, 10)")
    sized = lazy
    for one, other in zip(("Conv2d(4, 3)", "BatchNorm2d()", "Linear(10)"), sizes, strict=True):
        sized = sized.replace(f"Lazy{one}", other)
    start, end = LOOP.index("nn.Seq"), LOOP.index("optimizer =")
    loops = [f"{LOOP[:start]}{model}{first}\n{LOOP[end:]}" for model in (sized, lazy)]
    loops = [each.replace("torch.randn(32, 32)", "torch.randn(32, 3, 8, 8)") for each in loops]
    one, other = (record_on_fake_tensors(script(tmp_path, each), ignore).step for each in loops)
    assert kinds(one) == kinds(other)
    assert [*map(str, one.storages)] == [*map(str, other.storages)]


def test_a_tied_model_may_be_converted_in_an_estimate(tmp_path):
    text = LOOP.replace(
        "optimizer =", "model.append(model[0])\nmodel.to(torch.bfloat16)\noptimizer =", 1
    ).replace("nn.Linear(64, 10)", "nn.Linear(64, 32)")
    text = text.replace("torch.randn(32, 32)", "torch.randn(32, 32, dtype=torch.bfloat16)")
    step = record_on_fake_tensors(script(tmp_path, text), ignore).step
    assert [*step.tied] == [("3.weight", "0.weight"), ("3.bias", "0.bias")]


LOADED = """
import torch, transformers
config = transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=96)
model = transformers.GPT2LMHeadModel(config)
model.resize_token_embeddings(100)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    words = torch.randint(0, 96, (2, 16))
    model(input_ids=words, labels=words).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("do_sample", [False, True])
def test_words_that_a_model_makes_in_an_estimate_end_at_the_longest(tmp_path, do_sample):
    pytest.importorskip("transformers")
    text = LOADED.replace("vocab_size=96", "vocab_size=96, bos_token_id=1, eos_token_id=2")
    made = f"model.generate(words[:, :8], max_new_tokens=6, do_sample={do_sample}, pad_token_id=0)"
    text = text.replace("    model(", f"    words = {made}\n    model(")
    found = record_on_fake_tensors(script(tmp_path, text), ignore)
    embeddings = [op for op in found.step.ops if op.kind == "embedding"]
    assert len(embeddings) == 2 * (6 + 1)  # of words and places
    assert not found.about


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_weights_of_a_file_are_as_new_ones_in_an_estimate(tmp_path, kind):
    transformers = pytest.importorskip("transformers")
    transformers.logging.disable_progress_bar()  # its bars leave a thread running
    sizes = {"n_layer": 1, "n_embd": 32, "n_head": 2, "vocab_size": 96}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).save_pretrained(tmp_path / "own")
    made = LOADED.replace("(config)", f"(config).to(torch.{kind})")
    loaded = LOADED.replace("(config)", f".from_pretrained('{tmp_path}/own', dtype=torch.{kind})")
    loaded = loaded.replace("optimizer =", "model.train()\noptimizer =")
    one, other = (record_on_fake_tensors(script(tmp_path, e), ignore).step for e in (made, loaded))
    assert kinds(other) == kinds(one)
    assert [*other.alive_bytes()] == [*one.alive_bytes()]


def test_an_estimate_loads_the_model_that_the_script_has_saved(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    transformers.logging.disable_progress_bar()
    files = importlib.import_module("safetensors.torch")
    # A worker's script imports transformers itself, and so the function that saves in an estimate.
    late = "transformers.modeling_utils.safe_save_file"
    monkeypatch.setattr(late, lambda *args, **kwargs: files.save_file(*args, **kwargs))
    monkeypatch.chdir(tmp_path)
    saved = """
model.save_pretrained("own", max_shard_size="20KB")
torch.save(model.state_dict(), "own.pt")
import io, os
assert os.path.isfile("own.pt")
model = type(model).from_pretrained("own", dtype=torch.float32).train()
model.load_state_dict(torch.load("own.pt"))
torch.save(model.state_dict(), memory := io.BytesIO())
memory.seek(0)
model.load_state_dict(torch.load(memory))
import shutil
from pathlib import Path
from safetensors.torch import load, save
Path("in_bytes.pt").write_bytes(memory.getvalue())
model.load_state_dict(torch.load("in_bytes.pt"))
Path("runs").mkdir()
torch.save(model, Path("runs", "own.pt.new"))
os.replace("runs/own.pt.new", "runs/own.pt")
shutil.copyfile("runs/own.pt", "copy.pt")
whole = torch.load("copy.pt", weights_only=False)
assert next(whole.parameters()) is not next(model.parameters())
whole.requires_grad_(False)
del whole
assert load(save({"ones": torch.ones(3)}))["ones"].shape == (3,)
optimizer ="""
    made, loaded = (
        record_on_fake_tensors(script(tmp_path, text), ignore).step
        for text in (LOADED, LOADED.replace("\noptimizer =", saved, 1))
    )
    assert kinds(loaded) == kinds(made)
    assert [*loaded.alive_bytes()] == [*made.alive_bytes()]


RESUMED = """
import io, pickle, zipfile
start = torch.load("plain.pt", weights_only=False)
assert start["best"].tolist() == [7, 3]
torch.set_rng_state(start["random"])
whole = {**start, "model": model.state_dict(), "random": torch.get_rng_state()}
torch.save(whole, "own.pt")
torch.save(whole, "old.pt", _use_new_zipfile_serialization=False)
with zipfile.ZipFile("own.zip", "w") as archive, archive.open("own.pt", "w") as file:
    torch.save(whole, file)
for file in ("own.pt", "old.pt", io.BytesIO(zipfile.ZipFile("own.zip").read("own.pt"))):
    loaded = torch.load(file)
    torch.set_rng_state(loaded["random"].cpu())
    torch.Generator().set_state(loaded["random"])
    assert loaded["best"].tolist() == [7, 3]
    model.load_state_dict(loaded["model"])
written = pickle.dumps(model)
assert len(written) > 4 * sum(each.numel() for each in model.parameters())
model.load_state_dict(pickle.loads(written).state_dict())
optimizer ="""


@pytest.mark.skipif(torch.__version__ < "2.7", reason="PyTorch 2.6 does not say where content is")
def test_checkpoints_of_an_estimate_have_their_size_and_what_is_known(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = record_on_fake_tensors(script(tmp_path, LOOP), ignore).step
    torch.save({"random": torch.get_rng_state(), "best": torch.tensor([7, 3])}, "plain.pt")
    text = LOOP.replace("\noptimizer =", RESUMED, 1)
    found = record_on_fake_tensors(script(tmp_path, text), ignore)
    assert not found.about
    assert kinds(found.step) == kinds(made)
    assert [*found.step.alive_bytes()] == [*made.alive_bytes()]
    n_bytes = 4 * (32 * 64 + 64 + 64 * 10 + 10)
    assert Path("own.pt").stat().st_size > n_bytes


def test_a_file_that_a_step_loads_in_an_estimate_is_no_kernel_of_others(tmp_path, monkeypatch):
    files = pytest.importorskip("safetensors.torch")
    monkeypatch.chdir(tmp_path)
    files.save_file({"0.bias": torch.ones(64)}, "held.safetensors")
    text = LOOP.replace("import sys", "from safetensors.torch import load_file")
    text = (
        text.replace("sys.argv", "[]")
        + """
    model.load_state_dict(load_file("held.safetensors"), strict=False)
"""
    )
    step = record_on_fake_tensors(script(tmp_path, text), ignore).step
    notes = estimated_profile("loads", step, GPUS["h100"], Measurement()).measured.notes
    assert not [note for note in notes if "does not dispatch" in note]


def test_a_mask_that_broadcasts_takes_whole_rows_in_an_estimate(tmp_path):
    taken = "torch.masked_select(model(x), y[:, None] >= 0).view(-1, 10)"
    text = LOOP.replace("cross_entropy(model(x), y)", f"cross_entropy({taken}, y)")
    assert taken in text
    step = record_on_fake_tensors(script(tmp_path, text), ignore).step
    assert "masked_select" in {op.kind for op in step.ops}


def test_a_parameter_on_memory_of_python_is_viewed_in_an_estimate(tmp_path):
    read = "torch.frombuffer(bytearray(64 * 32 * 4), dtype=torch.float32).view(64, 32)"
    more = f"model[0].weight = nn.Parameter({read})\noptimizer ="
    text = LOOP.replace("optimizer =", more, 1)
    plain, found = (record_on_fake_tensors(script(tmp_path, each), ignore) for each in (LOOP, text))
    assert [op.is_view for op in found.step.ops] == [op.is_view for op in plain.step.ops]


def test_an_estimate_passes_through_what_copies_a_model_to_processes(tmp_path):
    wrapped = "model = nn.parallel.DistributedDataParallel(model)\noptimizer ="
    text = LOOP.replace("optimizer =", wrapped, 1)
    plain, found = (record_on_fake_tensors(script(tmp_path, each), ignore) for each in (LOOP, text))
    assert kinds(found.step) == kinds(plain.step)
    (left_out,) = {*found.about} - {*plain.about}
    assert left_out.startswith("What DistributedDataParallel adds is left out: its buckets")


ITERATIONS = """
import torch
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
x, y = torch.randn(16, 8), torch.randn(16, 3)
def closure():
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    return loss
for _ in range(3):
    optimizer.step(closure)
"""


def test_an_estimate_says_where_an_optimizer_iterates_until_a_value_is_small(tmp_path):
    found = record_on_fake_tensors(script(tmp_path, ITERATIONS), ignore)
    (about,) = found.about
    assert "LBFGS" in about
    assert "one evaluation of its closure" in about
    assert "(train.py, line 12)" in about


VALUES = """
        assert (x.numpy() == 1).all() and (x > 0).tolist()[0][0]
        assert torch.unique(x, return_counts=True)[1].shape == (x.numel(),)
        assert len(y.repeat_interleave(model(x).argmax(1))) == len(y)
        assert torch.masked_select(x, x > 0, out=torch.empty(0)).numel() == x.numel()
        assert torch.nonzero(x, out=torch.empty(0, dtype=torch.long)).shape == (x.numel(), 2)
        assert sum(y.repeat_interleave(y)[-y[-1] :]) == y[-1] ** 2
        import copy; copy.deepcopy(torch.tensor(1.0))
        assert f"{x.sum():.2f}" == "1.00"
        assert torch.tensor([x.sum(), x[0, 0], 3.0]).tolist() == [1, 1, 3]
        counts = torch.bincount(model(x).argmax(1), minlength=5).tolist()
        assert [len(part) for part in x.split(counts)] == [7, 7, 6, 6, 6]
        with torch.random.fork_rng():
            loaded = torch.utils.data.DataLoader(x, num_workers=1, multiprocessing_context="spawn")
            assert len([*loaded]) == len(x)
        optimizer.zero_grad()
"""


def test_what_a_script_asks_of_values_in_an_estimate_lets_it_go_on(tmp_path):
    text = LOOP.replace(
        "    optimizer.zero_grad()", textwrap.dedent(VALUES).replace("\n", "\n    ")
    )
    step = record_on_fake_tensors(script(tmp_path, text), ignore).step
    assert any(op.optimizer == "Adam" for op in step.ops)


def test_reading_memory_in_an_estimate_is_refused_with_the_line(tmp_path):
    text = LOOP.replace(
        "    optimizer.zero_grad()",
        "    bytes(x.untyped_storage())\n    optimizer.zero_grad()",
    )
    with pytest.raises(LoadError, match=r"train\.py, line \d+: .*without --estimate"):
        record_on_fake_tensors(script(tmp_path, text), ignore)


def test_the_command_profiles_and_estimates(tmp_path):
    source = script(tmp_path, LOOP)
    command = [sys.executable, "-m", "enplace", "profile", source.path, "--trust", "--json"]
    for more in (["--steps", "2", "--warm-ups", "1"], ["--estimate", "h100"]):
        out = tmp_path / "P.enplace"
        done = subprocess.run(
            [*command, "-o", str(out), *more], capture_output=True, text=True, check=True
        )
        assert json.loads(done.stdout)["ops"] > 20


def test_a_device_map_covers_a_model_and_changes_no_result(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    source = source_of(str(TRAIN), arguments=("gpt2", "--small"), framework_name="torch")
    step = record_on_fake_tensors(source, ignore).step
    profile = estimated_profile("gpt2", step, GPUS["h100"], Measurement())
    problem = Problem(profile, presets()["h100-2-nvlink"])
    device = np.array([2 if scope == "input" else "h_1" in scope for scope in profile.scopes])
    plan = Plan(device, np.arange(profile.n_ops), method="test")
    found = device_map(Result(simulate(problem, plan)))
    assert {found["transformer.h.0"], found["transformer.h.1"]} == {0, 1}
    assert found["transformer.wte"] == found["lm_head"]

    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 512}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config).eval()
    words = torch.randint(0, 512, (2, 16))
    with torch.no_grad():
        alone = model(words).logits
        on = {name: ("cpu", "disk")[number] for name, number in found.items()}
        accelerate.utils.check_device_map(model, on)
        divided = accelerate.dispatch_model(model, on, main_device="cpu", offload_dir=str(tmp_path))
        assert torch.equal(divided(words).logits, alone)


SAVING = (
    LOOP
    + """    open("log.csv", "w").write(f"{step}")
    torch.save(model.state_dict(), "best.pt")
    torch.load("best.pt")
    save_file(model.state_dict(), "best.safetensors")
    model.load_state_dict(load_file("best.safetensors"))
"""
).replace("import sys", "import sys\nfrom safetensors.torch import load_file, save_file")

NO_OVERLAYS = """
from enplace.processes import main_in_scratch, scratch
scratch.can_overlay = lambda folders: False
main_in_scratch.main()
"""


@pytest.mark.parametrize("led", [False, True], ids=["overlay", "led"])
@pytest.mark.parametrize("estimate", ["", "h100"])
def test_what_a_script_saves_changes_no_file(tmp_path, monkeypatch, estimate, led):
    if estimate:  # others start as in use
        fork_workers(monkeypatch)
    if led:
        start = (sys.executable, "-c", NO_OVERLAYS)
        monkeypatch.setattr(worker, "python_module", lambda _, handler: (*start, handler))
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SAVING)
    Path("log.csv").write_text("mine")
    Path("best.pt").write_text("mine, too")
    Path("best.safetensors").write_text("mine, as well")
    profile = measure_profile(source_of("train.py", estimate=estimate), "cpu:1", 2, 1)
    assert profile.n_ops > 10
    assert Path("log.csv").read_text() == "mine"
    assert Path("best.pt").read_text() == "mine, too"
    assert Path("best.safetensors").read_text() == "mine, as well"


SERVING = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
small = nn.Linear(4, 4)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
with torch.inference_mode():
    for rows in (9, 4, 4, 1, 4, 4, 4, 4, 4, 4, 4):
        found = model(torch.randn(rows, 8))
        small(torch.randn(1, 4))
        print(float(found.sum()), file=open(sys.argv[1], "a"))
"""


@pytest.mark.parametrize("words", ["", "# then it trains"])
def test_a_script_that_only_serves_gives_a_forward_pass(words, tmp_path):
    alone, recorded = tmp_path / "alone", tmp_path / "recorded"
    source = script(tmp_path, SERVING + words, str(recorded))
    run_fork([sys.executable, source.path, str(alone)], check=True)
    found = record_script(source, 2, 1, ignore)
    lines = recorded.read_text().splitlines()
    assert lines == alone.read_text().splitlines()[: len(lines)]
    assert len(lines) == (11 if words else 8)  # enough, if no word is of training
    assert [each for each in kinds(found.step) if each[0] != "t"] == [
        ("addmm", "0", "forward"),
        ("relu", "1", "forward"),
        ("addmm", "2", "forward"),
    ]
    assert found.step.batch_shapes == ((4, 8),)
    assert len(found.timing.step_times_us) == 2
    assert found.about == (
        "A forward pass of Sequential was recorded: its call 9.",
        "Calls of Linear are not in it.",
    )
    fake = record_on_fake_tensors(script(tmp_path, SERVING + words, str(recorded)), ignore)
    assert kinds(fake.step) == kinds(found.step)


def test_a_forward_pass_of_a_script_that_trains_is_recorded_if_wanted(tmp_path):
    (tmp_path / "train.py").write_text(LOOP)
    source = source_of(str(tmp_path / "train.py"), forward=True, framework_name="torch")
    assert {op.pass_ for op in record(source).ops} == {"forward"}


@pytest.mark.parametrize("name", [*HOOKS, *OF_STEPS, *OF_FAKES])
def test_a_function_that_another_pytorch_lacks_is_named(monkeypatch, name):
    owner, _, last = name.rpartition(".")
    monkeypatch.delattr(sys.modules.get(owner) or pkgutil.resolve_name(owner), last)
    with pytest.raises(EnplaceError, match=f"has no {re.escape(name)}; use another version: 2.6"):
        check_hooks(*OF_STEPS, *OF_FAKES)


@pytest.mark.parametrize(
    "name",
    [
        "torch.overrides._get_current_function_mode_stack",
        "torch._subclasses.fake_tensor.FakeTensorMode",
        "torch.utils.flop_counter.flop_registry",
        "torch.utils._python_dispatch._disable_current_modes",
        "torch.utils._python_dispatch.TorchDispatchMode",
    ],
)
def test_what_cannot_be_imported_from_another_pytorch_is_named(monkeypatch, name):
    known = {
        key: each
        for key, each in sys.modules.items()
        if key.startswith("enplace.frameworks.torch.")
    }
    for key, each in known.items():  # an import anew replaces it in its package, too
        package, _, last = key.rpartition(".")
        monkeypatch.setattr(known.get(package) or sys.modules[package], last, each, raising=False)
    for key in known:
        monkeypatch.delitem(sys.modules, key)
    monkeypatch.delattr(name)
    last = name.rpartition(".")[2]
    with pytest.raises(EnplaceError, match=f"has no {last}; use another version: 2.6"):
        check_imports()


SPARSE = """
import torch
from torch import nn

edges = torch.tensor([[0, 1, 2, 3, 3], [1, 0, 3, 2, 0]])
adjacent = torch.sparse_coo_tensor(edges, torch.ones(5), (4, 4)).coalesce()
rows = adjacent.to_sparse_csr()
words, layer = nn.Embedding(64, 16, sparse=True), nn.Linear(16, 8)
of_words = torch.optim.SparseAdam(words.parameters())
of_layer = torch.optim.Adam(layer.parameters())
for _ in range(3):
    x = words(torch.tensor([1, 5, 5, 9]))
    x = torch.sparse.mm(adjacent, layer(x))
    (rows @ x).square().mean().backward()
    of_words.step()
    of_layer.step()
    of_words.zero_grad()
    of_layer.zero_grad()
"""


def test_sparse_tensors_count_with_what_they_hold(tmp_path):
    step = record(script(tmp_path, SPARSE))
    assert {op.optimizer for op in step.ops if op.step_call} == {"SparseAdam", "Adam"}
    (product,) = (op for op in step.ops if op.kind == "_sparse_addmm" and op.pass_ == "forward")
    assert product.work.flops == pytest.approx(2 * 5 * 8)
    held = [each.n_bytes for each in step.storages if each.role == GRADIENT]
    assert max(held) < 64 * 16 * 4  # rows that were read, not the whole table
    graph_of(step, MeasuredCosts(Timing()))


def test_an_estimate_says_that_it_does_not_know_what_sparse_tensors_hold(tmp_path):
    found = record_on_fake_tensors(script(tmp_path, SPARSE), ignore)
    assert any("a sparse tensor holds is not known" in each for each in found.about)


FUNCTIONAL = """
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(net.parameters())
def u(x, own):
    return functional_call(net, own, (x.view(1, 1),)).squeeze()
for _ in range(3):
    found = vmap(grad(grad(u)), (0, None))(torch.rand(4), dict(net.named_parameters()))
    optimizer.zero_grad()
    found.square().mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("estimated", [False, True])
def test_models_inside_of_functional_transforms_are_recorded(tmp_path, estimated):
    source = script(tmp_path, FUNCTIONAL)
    step = record_on_fake_tensors(source, ignore).step if estimated else record(source)
    owners = {each.owner for each in step.storages if each.role == PARAMETER}
    assert owners == {"0.weight", "0.bias", "2.weight", "2.bias"}


ALIGNED = """
import torch
from torch import nn
model = nn.Linear(8, 5)
optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=True)
for _ in range(3):
    optimizer.zero_grad()
    given, labels = model(torch.randn(12, 3, 8)).log_softmax(-1), torch.randint(1, 5, (3, 4))
    nn.functional.ctc_loss(given, labels, LENGTHS).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "lengths", ["[12] * 3, [4, 2, 3]", "torch.full((3,), 12), torch.tensor([4, 2, 3])"]
)
def test_a_loss_that_aligns_labels_is_estimated_as_it_is_measured(lengths, tmp_path):
    source = script(tmp_path, ALIGNED.replace("LENGTHS", lengths))
    estimated, measured = record_on_fake_tensors(source, ignore).step, record(source)
    found, expected = ({name for name, *_ in kinds(step)} for step in (estimated, measured))
    assert {"_ctc_loss", "_ctc_loss_backward"} <= found & expected
    kept = 4 * 3 * 12 * (2 * 4 + 1)  # for each sequence and step, two for each label and one
    assert all(kept in [each.n_bytes for each in step.storages] for step in (estimated, measured))


PER_SAMPLE = """
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

net = nn.Linear(8, 3)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
def loss(own, x, y):
    return nn.functional.cross_entropy(functional_call(net, own, (x[None],)), y[None])
for _ in range(3):
    own = {name: each.detach() for name, each in net.named_parameters()}
    x, y = torch.randn(4, 8), torch.randint(0, 3, (4,))
    found = vmap(grad(loss), (None, 0, 0))(own, x, y)
    for name, each in net.named_parameters():
        each.grad = found[name].mean(0)
    optimizer.step()
"""


def test_an_estimate_takes_gradients_of_each_sample_as_a_measured_step_does(tmp_path):
    source = script(tmp_path, PER_SAMPLE)
    estimated, measured = record_on_fake_tensors(source, ignore).step, record(source)
    assert len(estimated.ops) == len(measured.ops)


ODD_TENSORS = """
import torch
model = torch.nn.Linear(4, 4).eval()
with torch.no_grad():
    for _ in range(3):
        model(torch.randn(2, 4).to_mkldnn().relu().to_dense())
        parts = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=layout)
        model(parts)
"""


@pytest.mark.parametrize("layout", ["strided", "jagged"])
def test_tensors_without_a_storage_are_recorded(tmp_path, layout):
    text = ODD_TENSORS.replace("layout=layout", f"layout=torch.{layout}")
    assert record(script(tmp_path, text)).ops


def test_an_op_that_cannot_be_recorded_is_named_and_the_script_is_not_blamed(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("no such layout")

    recorder = sys.modules["enplace.frameworks.torch.record.recorder"]
    monkeypatch.setattr(recorder, "work_of", fail)
    with pytest.raises(LoadError, match=r"train\.py, line \d+: the script is right, .*aten::"):
        record(script(tmp_path, LOOP))


@pytest.mark.parametrize(
    "gradients",
    [
        "torch.autograd.grad(model(x).square().mean(), [*model.parameters()])",
        "torch.func.grad(lambda own: torch.func.functional_call(model, own, (x,)).mean())"
        "(dict(model.named_parameters()))",
    ],
)
def test_a_script_that_never_stops_making_gradients_without_a_step_ends(tmp_path, gradients):
    text = f"""
import torch
model = torch.nn.Linear(2, 1)
while True:  # train
    x = torch.randn(4, 2)
    {gradients}
"""
    with pytest.raises(LoadError, match="it makes gradients, but no optimiser"):
        record(script(tmp_path, text))


@pytest.mark.parametrize(("steps", "recordings"), [(4, 2), (6, 3), (9, 4)])
def test_short_scripts_are_recorded_several_times(tmp_path, monkeypatch, steps, recordings):
    begun = []
    usual = Recording.begin
    monkeypatch.setattr(Recording, "begin", lambda *given: begun.append(1) or usual(*given))
    text = LOOP.replace("range(8)", f"range({steps})")
    found = record_script(script(tmp_path, text), 3, 1, ignore)
    assert found.timing.step_times_us
    assert len(begun) == 1 + recordings  # the first call, too


TWINS = """
import torch

class Tower(torch.nn.Linear):
    pass

text, image = torch.compile(Tower(4, 4).eval()), Tower(4, 4).eval()
with torch.no_grad():
    for _ in range(12):
        text(torch.randn(2, 4)), image(torch.randn(2, 4))
"""


def test_a_compiled_model_and_another_of_its_class_are_told_apart(tmp_path):
    about = record_script(script(tmp_path, TWINS), 1, 0, ignore).about
    assert about[1:] == ("Calls of another Tower are not in it.",)
    alone = TWINS.replace(", image(torch.randn(2, 4))", "")
    assert len(record_script(script(tmp_path, alone), 1, 0, ignore).about) == 1


NORMED = """
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
model = nn.Sequential(nn.Linear(4, 4), weight_norm(nn.Linear(4, 4)))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(6):
    scale = model[1].weight.detach().norm(), model[0](torch.ones(1, 4)).detach().norm()
    optimizer.zero_grad()
    model(torch.randn(8, 4)).mean().backward()
    optimizer.step()
"""


def test_parts_of_a_model_that_are_called_before_it_are_no_models_of_their_own(tmp_path):
    profile = profile_of(script(tmp_path, NORMED))
    assert {"0/weight", "1/parametrizations/weight/original1"} <= {*profile.op_names}
    assert not [name for name in profile.op_names if name.startswith("model")]


def test_a_script_that_leaves_its_work_to_other_processes_is_told_so(tmp_path):
    text = """
import multiprocessing
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=print)
    child.start()
    child.join()
"""
    with pytest.raises(LoadError, match="it starts other processes"):
        record(script(tmp_path, text))


@pytest.mark.parametrize(
    "text", ["import torch\nmodel = (3\n", "import torch\ntorch.ones(2, 'x')\n"]
)
def test_what_is_printed_of_a_failure_shows_the_script_alone(tmp_path, capsys, text):
    with pytest.raises(LoadError, match=r"train\.py"):
        record(script(tmp_path, text))
    printed = capsys.readouterr().err
    assert "train.py" in printed
    assert "enplace" not in printed


AVERAGES = """
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
mean = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer.register_step_post_hook(lambda *_: mean.update_parameters(model))
"""
COUNTS = """
class Counts:
    taken, is_on = torch.zeros(2, dtype=torch.int64), torch.tensor(False)
    def __call__(self, *_):
        self.taken[1] += 1
        if not self.is_on:
            self.is_on.copy_(torch.tensor(True))
        elif (self.taken.max() - 1).clamp(min=0).item() > 0 and self.taken.any():
            model(torch.zeros(self.taken.tolist()[1], 32))
optimizer.register_step_post_hook(Counts())
"""
FINITE = """
def look(*_):
    found = torch.stack([p.grad.norm() for p in model.parameters()])
    if not torch.isfinite(found).all() or found.isnan().sum() > 0 or (found != found).any():
        raise ValueError
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
optimizer.register_step_pre_hook(look)
"""
CHOICES = """
model.register_buffer("best", torch.tensor(float("inf")))
def choose(*_):
    found, best = model[0].weight.detach().mean(), model.best
    if found < best:
        model.best = found
    chosen = torch.randn(8, 4).topk(2).indices
    for each in range(4):
        if (chosen == each).any():
            model(torch.zeros(8, 32))
optimizer.register_step_pre_hook(choose)
"""


@pytest.mark.parametrize(
    ("more", "n_lines"), [(AVERAGES, 0), (COUNTS, 0), (FINITE, 1), (CHOICES, 2)]
)
def test_an_estimate_goes_by_the_conditions_that_a_step_has(tmp_path, more, n_lines):
    text = LOOP.replace("for step", more + "for step").replace("1e-3", "1e-3, foreach=True")
    source = script(tmp_path, text)
    real, fake = record(source), record_on_fake_tensors(source, ignore)
    assert kinds(fake.step) == kinds(real)
    assert sum(len(re.findall(r", line \d+", each)) for each in fake.about) == n_lines


@pytest.mark.parametrize("asked", ["data_ptr()", "untyped_storage().data_ptr()"])
def test_an_estimate_has_no_address_for_a_kernel_outside_pytorch(tmp_path, asked):
    source = script(tmp_path, f"import torch\nprint(torch.randn(4).{asked})\n")
    with pytest.raises(LoadError, match=r"train\.py, line 2: it asks for the address"):
        record_on_fake_tensors(source, ignore)


def test_a_loop_that_waits_for_a_value_ends_in_an_estimate(tmp_path, monkeypatch):
    monkeypatch.setattr("enplace.frameworks.torch.open.answers.MOST_ASKED", 100)
    text = "import torch\nwhile torch.randn(4).mean() > -10:\n    pass\n"
    with pytest.raises(LoadError, match=r"train\.py, line 2: it has asked .* without --estimate"):
        record_on_fake_tensors(script(tmp_path, text), ignore)


def test_a_step_on_one_micro_batch_has_the_same_ops_on_fewer_samples(tmp_path):
    source = script(tmp_path, LOOP)
    whole = record(source)
    with first_rows(2):
        part = record(source)
    cuts = [kind for kind in kinds(part) if kind[0] == "slice"]  # of what the model gets, and y
    assert len(cuts) == 2
    others = [kind for kind in kinds(part) if kind not in cuts]
    added = [(old, new) for old, new in zip(kinds(whole), others, strict=True) if old != new]
    assert {(old[0], new[0]) for old, new in added} == {("detach", "add_")}  # gradients of weights
    assert len(added) == 4
    assert (part.batch_shapes, whole.batch_shapes) == (((16, 32),), ((32, 32),))
    with pytest.raises(PipelineRefusedError, match="micro-batches of one size"), first_rows(7):
        record(source)


ACCURACY = """
    with torch.no_grad():
        guesses = out.argmax(1)
        right = (guesses == y).sum().item() / y.size(0)
        right += guesses.eq(y.view(1, -1).expand_as(guesses[None])).float().mean().item()
"""
CLASSIFIER = f"""
import torch
from torch import nn
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), foreach=True)
for step in range(6):
    x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
    optimizer.zero_grad()
    out = model(x)
    nn.functional.cross_entropy(out, y).backward()
    optimizer.step()
{ACCURACY}
    assert all(s["exp_avg"].shape == p.shape for p, s in optimizer.state.items())
"""
FOREACH = {"_foreach_lerp_", "_foreach_addcdiv_", "_foreach_addcmul_"}


def test_what_inference_mode_counted_is_read_outside_of_it(tmp_path):
    text = CLASSIFIER.replace("no_grad()", "inference_mode()").replace(".item()", "")
    source = script(
        tmp_path, text.replace("    assert", "    right.item(), float(right)\n    assert")
    )
    real, fake = record(source), record_on_fake_tensors(source, ignore).step
    assert kinds(fake) == kinds(real)
    assert "item" not in {each[0] for each in kinds(real)}


DRAWN = "torch.randint(0, 4, ({},))"


@pytest.mark.parametrize("draws_later", [False, True])
def test_a_script_counts_right_answers_of_a_micro_batch_after_its_step(tmp_path, draws_later):
    rest = "6 if step == 2 else 16"
    text = CLASSIFIER.replace("randn(16", f"randn({rest}")
    if draws_later:
        text = text.replace(f", {DRAWN.format(16)}", ", None")
        text = text.replace("out = model(x)", f"out, y = model(x), {DRAWN.format(rest)}")
    source = script(tmp_path, text.replace("(16,)", f"({rest},)"))
    with first_rows(4):
        found = record(source)
    assert found.batch_shapes == ((4, 8),)
    updates = [kind for kind in kinds(found) if kind[0] in FOREACH]
    assert updates == [kind for kind in kinds(record(source)) if kind[0] in FOREACH]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("right +=", "torch.zeros(32, 4)[:16] = out\n        right +="),
        ("out = model(x)", "out = model(x).view(16, 4)"),
    ],
)
def test_a_script_that_needs_whole_batches_is_told_to_leave_out_the_cut(tmp_path, old, new):
    source = script(tmp_path, CLASSIFIER.replace(old, new))
    why = r"line \d+: .*; with --cut-batch 4 its .*, or leave --cut-batch out$"
    with pytest.raises(LoadError, match=why), first_rows(4):
        record(source)
    record(source)


BESIDE = """
import copy
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

model = nn.Sequential(nn.Embedding(50, 64), nn.Flatten(), nn.Linear(256, 8), nn.BatchNorm1d(8))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
data, extra, penalty = torch.randint(0, 50, (64, 4)), torch.zeros(()), 0.0
{before}
for step in range(4):
    x, y = data[:16], torch.randn(16, 8)
    {first}
    (((model(x) - y) ** 2).mean() + penalty).backward()
    optimizer.step()
    {last}
"""


def of_beside(tmp_path, before="", first="optimizer.zero_grad()", last=""):
    source = script(tmp_path, BESIDE.format(before=before, first=first, last=last))
    step = record_on_fake_tensors(source, ignore).step
    return estimated_profile("model", step, GPUS["h100"], Measurement())


AVERAGE = {
    "before": "average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))",
    "last": "optimizer.zero_grad(); average.update_parameters(model)",
    "first": "",
}


@pytest.mark.parametrize(
    "lines",
    [
        {},
        AVERAGE,
        AVERAGE | {"last": "average.update_parameters(model)", "first": "optimizer.zero_grad()"},
        {"first": "optimizer.zero_grad(False)"},
        {"first": "optimizer.zero_grad(); penalty = sum((p**2).sum() for p in model.parameters())"},
        {"first": "optimizer.zero_grad(); y = y + model[2].bias.detach() + model[3].running_mean"},
        {"first": "optimizer.zero_grad(); extra = torch.ones(3, requires_grad=True); "
         "penalty = (extra * data[:3, 0]).sum()"},
        {"before": "target = copy.deepcopy(model)",
         "first": "optimizer.zero_grad(); y = y + target(x).detach()",
         "last": "[p.data.lerp_(q.data, 0.1) for p, q in zip(target.parameters(), "
         "model.parameters())]"},
    ],
)  # fmt: skip
def test_ops_of_an_estimate_that_share_a_device_run_on_one_kind_of_it(tmp_path, lines):
    profile = of_beside(tmp_path, **lines)
    runs = np.isfinite(profile.time_us)
    for group in np.unique(profile.colocation):
        of_group = profile.colocation == group
        assert runs[of_group].all(axis=0).any(), np.array(profile.op_names)[of_group]


@pytest.mark.parametrize("is_by_hand", [False, True])
def test_an_average_of_a_parameter_is_part_of_it_and_so_is_its_update(tmp_path, is_by_hand):
    by_hand = {
        "before": "means = [p.detach().clone() for p in model.parameters()]",
        "last": "[m.mul_(0.9).add_(p.detach(), alpha=0.1) "
        "for m, p in zip(means, model.parameters())]",
        "first": "optimizer.zero_grad()",
    }
    profile, plain = of_beside(tmp_path, **by_hand if is_by_hand else AVERAGE), of_beside(tmp_path)
    kind = "add_" if is_by_hand else "_foreach_lerp_"
    update = profile.index[f"update/2/weight/{kind}"]
    weight = profile.index["2/weight"]
    assert profile.op_passes[update] == OpPass.UPDATE
    assert profile.colocation[update] == profile.colocation[weight]
    held = plain.persistent_bytes[plain.index["2/weight"]]
    assert profile.persistent_bytes[weight] == held + 4 * 8 * 256
    assert not any(name.startswith("input/") and kind in name for name in profile.op_names)


@pytest.mark.parametrize(
    "optimizer",
    [
        "SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.01)",
        "SGD(model.parameters(), 0.1)",
    ],
)
def test_updates_have_the_same_flops_in_an_estimate_as_measured(tmp_path, optimizer):
    text = LOOP.replace("Adam(model.parameters(), 1e-3)", optimizer)
    source = script(tmp_path, text)
    estimated = record_on_fake_tensors(source, ignore).step
    estimated = estimated_profile("model", estimated, GPUS["h100"], Measurement())
    measured = profile_of(source)
    update = "update/0/weight/SGD"
    expected = pytest.approx(measured.flops[measured.index[update]])
    assert estimated.flops[estimated.index[update]] == expected
