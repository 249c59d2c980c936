"""Plans that run, op by op on labels; `make test-torch` has PyTorch and runs them."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from enplace.errors import ClusterError, PlanError  # noqa: E402
from enplace.frameworks.measured import NOT_SEEN, run_from, run_message  # noqa: E402
from enplace.frameworks.torch.record.recording import LoadError  # noqa: E402
from enplace.frameworks.torch.run.comparison import about_batches  # noqa: E402
from enplace.frameworks.torch.run.matching import planned_devices  # noqa: E402
from enplace.frameworks.torch.run.run import check_devices, run_placed, run_plain  # noqa: E402
from enplace.machine import simulate  # noqa: E402
from enplace.placing.again import Kept  # noqa: E402
from enplace.placing.settle import settle  # noqa: E402
from enplace.processes.worker import ignore  # noqa: E402
from enplace.readers.clusters import presets  # noqa: E402
from enplace.values.load_rule import LoadRule  # noqa: E402
from enplace.values.measurement import Measurement  # noqa: E402
from enplace.values.plan import Plan, follow_graph  # noqa: E402
from enplace.values.problem import Problem, split_problem  # noqa: E402
from torch_scripts import profile_of, script  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

CONV = """
import torch
from torch import nn

model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout(0.2),
    nn.Flatten(), nn.Linear(8 * 36, 10),
)
optimizer = torch.optim.{optimizer}
for step in range(9):
    x, y = torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""

LOOP_BY_VALUE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
            if x.mean() > 0:
                x = x * 2 - x.detach().mean()
        return self.head(x[x.sum(1) > -4])

model = Net()
first = torch.optim.Adam(model.layers.parameters(), 0.05)
second = torch.optim.SGD(model.head.parameters(), 0.1)
for step in range(12):
    first.zero_grad()
    second.zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    first.step()
    second.step()
"""


def planned(source, seed=0, cluster="cpu-2"):
    """Profile a script, and place its ops at random."""
    profile = profile_of(source, 1)
    problem = Problem(profile, presets()[cluster])
    device = settle(problem, np.random.default_rng(seed).integers(0, 2, profile.n_ops))
    order = np.random.default_rng(seed + 1).permutation(profile.n_ops)
    return problem, Plan(device, follow_graph(profile, order), method="test")


def run(source, problem, plan, steps=4):
    plain = run_plain(source, steps, ignore, planned_devices(problem, plan))
    return run_placed(source, problem, plan, "cpu:2", steps, plain, ignore)


@pytest.mark.parametrize(
    "optimizer", ["Adam(model.parameters())", "SGD(model.parameters(), 0.1, 0.9, foreach=True)"]
)
def test_steps_placed_at_random_give_the_same_to_the_last_bit(tmp_path, optimizer):
    source = script(tmp_path, CONV.format(optimizer=optimizer))
    problem, plan = planned(source)
    found = run(source, problem, plan)
    assert found.in_place == (problem.profile.n_ops - 1, problem.profile.n_ops - 1)  # update/step
    assert found.loss_difference == found.weights_difference == 0
    assert found.facts["gradients_difference"] == 0
    assert found.as_planned
    assert found.facts["transfers"] > 0
    assert found.facts["weights_compared"] == 9  # statistics of batch normalisation, too
    seen = found.op_device != NOT_SEEN
    assert (found.op_device[seen] == plan.device[seen]).all()
    assert run_from(run_message(found), problem).to_json() == found.to_json()


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_as_many_steps_count_as_were_asked_for(tmp_path, steps):
    source = script(tmp_path, CONV.format(optimizer="SGD(model.parameters())"))
    found = run(source, *planned(source), steps)
    facts = found.facts
    assert len(found.step_times_us) == facts["compared_steps"] - facts["warm_ups"] == steps


@pytest.mark.parametrize(("parts", "about"), [("2", ""), ("4", "their shapes are 4 × 3 × 8 × 8")])
def test_a_run_on_other_batches_than_those_of_the_profile_says_so(tmp_path, parts, about):
    """The profile is of a micro-batch of 2 samples."""
    source = script(tmp_path, CONV.format(optimizer="SGD(model.parameters())"))
    problem, plan = planned(source)
    measured = replace(
        problem.measured_profile.measured, batch_shapes=((2, 3, 8, 8),), source={"cut_batch": parts}
    )
    problem = replace(
        problem, measured_profile=replace(problem.measured_profile, measured=measured)
    )
    found = run(source, problem, plan)
    assert about in found.about_batches
    assert bool(found.about_batches) == bool(about)


@pytest.mark.parametrize(("rows", "is_told"), [(4, False), (16, False), (8, True)])
def test_a_pipeline_has_the_samples_of_a_plan_whose_file_names_no_parts(rows, is_told):
    measured = Measurement(batch_shapes=((4, 12), (4,)))
    ran = SimpleNamespace(
        profile=SimpleNamespace(measured=measured),
        plan=SimpleNamespace(load_rule=LoadRule(microbatches=4)),
        pipeline={"microbatches": 4},
    )
    plain = SimpleNamespace(details={"batch_shapes": [[rows, 12], [rows]]})
    assert bool(about_batches(ran, plain)) == is_told


SPARSE = """
import torch

