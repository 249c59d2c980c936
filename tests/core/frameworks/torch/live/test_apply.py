"""Plans in a script's own process, and modules on several devices."""

import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from enplace.errors import ClusterError, EnplaceError  # noqa: E402
from enplace.frameworks.torch.device_map import find_modules  # noqa: E402
from enplace.frameworks.torch.run import hooks  # noqa: E402
from enplace.frameworks.torch.run.hooks import PlacedModules, modules_in_plan, torch_devices  # noqa: E402
from enplace.frameworks.torch.run.matching import planned_devices  # noqa: E402
from enplace.frameworks.torch.run.placed import Labels  # noqa: E402
from enplace.machine import simulate  # noqa: E402
from enplace.placing.again import Kept  # noqa: E402
from enplace.placing.settle import settle  # noqa: E402
from enplace.readers.clusters import presets  # noqa: E402
from enplace.values.plan import Plan, follow_graph  # noqa: E402
from enplace.values.problem import Problem, split_problem  # noqa: E402
from enplace.values.result import Result  # noqa: E402
from enplace.writers import write_plan  # noqa: E402
from forking import run_fork  # noqa: E402
from torch_scripts import profile_of, script  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

HEAD = """
import sys
import torch
from torch import nn

torch.manual_seed(0)

class Block(nn.Module):
    def __init__(self, n, wide):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(n), nn.Linear(n, wide), nn.Linear(wide, n)
        self.between = between

    def forward(self, x):
        return x + 0.5 * self.down(self.between(self.up(self.norm(x))))

if len(sys.argv) > 1:
    import enplace
    enplace.apply(sys.argv[1])
"""
TEXT = f"""{HEAD}
between = nn.ReLU()  # one module, which all blocks share

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.blocks = nn.Embedding(32, 8), nn.ModuleList([Block(8, 16), Block(8, 16)])
        self.head = nn.Linear(8, 32, bias=False)

    def forward(self, x):
        x = self.emb(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

model = Model()
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
for step in range(5):
    x = torch.randint(0, 32, (4, 6))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
    loss.backward()
    optimizer.step()
    print(repr(loss.item()))
"""


def made_plan(tmp_path, cluster="cpu-2", by_op=False):
    """Write the script, and a plan with its modules or ops at random."""
    profile = profile_of(script(tmp_path, TEXT))
    problem, rng = Problem(profile, presets()[cluster]), np.random.default_rng(2)
    device = settle(problem, rng.integers(0, 2, profile.n_ops))
    for group in find_modules(profile):
        device[group] = rng.integers(0, 2)
    if by_op:
        device[profile.index["blocks_1/mul"]] = 1 - device[profile.index["blocks_1/add"]]
    order = follow_graph(profile, np.arange(profile.n_ops))
    plan = tmp_path / "plan.json"
    write_plan(plan, Result(simulate(problem, Plan(device, order, method="test"))))
    return plan, dict(zip(profile.op_names, device.tolist(), strict=True))


def train(tmp_path, *words, run=run_fork):
    command = [sys.executable, str(tmp_path / "train.py"), *map(str, words)]
    return run(command, capture_output=True, text=True, check=False)


def test_a_script_that_applies_a_plan_trains_as_without(tmp_path):
    plan, _ = made_plan(tmp_path)
    plain, placed = train(tmp_path), train(tmp_path, plan, run=subprocess.run)  # as in use
    assert placed.stdout == plain.stdout
    assert len(plain.stdout.splitlines()) == 5
    assert "Model: 12 of 12 modules on their planned device, 2 devices" in placed.stderr
    assert "labels of one CPU" in placed.stderr


def test_a_plan_that_divides_a_module_and_one_of_another_model_say_so_in_a_line(tmp_path):
    plan, planned = made_plan(tmp_path, by_op=True)
    refused = train(tmp_path, plan)
    assert refused.returncode != 0
    assert "make a plan with --grain module" in refused.stderr.splitlines()[-1]
    assert modules_in_plan(nn.Linear(2, 2), planned) is None


def test_a_plan_for_gpus_that_are_not_here_is_refused():
    if torch.cuda.device_count() >= 2:
        pytest.skip("this machine has them")
    cluster = presets()["h100-2-nvlink"]
    plan = Plan(np.array(cluster.gpus), np.array([0, 1]), method="test")
    with pytest.raises(ClusterError, match=r"PyTorch sees \d GPUs here"):
        torch_devices(cluster, plan)


BLOCKS = f"""{HEAD}
def between(x):
    return nn.functional.dropout(nn.functional.gelu(x), 0.1)

model = nn.Sequential(*(Block(32, 128) for _ in range(3)), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(6):
    optimizer.zero_grad()
    for part in range(2):  # gradients of two batches are summed
        x, y = torch.randn(16, 16, 32), torch.randint(0, 10, (16 * 16,))
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y)
        loss.backward()
        with torch.no_grad():
            model(x)
    optimizer.step()
    print(repr(loss.item()), *(repr(p.sum().item()) for p in model.parameters()))
"""


