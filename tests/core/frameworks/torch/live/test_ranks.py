"""Scripts that apply a plan as a pipeline, under `torchrun`; `make test-torch` runs them."""

import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from enplace.errors import ClusterError, EnplaceError  # noqa: E402
from enplace.frameworks.source import source_of  # noqa: E402
from enplace.frameworks.torch.measure.measure import measured_profile  # noqa: E402
from enplace.frameworks.torch.open.scripts import record_script  # noqa: E402
from enplace.frameworks.torch.pipelines import joining  # noqa: E402
from enplace.machine import simulate  # noqa: E402
from enplace.processes.worker import ignore  # noqa: E402
from enplace.readers.clusters import presets  # noqa: E402
from enplace.values.measurement import Measurement  # noqa: E402
from enplace.values.plan import Plan, follow_graph  # noqa: E402
from enplace.values.problem import Problem  # noqa: E402
from enplace.values.result import Result  # noqa: E402
from enplace.writers import write_plan  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

SCRIPT = """
import sys
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

if len(sys.argv) > 1:
    import enplace
    enplace.apply(sys.argv[1], pipeline="1f1b", microbatches=4)
torch.manual_seed(0)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(16, 8)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, x):
        x = self.emb(x)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x)

def loss_of(out, y):
    return nn.functional.cross_entropy(out.flatten(0, 1), y.flatten())

def total(tensors):
    return sum(each.double().abs().sum().item() for each in tensors)

model = Model()
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
data = torch.utils.data.TensorDataset(*torch.randint(0, 16, (2, 21, 5)))
for epoch in range(2):
    model.train()
    for x, y in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):  # 8, 8 and 5
        optimizer.zero_grad()
        for part in range(2):  # gradients add up
            with torch.autocast("cpu", torch.bfloat16, enabled=epoch == 1):
                loss = loss_of(model(x), y)
            (loss / 2).backward()
        norm = clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        print(loss.item(), norm.item())
    model.eval()
    with torch.no_grad():
        out = model(data.tensors[0])
        right = (out.argmax(-1) == data.tensors[1]).sum()
        print(loss_of(out, data.tensors[1]).item(), right.item())
states = optimizer.state_dict()["state"].values()
print(total(model.state_dict().values()), total(each["exp_avg"] for each in states))
"""

STAGES = ("layers_1", "layers_2", "head", "loss")


def made_plan(tmp_path, script=SCRIPT, cluster=None):
    """Write the script, and a plan with its second half on another device."""
    path = tmp_path / "train.py"
    path.write_text(script)
    source = source_of(str(path), framework_name="torch")
    found = record_script(source, 0, 0, ignore)
    profile = measured_profile("model", found.step, found.timing, Measurement(framework="torch"))
    problem = Problem(profile, cluster or presets()["cpu-2"])
    device = np.array([int(any(s in name for s in STAGES)) for name in profile.op_names])
    plan = Plan(device, follow_graph(profile, np.arange(profile.n_ops)), method="test")
    write_plan(tmp_path / "plan.json", Result(simulate(problem, plan)))
    return problem, plan


def torchrun(tmp_path, *words, options=("--standalone", "--nproc-per-node=2")):
    command = [sys.executable, "-m", "torch.distributed.run", *options, "train.py", *words]
    return subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def numbers(text):
    return np.array([[float(word) for word in line.split()] for line in text.splitlines()])


def test_a_script_under_torchrun_prints_what_it_prints_alone_in_each_process(tmp_path):
    made_plan(tmp_path)
    alone = [sys.executable, "train.py"]
    plain = subprocess.run(alone, cwd=tmp_path, capture_output=True, text=True, check=True)
    run = torchrun(tmp_path, "plan.json", options=("--standalone", "--nproc-per-node=2", "--tee=1"))
    out, error = run.communicate(timeout=120)
    assert not run.returncode, error
    expected = numbers(plain.stdout)
    for rank in range(2):
        head = f"[default{rank}]:"
        own = [line.removeprefix(head) for line in out.splitlines() if line.startswith(head)]
        assert numbers("\n".join(own))[:4] == pytest.approx(expected[:4], rel=1e-5)
        assert numbers("\n".join(own)) == pytest.approx(expected, rel=1e-2)  # in bfloat16
    assert "stage 1 of 2, CPU 1: 12 steps" in error


def test_a_script_that_torchrun_did_not_start_so_says_how(tmp_path, monkeypatch):
    problem, plan = made_plan(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EnplaceError, match="start the script by: torchrun --nproc-per-node 2 tr"):
        joining.join(problem, plan, b"")
    monkeypatch.setenv("RANK", "0")
    for number in ("1", "3"):
        monkeypatch.setenv("WORLD_SIZE", number)
        with pytest.raises(ClusterError, match=f"there are {number} processes; start the script"):
            joining.join(problem, plan, b"")