torch.manual_seed(0)
ends = torch.stack([torch.arange(12), torch.arange(12).roll(1)])
links = torch.sparse_coo_tensor(ends, torch.full((12,), 0.5), (12, 12)).coalesce()
model = torch.nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(12):
    optimizer.zero_grad()
    torch.sparse.mm(links, model(torch.sparse.mm(links, torch.randn(12, 12)))).sum().backward()
    optimizer.step()
"""


def test_a_sparse_tensor_is_sent_as_a_whole(tmp_path):
    source = script(tmp_path, SPARSE)
    for seed in range(2):
        found = run(source, *planned(source, seed))
        assert found.loss_difference == found.weights_difference == 0
        assert found.as_planned


def test_each_device_holds_what_the_plan_gives_it(tmp_path):
    source = script(tmp_path, CONV.format(optimizer="SGD(model.parameters(), 0.1)"))
    problem, plan = planned(source)
    facts = run(source, problem, plan).facts
    for device, predicted in facts["predicted_peak_bytes"].items():
        assert facts["placed_peak_bytes"][device] == pytest.approx(predicted, rel=0.35)


def test_steps_that_differ_by_value_and_rounds_of_two_optimisers_run_placed(tmp_path):
    source = script(tmp_path, LOOP_BY_VALUE)
    found = run(source, *planned(source))
    assert found.loss_difference == found.weights_difference == 0
    assert found.is_in_place


AGENT = """
import copy
import torch
from torch import nn

class Agent:
    def __init__(self):
        self.actor = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
        self.critics = [nn.Linear(10, 1), nn.Linear(10, 1)]
        self.targets = copy.deepcopy(self.critics)
        self.of_actor = torch.optim.Adam(self.actor.parameters())
        self.of_critics = torch.optim.Adam([p for c in self.critics for p in c.parameters()])

    def train(self, is_late):
        state, action = torch.randn(4, 8), torch.randn(4, 2)
        both = torch.cat([state, action], 1)
        with torch.no_grad():
            wanted = torch.min(*(each(both) for each in self.targets))
        loss = sum((each(both) - wanted).square().mean() for each in self.critics)
        self.of_critics.zero_grad()
        loss.backward()
        self.of_critics.step()
        if is_late:
            self.of_actor.zero_grad()
            (-self.critics[0](torch.cat([state, self.actor(state)], 1)).mean()).backward()
            self.of_actor.step()

def main():
    agent = Agent()
    for step in range(20):
        agent.train(step % 3 == 2)

main()
"""


def test_models_that_an_agent_holds_have_its_names_and_run_though_one_is_late(tmp_path):
    source = script(tmp_path, AGENT)
    problem, plan = planned(source)
    models = {scope.split("/")[0].rsplit("_", 1)[0] for scope in problem.profile.scopes}
    assert models >= {"actor", "critics", "targets"}
    assert {"critics_0/weight", "critics_1/weight"} < {*problem.profile.op_names}
    found = run(source, problem, plan)
    assert found.loss_difference == found.weights_difference == 0
    assert found.is_in_place
    (wrong := tmp_path / "wrong").mkdir()
    other = AGENT.replace("nn.Linear(16, 2)", "nn.Linear(16, 2, bias=False)")
    with pytest.raises(PlanError, match="has no actor_2/bias"):
        run(script(wrong, other), problem, plan)


LAZY = """
from collections import OrderedDict

def refuse(self, *_): raise ImportError("asked")

class Refused: __class__ = __dict__ = property(refuse); __getattr__ = refuse
class Mapping(OrderedDict): items = keys = values = __iter__ = refuse
class Sequence(list): __iter__ = refuse