def frugal_plan(tmp_path, way):
    """Write the script; return a plan on one device that keeps less, and its problem."""
    profile = profile_of(script(tmp_path, BLOCKS), 1)
    profile = replace(profile, time_us=np.repeat(profile.time_us[:, 1:], 2, axis=1))
    problem = Problem(profile, presets()["cpu-2" if way == "recompute" else "h100-2-nvlink"])
    order = follow_graph(profile, np.arange(profile.n_ops))
    base = simulate(problem, Plan(np.zeros(profile.n_ops, dtype=int), order, "test"))
    kept = Kept(problem, recompute=way != "offload", offload=way != "recompute")
    inside = [op for op in range(profile.n_ops) if profile.scopes[op][:1].isdecimal()]
    again = [op for op in inside if kept.can[op] and profile.op_types[op] in ("gelu", "mul")]
    sent = [op for op in inside if kept.can_send[op] and op not in again]
    return problem, kept.copied(base, again, sent)


def test_a_script_that_applies_a_plan_which_recomputes_trains_as_without(tmp_path):
    problem, plan = frugal_plan(tmp_path, "recompute")
    write_plan(tmp_path / "plan.json", Result(simulate(problem, plan)))
    plain, placed = train(tmp_path), train(tmp_path, tmp_path / "plan.json")
    assert placed.stdout == plain.stdout
    assert len(plain.stdout.splitlines()) == 6
    assert "; 12 of 12 ops computed again" in placed.stderr


class Counted(TorchDispatchMode):
    """Counts the bytes of the storages that ops read and make, while these live."""

    def __init__(self):
        super().__init__()
        self.labels = Labels(1)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for each in tree_leaves((args, kwargs, out)):
            if isinstance(each, torch.Tensor) and self.labels.of(each).device is None:
                self.labels.put(self.labels.of(each), 0)
        return out


@pytest.mark.parametrize("way", ["recompute", "offload", "both"])
def test_a_placed_model_holds_less_and_makes_the_same_gradients(tmp_path, monkeypatch, way):
    problem, plan = frugal_plan(tmp_path, way)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    scope = {"__name__": "train"}
    exec(compile(BLOCKS.partition("optimizer =")[0], "train.py", "exec"), scope)
    model, x = scope["model"], torch.randn(64, 16, 32)

    def step():
        torch.manual_seed(1)
        model.zero_grad()
        with Counted() as counted:
            for _ in range(2):
                model(x).square().mean().backward()
                with torch.no_grad():
                    model(x)
        return counted.labels.peak_bytes[0], [p.grad.clone() for p in model.parameters()]

    before, expected = step()
    planned = planned_devices(split_problem(problem, plan.splits), plan)
    cpu = torch.device("cpu")
    placed = hooks.place_model(model, planned, dict.fromkeys(range(3), cpu), plan.splits)
    after, found = step()
    placed.remove()
    assert all(torch.equal(*each) for each in zip(found, expected, strict=True))
    for what in ("computed again", "sent to the host"):
        about = re.search(rf"(\d+) of (\d+) ops {what}", str(placed))
        assert about is None or about[1] == about[2]
    assert "of" in str(placed).partition(";")[2]
    if way == "recompute":
        assert after < 0.9 * before


class Sent(torch.autograd.Function):
    """Sends a tensor that may lose its content on the way, as to ``meta`` and back."""

    @staticmethod
    def forward(ctx, tensor, device):
        ctx.device = tensor.device
        return torch.empty_like(tensor, device=device)

    @staticmethod
    def backward(ctx, gradient):
        return torch.empty_like(gradient, device=ctx.device), None


def test_modules_on_two_devices_train_with_parameters_and_gradients_where_planned(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(hooks, "send", Sent.apply)
    _, planned = made_plan(tmp_path)
    scope = {"__name__": "train", "sys": sys}
    monkeypatch.setattr(sys, "argv", ["train.py"])
    exec(compile(TEXT.partition("model = Model()")[0], "train.py", "exec"), scope)
    model = scope["Model"]()
    found = modules_in_plan(model, planned)
    real = [torch.device("cpu"), torch.device("meta")]
    placed = PlacedModules(model, {path: real[at] for path, at in found.items()}, 2)
    try:
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        for _ in range(2):
            optimizer.zero_grad()
            x = torch.randint(0, 32, (4, 6))
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
            loss.backward()
            optimizer.step()
    finally:
        placed.remove()
    for name, parameter in model.named_parameters():
        at = real[
            planned[
                "/".join([hooks.scope_of_module(name.rpartition(".")[0]), name.rpartition(".")[2]])
            ]
        ]
        assert parameter.device == parameter.grad.device == at
    assert {p.device.type for p in model.parameters()} == {"cpu", "meta"}
    assert all(placed.called.values())
    assert len(placed.called) == len(found)


def test_a_layer_without_parameters_may_be_called_on_two_devices():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU())
    planned = {"0/weight": 0, "0/mm": 0, "1/relu": 0, "1/relu_1": 1}
    assert modules_in_plan(model, planned) == {"0": 0}


def test_calls_of_a_module_around_others_follow_these_in_a_pipeline():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)))
    planned = {"0_0/weight": 0, "0_0/mm": 0, "0/add": 0, "0_1/weight": 1, "0_1/mm": 1, "0/mul": 1}
    assert modules_in_plan(model, planned, in_stages=True) == {"0.0": 0, "0.1": 1}
    with pytest.raises(EnplaceError, match="'0' would be divided"):
        modules_in_plan(model, planned)
