"""Scripts that apply a plan as a pipeline, under `torchrun`; `make test-torch` runs them."""

import os
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import forked_ranks  # noqa: E402
from enplace.errors import ClusterError, EnplaceError  # noqa: E402
from enplace.frameworks.torch.hosts import host_lines  # noqa: E402
from enplace.frameworks.torch.pipelines import joining  # noqa: E402
from enplace.machine import simulate  # noqa: E402
from enplace.readers.cluster_json import cluster_from_json  # noqa: E402
from enplace.readers.clusters import presets  # noqa: E402
from enplace.values.plan import Plan, follow_graph  # noqa: E402
from enplace.values.problem import Problem  # noqa: E402
from enplace.values.result import Result  # noqa: E402
from enplace.writers import write_plan  # noqa: E402
from forking import run_fork  # noqa: E402
from torch_scripts import profile_of, script  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(torch.__version__.startswith("2.6."), reason="its pipelines are refused"),
]

SCRIPT = """
import sys
import copy, io
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

def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)

model = Model()
begin = [each.detach().clone() for each in model.parameters()]
reads = [saved, copy.deepcopy, lambda model: model]
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
data = torch.utils.data.TensorDataset(*torch.randint(0, 16, (2, 21, 5)))
for epoch in range(2):
    model.train()
    optimizer.load_state_dict(optimizer.state_dict())  # as one that was saved
    batches = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)  # 8, 8 and 5
    for read, (x, y) in zip(reads, batches):
        model.emb.weight.requires_grad_(epoch > 0 or read is not saved)  # not at first
        for part in range(2):  # gradients add up
            with torch.autocast("cpu", torch.bfloat16, enabled=epoch == 1):
                loss = loss_of(model(x), y)
            if not part:
                optimizer.zero_grad()
            (loss / 2).backward()
        norm = clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        now = [] if epoch else [each.data for each in read(model).parameters()]
        print(loss.item(), norm.item(), total(a - b for a, b in zip(now, begin)))
    model.eval()
    with torch.no_grad():
        out = model(data.tensors[0])
        right = (out.argmax(-1) == data.tensors[1]).sum()
        print(loss_of(out, data.tensors[1]).item(), right.item(), 0)
states = optimizer.state_dict()["state"].values()
print(total(model.state_dict().values()), total(each["exp_avg"] for each in states), 0)
"""

LONG_S = 300
"""Longer than a busy machine takes; then something hangs."""

STAGES = ("layers_1", "layers_2", "head", "loss")


def made_plan(tmp_path, text=SCRIPT, cluster=None):
    """Write the script, and a plan with its second half on another device."""
    profile = profile_of(script(tmp_path, text))
    problem = Problem(profile, cluster or presets()["cpu-2"])
    device = np.array([int(any(s in name for s in STAGES)) for name in profile.op_names])
    plan = Plan(device, follow_graph(profile, np.arange(profile.n_ops)), method="test")
    write_plan(tmp_path / "plan.json", Result(simulate(problem, plan)))
    return problem, plan