MAPPING, SEQUENCE, OBJECT = Mapping(), Sequence(), Refused()
"""


def test_lazy_variables_of_a_script_stay_as_they_are(tmp_path):
    scopes = profile_of(script(tmp_path, LAZY + AGENT)).scopes
    assert {scope.split("/")[0].rsplit("_", 1)[0] for scope in scopes} >= {"actor", "critics"}


def test_a_script_that_draws_other_numbers_each_time_differs(tmp_path):
    text = CONV.format(optimizer="SGD(model.parameters(), 0.1)")
    text = text.replace(
        "import torch\n", "import os, torch\ntorch.manual_seed(hash(os.urandom(9)))\n"
    )
    source = script(tmp_path, text)
    found = run(source, *planned(source))
    assert found.changes_result
    assert found.facts["gradients_difference"] > 0


def test_a_plan_of_another_model_and_one_that_cannot_run_are_refused(tmp_path):
    source = script(tmp_path, CONV.format(optimizer="SGD(model.parameters(), 0.1)"))
    problem, plan = planned(source)
    other = script(tmp_path, LOOP_BY_VALUE)
    with pytest.raises(PlanError, match="another graph: the model has no"):
        run_placed(other, problem, plan, "cpu:2", 1, None, ignore)
    text = LOOP_BY_VALUE.replace("range(12)", "range(2)") + "raise SystemExit('a step too many')"
    other = script(tmp_path, text)
    with pytest.raises(PlanError, match="made for another model"):
        run_plain(other, 1, ignore, planned_devices(problem, plan))
    with pytest.raises(ClusterError, match=r"plan uses 2 devices \(CPU:0, CPU:1\); use cpu:2"):
        check_devices(problem, plan, "cpu:1")
    with pytest.raises(ClusterError, match="--devices cpu:2"):
        check_devices(problem, plan, "gpu:2")


def test_a_script_needs_steps_to_compare(tmp_path):
    short = script(tmp_path, LOOP_BY_VALUE.replace("range(12)", "range(2)"))
    with pytest.raises(LoadError, match="fewer than 3 steps"):
        run_plain(short, 1, ignore)


def test_a_loss_that_each_step_makes_anew_is_called_the_same(tmp_path):
    text = CONV.format(optimizer="SGD(model.parameters(), 0.1)")
    text = text.replace("nn.functional.cross_entropy(", "nn.CrossEntropyLoss()(")
    source = script(tmp_path, text)
    problem, plan = planned(source)
    assert "CrossEntropyLoss/nll_loss_forward" in problem.profile.index
    assert run(source, problem, plan, 1).facts["not_recorded"] == 0


BLOCKS = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 128), nn.Linear(128, 32)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm(x)))))

model = nn.Sequential(*(Block() for _ in range(3)), nn.Linear(32, 10), nn.ReLU(inplace=True))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(9):
    x, y = torch.randn(16, 16, 32), torch.randint(0, 10, (16 * 16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x).flatten(0, 1), y).backward()
    optimizer.step()
"""


@pytest.mark.parametrize("way", ["recompute", "offload", "both"])
def test_what_is_not_kept_is_made_again_or_fetched_and_all_stays_the_same(tmp_path, way):
    source = script(tmp_path, BLOCKS)
    profile = profile_of(source, 1)
    fixed_us = np.where(profile.time_us[:, 1:] > 0, 100.0, 0.0)  # sends end before the next op
    profile = replace(profile, time_us=np.repeat(fixed_us, 2, axis=1))
    problem = Problem(profile, presets()["h100-2-nvlink"])
    device = np.zeros(profile.n_ops, dtype=int)
    base = simulate(problem, Plan(device, follow_graph(profile, np.arange(profile.n_ops)), "one"))
    kept = Kept(problem, recompute=way != "offload", offload=way != "recompute")
    last = [op for op in np.flatnonzero(kept.can).tolist() if "gelu" in profile.op_names[op]]
    sent = [op for op in np.flatnonzero(kept.can_send).tolist() if op not in last and kept.late(op)]
    plan = kept.copied(base, last if way != "offload" else [], sent)
    wide = split_problem(problem, plan.splits)
    plain = run_plain(source, 3, ignore, planned_devices(wide, plan))
    found = run_placed(source, wide, plan, "cpu:3", 3, plain, ignore)
    assert found.loss_difference == found.weights_difference == 0
    assert found.facts["gradients_difference"] == 0
    assert found.as_planned
    added = [wide.profile.index[each.added] for each in plan.splits]
    assert (found.op_device[added] == plan.device[added]).all()
    assert len(added) >= 3
    peaks, predicted = found.facts["placed_peak_bytes"], found.facts["predicted_peak_bytes"]
    assert peaks["GPU:0"] == pytest.approx(predicted["GPU:0"], rel=0.02)
    assert peaks["GPU:0"] < 0.85 * base.peak_bytes[0]
    assert peaks.get("CPU:0", 0) == pytest.approx(predicted["CPU:0"], rel=0.02)
