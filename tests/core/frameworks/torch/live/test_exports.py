"""Exported stages in the hands of PyTorch; `make test-torch` runs it."""

import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from enplace.frameworks.roofline import GPUS  # noqa: E402
from enplace.frameworks.source import source_of  # noqa: E402
from enplace.frameworks.torch.exports import write_split_spec  # noqa: E402
from enplace.frameworks.torch.measure.measure import estimated_profile  # noqa: E402
from enplace.frameworks.torch.open.fake import record_on_fake_tensors  # noqa: E402
from enplace.machine import simulate  # noqa: E402
from enplace.processes.worker import ignore  # noqa: E402
from enplace.readers.clusters import presets  # noqa: E402
from enplace.values.measurement import Measurement  # noqa: E402
from enplace.values.plan import Plan  # noqa: E402
from enplace.values.problem import Problem  # noqa: E402
from enplace.values.result import Result  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

MODEL = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 32), nn.Linear(32, 50)
        self.blocks = nn.ModuleList(Block() for _ in range(5))

    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def loss_of(out, y):
    return cross_entropy(out.flatten(0, 1), y.flatten())

torch.manual_seed(0)
model = Model()
x, y = torch.randint(0, 50, (8, 6)), torch.randint(0, 50, (8, 6))
"""

PLAIN = """
from model import *

if __name__ == "__main__":
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for _ in range(3):
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        print("loss", f"{float(loss):.5f}")
"""

PIPELINE = """
import torch.distributed as dist
from torch.distributed.pipelining import ScheduleGPipe, pipeline
from model import *
from split_spec import SPLIT_SPEC

dist.init_process_group("gloo")
rank, last = dist.get_rank(), dist.get_world_size() - 1
pipe = pipeline(model, mb_args=(x[:2],), split_spec=SPLIT_SPEC)
assert pipe.num_stages == last + 1
stage = pipe.build_stage(rank, torch.device("cpu"))
schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=loss_of)
optimizer = torch.optim.SGD(stage.submod.parameters(), 0.5)
for _ in range(3):
    optimizer.zero_grad()
    losses = []
    schedule.step(*([x] if rank == 0 else []), target=y if rank == last else None, losses=losses)
    optimizer.step()
    if losses:
        print("loss", f"{float(sum(losses) / len(losses)):.5f}", flush=True)
dist.destroy_process_group()
"""


def losses(words, folder):
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("loss")]


@pytest.mark.skipif(torch.__version__ < "2.7", reason="its pipelines of PyTorch 2.6 have a fault")
def test_a_pipeline_of_two_processes_has_the_losses_of_the_plain_run(tmp_path):
    for name, text in (("model", MODEL), ("train", PLAIN), ("pipeline", PIPELINE)):
        (tmp_path / f"{name}.py").write_text(text)
    source = source_of(str(tmp_path / "train.py"), framework_name="torch")
    step = record_on_fake_tensors(source, ignore).step
    profile = estimated_profile("model", step, GPUS["h100"], Measurement())
    problem = Problem(profile, presets()["h100-2-nvlink"])
    first = ("embedding", "blocks_0", "blocks_1", "blocks_2")
    device = np.array([int(not any(each in s for each in first)) for s in profile.scopes])
    device[~np.isfinite(profile.time_us[:, 0])] = 2
    plan = Plan(device, np.arange(profile.n_ops), method="test")
    text = write_split_spec(Result(simulate(problem, plan)))
    assert '"blocks.3": SplitPoint.BEGINNING' in text
    (tmp_path / "split_spec.py").write_text(text)
    plain = losses([sys.executable, "train.py"], tmp_path)
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "pipeline.py"]
    assert len(plain) == 3
    assert losses([sys.executable, *run], tmp_path) == plain