def torchrun(tmp_path, *words, options=("--standalone", "--nproc-per-node=2"), before=()):
    starts = [*before, sys.executable, "-m", "torch.distributed.run"]
    return subprocess.Popen(
        [*starts, *options, "train.py", *words],
        cwd=tmp_path,
        env={**os.environ, "RES_OPTIONS": "timeout:1 attempts:1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def forked(tmp_path, rank, *words):
    """Run without ``torchrun``; return what one prints, what both write as errors, the status."""
    ranks = [sys.executable, forked_ranks.__file__, "--nproc-per-node=2"]
    done = run_fork(
        [*ranks, f"--local-ranks-filter={rank}", "train.py", "plan.json", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=LONG_S,
    )
    return done.stdout, done.stderr, done.returncode


def run_alone(tmp_path):
    """Return what the script prints without a plan."""
    alone = [sys.executable, "train.py"]
    return run_fork(alone, cwd=tmp_path, capture_output=True, text=True, check=True).stdout


def numbers(text):
    return np.array([[float(word) for word in line.split()] for line in text.splitlines()])


def test_a_script_under_torchrun_prints_what_it_prints_alone_in_each_process(tmp_path):
    made_plan(tmp_path)
    plain = run_alone(tmp_path)
    run = torchrun(tmp_path, "plan.json", options=("--standalone", "--nproc-per-node=2", "--tee=1"))
    out, error = run.communicate(timeout=LONG_S)
    assert not run.returncode, error
    expected = numbers(plain)
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
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ClusterError, match=r"^$"):  # the first one has said it
        joining.join(problem, plan, b"")


@pytest.fixture
def two_hosts():
    """Two network namespaces with a cable between them; the commands that run something in each."""
    names = [f"enplace{os.getpid()}{end}" for end in "ab"]
    cable = [f"e{os.getpid()}{end}" for end in "ab"]

    def ip(*words):
        return subprocess.run(["ip", *words], check=False, capture_output=True).returncode == 0

    try:
        made = all(ip("netns", "add", name) for name in names)
        made &= ip("link", "add", cable[0], "type", "veth", "peer", "name", cable[1])
        for number, (name, end) in enumerate(zip(names, cable, strict=True), 1):
            made &= ip("link", "set", end, "netns", name)
            made &= ip("-n", name, "addr", "add", f"10.231.7.{number}/24", "dev", end)
            made &= all(ip("-n", name, "link", "set", each, "up") for each in (end, "lo"))
        if not made:
            pytest.skip("network namespaces are not permitted here")
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            found = subprocess.run(["ip", "netns", "pids", name], check=False, capture_output=True)
            for process in found.stdout.split():
                os.kill(int(process), signal.SIGKILL)
            ip("netns", "del", name)


def cluster_of_two_hosts():
    return cluster_from_json(
        {
            "format": "enplace-cluster/1",
            "name": "two hosts",
            "devices": [
                {
                    "name": f"/job:worker/task:{n}/device:CPU:0",
                    "kind": "cpu",
                    "capacity_bytes": 2**34,
                }
                for n in range(2)
            ],
            "default_links": {"cpu-cpu": {"b0_us": 60.0, "b1_us_per_byte": 8e-05}},
            "hosts": {f"/job:worker/task:{n}": f"10.231.7.{n + 1}:29517" for n in range(2)},
        },
        "cluster",
    )


def test_stages_on_two_hosts_find_theirs_in_whatever_order_they_arrive(tmp_path, two_hosts):
    problem, plan = made_plan(tmp_path, cluster=cluster_of_two_hosts())
    plain = run_alone(tmp_path)
    lines = host_lines(problem, plan, "train.py")
    assert (
        "torchrun --nnodes 2 --node-rank 1 --master-addr 10.231.7.1 --master-port 29517" in lines[1]
    )
    runs = []
    for host, line in enumerate(lines):
        words = line.split()[1:-1]
        words[words.index("--node-rank") + 1] = str(1 - host)  # the other way round
        words[words.index("--master-addr") + 1] = "10.231.7.2"
        runs.append(torchrun(tmp_path, "plan.json", options=words, before=two_hosts[host]))
    found = [run.communicate(timeout=LONG_S) for run in runs]
    expected = numbers(plain)
    for host, (run, (out, error)) in enumerate(zip(runs, found, strict=True)):
        assert not run.returncode, error
        assert numbers(out)[:4] == pytest.approx(expected[:4], rel=1e-5)
        assert f"stage {host} of 2, worker {host} CPU 0: 12 steps" in error


def with_steps(*lines):
    """Return the script with other steps."""
    return SCRIPT.partition("optimizer = ")[0] + "\n".join([*lines, ""])


OTHERS = """
import copy
optimizer = torch.optim.SGD(model.parameters(), 0.1)
before = copy.deepcopy(model).eval()
average = torch.optim.swa_utils.AveragedModel(model)
teacher = nn.Sequential(nn.Embedding(16, 4), nn.Linear(4, 16)).eval().requires_grad_(False)
judge = nn.Linear(16, 1).requires_grad_(False)
data = torch.randint(0, 16, (2, 50, 5))

def draw():
    rows = torch.randint(0, 50, (8,))
    return data[0][rows], torch.stack([data[1][row] for row in rows])

def apart(out, other):
    return nn.functional.mse_loss(out.flatten(), other.flatten())

x, y = draw()
for step in range(4):
    so_far, seen = 0, torch.zeros(2)
    for part in range(2):
        with torch.no_grad():
            was = before(x)
        out = model(x)
        out = nn.functional.dropout(out + 0.1 * torch.empty_like(out).normal_(), 0.1)
        loss = loss_of(out, y) + apart(out, was) + apart(out, teacher(x)) + judge(out).mean()
        x, y = draw()
        so_far += loss.detach()
        seen[part], also = loss.detach().exp(), loss.exp()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    average.update_parameters(model)
    print(loss.item(), float(so_far), *seen.tolist(), also.item())
average.eval()
with torch.no_grad():
    print(total(model.state_dict().values()), loss_of(average(x), y).item())
"""


def test_other_models_run_whole_and_the_next_batch_may_be_drawn_before_the_gradients(tmp_path):
    text = with_steps(OTHERS)
    made_plan(tmp_path, text)
    plain = run_alone(tmp_path)
    out, error, _ = forked(tmp_path, 0)
    assert len(out.splitlines()) == 5, error
    for line, other in zip(out.splitlines(), plain.splitlines(), strict=True):
        assert numbers(line) == pytest.approx(numbers(other), rel=1e-5)


BY_HAND = """
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
heat = nn.Parameter(torch.ones(()))
parameters = [*model.parameters(), heat]
latest, norms = model.state_dict(), []
speed = [torch.zeros_like(p) for p in parameters]
for step in range(4):
    x, y = torch.randint(0, 16, (2, 8, 5))
    heat.grad = model.zero_grad()
    out = model(x) * heat
    of_each = torch.distributions.Normal(out[..., 0], out[..., 1].sigmoid())
    likely = torch.distributions.Independent(of_each, 1).log_prob(y / 16.0).mean()
    loss = loss_of(out, y) - 0.1 * likely
    loss.backward()
    norm = get_total_norm([p.grad for p in parameters])
    clip_grads_with_norm_(parameters, 0.5, norm)
    with torch.no_grad():
        for p, v in zip(parameters, speed):
            v.mul_(0.9).add_(p.grad)
            p -= 0.1 * p.norm() / p.grad.norm().clamp(min=0.1) * v
            p.data.add_(torch.randn_like(p), alpha=1e-3)
            p.last = v.clone()
    print(loss.item(), norm.item(), heat.item(), total(latest.values()))
"""


BY_CLASS = """
class Noisy(torch.optim.AdamW):
    @torch.no_grad()
    def step(self):
        super().step()
        for p in self.param_groups[0]["params"]:
            p.add_(self.state[p]["exp_avg"], alpha=-1e-3 * p.norm())
            p.add_(torch.randn_like(p), alpha=1e-3)

torch.optim.AdamW([nn.Parameter(torch.ones(1))])  # by which PyTorch adds hooks to the class
optimizer, now = Noisy(model.parameters(), 0.01), []
optimizer.register_step_post_hook(lambda *_: now.append(total(model.parameters())))
for step in range(4):
    x, y = torch.randint(0, 16, (2, 8, 5))
    loss = loss_of(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    states = optimizer.state_dict()["state"]
    print(loss.item(), now[-1], [*states][1], total(each["exp_avg"] for each in states.values()))
"""


@pytest.mark.parametrize("text", [BY_HAND, BY_CLASS])
def test_updates_by_hand_and_parameters_of_a_loss_are_those_of_the_plain_run(tmp_path, text):
    made_plan(tmp_path)
    (tmp_path / "train.py").write_text(with_steps(text))
    plain = run_alone(tmp_path)
    out, error, _ = forked(tmp_path, 0)
    assert len(out.splitlines()) == 4, error
    assert numbers(out) == pytest.approx(numbers(plain), rel=1e-5)


ODD = """
import copy, os, types
from concurrent.futures import ThreadPoolExecutor
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x, y = torch.randint(0, 16, (2, 8, 5))
padded = torch.where(x > 8, y, -100)

class DistributedDataParallel(nn.Module):
    def __init__(self):
        super().__init__()
        self.module = model

def refused(function):
    try:
        function()
    except Exception as error:
        print(type(error).__name__, error, flush=True)

class ByNorm(torch.optim.SGD):
    def step(self):
        norm = sum(p.grad.norm() for p in self.param_groups[0]["params"] if p.grad is not None)
        self.param_groups[0]["lr"] = 0.1 / norm.item()
        super().step()

def early():
    print(loss_of(model(x), y).item())

other = nn.Linear(5, 5)
refused(lambda: other(x.float()).sum().backward())
out = model(x)
loss = loss_of(out, y)
loss.backward()
optimizer.step()
refused(lambda: sum(p.grad.norm() for p in model.parameters()).item())
refused(ByNorm(model.parameters()).step)
hooked = torch.optim.SGD(model.parameters(), 0.1)
hooked.register_step_pre_hook(lambda *_: total(p.grad for p in model.parameters()))
refused(hooked.step)
for read in (
    lambda state: state[model.layers[0].weight], lambda state: state.get(model.emb.weight),
    lambda state: state.values(), len, list, dict, copy.deepcopy,
):
    refused(lambda: read(optimizer.state))
refused(ThreadPoolExecutor(1).submit(copy.deepcopy, model).result)
refused(lambda: model(x) if os.environ["RANK"] == "1" else copy.deepcopy(model))
refused(lambda: (out.argmax(-1) == y).sum())
refused(loss.backward)
refused(lambda: DistributedDataParallel()(x))
refused(lambda: optimizer.step(lambda: loss))
refused(lambda: model(x + int(os.environ["RANK"])))
refused(lambda: loss_of(model(x), padded).backward())
model.layers[1].eval()
refused(lambda: model(x))
model.layers[1].train()
refused(early)
os._exit(0)
"""
WHY = (
    "PlanError the plan was made for another model than Linear",
    *3 * ("PipelineRefusedError the script reads a gradient of another stage",),
    *7 * ("PipelineRefusedError the script reads what its optimiser keeps of each parameter",),
    "PipelineRefusedError a thread of the script reads weights while the others go on",
    "PipelineRefusedError one process trains its model where another reads its weights",
    "PipelineRefusedError the script uses after loss.backward() what its model made",
    "PipelineRefusedError the script goes backward twice from one call of its model",
    "PipelineRefusedError the script wraps its model in DistributedDataParallel",
    "PipelineRefusedError SGD gets a closure",
    "PipelineRefusedError the processes have different batches",
    "PipelineRefusedError the loss leaves out targets",
    "PipelineRefusedError 'layers.1' has another 'training' than in the first step (True then, Fa",
    ": the script reads a value of the step before it goes backward",
)


def test_what_a_stage_cannot_do_is_refused_in_a_line(tmp_path):
    made_plan(tmp_path)
    (tmp_path / "train.py").write_text(with_steps(ODD))
    out, error, _ = forked(tmp_path, 1)
    lines = out.splitlines()
    assert len(lines) == len(WHY), error
    for line, why in zip(lines, WHY, strict=True):
        assert why in line


def with_a_number(text):
    """Have each process of a script print its number first."""
    return text.replace("import sys", "import os, sys\nos.write(1, b'%d\\n' % os.getpid())", 1)


def test_where_a_process_dies_nothing_is_left_running(tmp_path):
    made_plan(tmp_path)
    dies = "os._exit(1 / 0) if 'fails' in sys.argv else os.kill(os.getpid(), 9)"
    dies = f"if os.environ['RANK'] == '1': {dies}"
    text = with_a_number(SCRIPT).replace("scheduler.step()", f"scheduler.step()\n        {dies}")
    (tmp_path / "train.py").write_text(text)
    for words in ([], ["fails"]):
        run = torchrun(tmp_path, "plan.json", *words)
        out, error = run.communicate(timeout=LONG_S)
        assert run.returncode
        assert ("ZeroDivisionError" in error) == bool(words)
        assert not words or "enplace: " not in error  # the script's own line says why
        assert_gone(out)


def test_where_a_process_has_another_plan_all_end_before_they_train(tmp_path):
    made_plan(tmp_path)
    text = SCRIPT.replace("sys.argv[1], ", "sys.argv[1 + int(os.environ['RANK'])], ")
    (tmp_path / "train.py").write_text(text.replace("import sys", "import os, sys", 1))
    (tmp_path / "other.json").write_text((tmp_path / "plan.json").read_text() + "\n")
    out, error, _ = forked(tmp_path, 0, "other.json")
    assert not out
    assert error.count("stage 1 has another plan") == 1


def test_a_model_that_goes_by_values_ends_all_processes_before_it_is_trained(tmp_path):
    text = with_a_number(SCRIPT.replace("x = self.emb(x)", "x = self.emb(x[:, : int(x.max())])"))
    line = text[: text.index("x.max()")].count("\n") + 1
    made_plan(tmp_path, text)
    out, error, status = forked(tmp_path, 1)
    assert status
    assert error.count(f"train.py, line {line}: 'int' depends on values: it gives 1") == 1
    assert [word for word in out.split() if not word.isdecimal()] == []  # no step has ended
    assert_gone(out)


def test_where_torchrun_is_killed_its_processes_end_too(tmp_path):
    made_plan(tmp_path)
    text = SCRIPT.replace("import sys", "import os, sys, threading", 1)
    waits = "os.write(1, b'waits\\n')\n        threading.Event().wait()"
    (tmp_path / "train.py").write_text(text.replace("scheduler.step()", waits))
    run = torchrun(tmp_path, "plan.json")
    assert run.stdout.readline() == "waits\n"
    run.kill()
    run.communicate(timeout=LONG_S)  # reads until all that write have ended


def assert_gone(out):
    """Check that the processes that printed their numbers have ended."""
    processes = [int(line) for line in out.splitlines() if line.isdecimal()]
    assert processes
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_a_port_that_another_program_has_is_named_in_a_line(tmp_path, monkeypatch):
    problem, plan = made_plan(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        about = {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for name, value in about.items():
            monkeypatch.setenv(name, str(value))
        with pytest.raises(EnplaceError, match=f"cannot join the others at 127.0.0.1:{port}"):
            joining.join(problem, plan, b"")
