"""Where a step ends in a script with several optimisers."""

import os
from contextlib import ExitStack

import pytest

os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # else PyTorch 2.6 leaves a thread running
torch = pytest.importorskip("torch")

from enplace.frameworks.torch.open.fake import record_on_fake_tensors  # noqa: E402
from enplace.frameworks.torch.open.rounds import PATIENCE, Rounds  # noqa: E402
from enplace.frameworks.torch.open.scripts import LoadError, record_script  # noqa: E402
from enplace.processes.worker import ignore  # noqa: E402
from torch_scripts import script  # noqa: E402


class Seen(Rounds):
    """Keeps which optimisers each round had; ``|`` where they are others than before."""

    def __init__(self):
        super().__init__()
        self.rounds = []

    def begin_anew(self):
        self.rounds.append("|")

    def end_round(self):
        names = "".join(sorted("abcdefgh"[number] for number in self.kind[0]))
        self.rounds.append(names + str(self.kind[1]))


def follow(steps, shared=""):
    """Follow optimisers that make steps in an order; ``-`` goes backward and makes none.

    Those named in ``shared`` update the same parameters.
    """
    with ExitStack() as stack:
        seen = Seen()
        seen.hook_optimizers(stack)
        common, optimizers = [torch.ones(1, requires_grad=True)], {}
        for name in dict.fromkeys(steps.replace("-", "")):
            own = common if name in shared else [torch.ones(1, requires_grad=True)]
            kind = torch.optim.SGD if name.islower() else torch.optim.Adam
            optimizers[name] = kind(own, 0.1)
        for name in steps:
            torch.ones(1, requires_grad=True).sum().backward()
            if name != "-":
                optimizers[name].step()
    return seen.rounds


LATE = "d" * 15


@pytest.mark.parametrize(
    ("steps", "rounds"),
    [
        ("aaaa", ["|", "a1", "a1", "a1"]),
        ("dgdgdg", ["|", "|", "ab2", "ab2"]),  # a GAN
        ("dgdddgdddg", ["|", "|", "aaab4", "aaab4"]),  # its critic makes more steps
        ("gdddgdddgddd", ["|", "|", "abbb4", "abbb4"]),  # whoever makes fewer comes first
        ("ccaccacca", ["|", "a1", "|", "aab3", "aab3"]),  # a policy is delayed
        ("abcbcabcbcabcbc", ["|", "|", "|", "abbcc5", "abbcc5"]),
        (LATE + "dgdgdg", ["|", *["a1"] * 15, "|", "ab2", "ab2"]),
        ("a--a-a--a", ["|", "a3", "a2", "a3"]),  # gradients of several batches
    ],
)
def test_a_round_has_every_optimiser(steps, rounds):
    assert follow(steps) == rounds


def test_an_optimiser_is_awaited_and_then_left_out_until_it_comes_back():
    many = PATIENCE + 1
    assert follow("p" + "o" * (many + 3)) == ["|", "|", "|", "b1", "b1"]
    assert follow("g" + "d" * (many + 1) + "gd" * 3)[-3:] == ["|", "ab2", "ab2"]


@pytest.mark.parametrize("turn", ["d" * 25 + "g", "d" * 30 + "g" * 30, "d" * 9 + "g" * 30])
def test_an_optimiser_that_steps_in_turns_of_many_steps_makes_no_long_rounds(turn):
    rounds = follow(turn * 6)
    assert set(rounds[-5:]) <= {"a1", "b1"}
    is_long = [len(each) > 2 * PATIENCE for each in rounds]
    assert sum(is_long[: len(is_long) // 2]) == 0


def test_one_optimiser_replaces_another_of_the_same_parameters():
    assert follow("aaAAA", "aA") == ["|", "a1", "|", "b1", "b1"]
    back = "a" * 3 + "A" * 3 + "a" * (PATIENCE + 4)
    assert follow(back, "aA")[-2:] == ["a1", "a1"]


def test_an_optimiser_that_is_made_anew_for_each_step_is_one():
    with ExitStack() as stack:
        seen, own = Seen(), [torch.ones(1, requires_grad=True)]
        seen.hook_optimizers(stack)
        for _ in range(4):
            torch.optim.SGD(own, 0.1).step()
    assert seen.rounds == ["|", "a0", "a0", "a0"]


def test_a_closure_runs_within_the_step_as_often_as_it_likes():
    with ExitStack() as stack:
        seen, own = Seen(), torch.tensor([3.0, -2.0], requires_grad=True)
        seen.hook_optimizers(stack)
        optimizer = torch.optim.LBFGS([own], line_search_fn="strong_wolfe")

        def closure():
            optimizer.zero_grad()
            (loss := (own**4).sum()).backward()
            return loss

        for _ in range(4):
            optimizer.step(closure)
    assert seen.rounds == ["|", "a0", "a0", "a0"]


def test_an_optimiser_that_another_holds_makes_the_steps_alone():
    class Outer(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})
            self.base_optimizer = torch.optim.SGD(self.param_groups, 0.1)

    with ExitStack() as stack:
        (seen := Seen()).hook_optimizers(stack)
        outer = Outer([torch.ones(1, requires_grad=True)])
        for _ in range(3):
            outer.base_optimizer.step()
        assert not seen.awaits_another
        assert seen.without(seen.kind) == []
    assert seen.rounds == ["|", "a0", "a0"]


def test_a_step_that_a_scaler_leaves_out_makes_a_round_of_another_kind():
    assert follow("dgdgd-dg-gdg")[2:] == ["ab2", "aab4", "abb4"]


GAN = """
import torch
from torch import nn

G, D = nn.Linear(8, 16), nn.Linear(16, 1)
of_g, of_d = torch.optim.Adam(G.parameters()), torch.optim.SGD(D.parameters(), 0.1)
for step in range({steps}):
    if {condition}:
        of_g.zero_grad()
        (-D(G(torch.randn(8, 8))).mean()).backward()
        of_g.step()
    of_d.zero_grad()
    (D(torch.randn(8, 16)).mean() - D(G(torch.randn(8, 8)).detach()).mean()).backward()
    of_d.step()
"""


def steps_of(step):
    """Return how many steps each optimiser makes."""
    made = {(op.optimizer, op.step_call) for op in step.ops if op.step_call}
    return sorted(optimizer for optimizer, _ in made)


FUSED = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizers = {each: torch.optim.Adam([each]) for each in model.parameters()}

def step(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()

for each in optimizers:
    each.register_post_accumulate_grad_hook(step)
for _ in range(9):
    x = torch.randn(4, 8, requires_grad=True)
    checkpoint(model, x, use_reentrant=REENTRANT).mean().backward()
"""


@pytest.mark.parametrize("reentrant", [False, True])
def test_optimisers_may_make_their_steps_within_a_backward_pass(tmp_path, reentrant):
    source = script(tmp_path, FUSED.replace("REENTRANT", str(reentrant)))
    found = record_script(source, 2, 0, ignore)
    for step in (found.step, record_on_fake_tensors(source, ignore).step):
        assert steps_of(step) == ["Adam"] * 4
        assert {op.pass_ for op in step.ops} == {"forward", "backward", "update"}
        assert all(bool(op.optimizer) == (op.pass_ == "update") for op in step.ops)
    assert (found.about, found.timing.n_others) == ((), 0)


UNLIKE = """
import torch

nets = [torch.nn.Linear(4, 1) for _ in range(3)]
critic, actor, alpha = (torch.optim.SGD(net.parameters(), 0.1) for net in nets)
for step in range(120):
    for every, net, optimizer in zip((1, 2, 3), nets, (critic, actor, alpha)):
        if step % every == 0:
            optimizer.zero_grad()
            net(torch.randn(2, 4)).mean().backward()
            optimizer.step()
"""


def test_what_steps_have_on_average_is_said_where_the_recorded_one_has_not(tmp_path):
    source = script(tmp_path, UNLIKE)
    found = record_script(source, 24, 0, ignore)
    for each in (found, record_on_fake_tensors(source, ignore)):
        assert steps_of(each.step) == ["SGD"] * 5
        (note,) = each.about
        assert "one has 1.5 steps of SGD (actor) and 5.5 backward passes; the recorded" in note
        assert note.endswith("one has 1 and 5.")


def test_a_recorded_step_has_the_optimiser_that_steps_first_and_less_often(tmp_path):
    source = script(tmp_path, GAN.format(steps=24, condition="step % 3 == 0"))
    found = record_script(source, 2, 0, ignore)
    estimate = record_on_fake_tensors(source, ignore)
    for step in (found.step, estimate.step):
        assert steps_of(step) == ["Adam", "SGD", "SGD", "SGD"]
    assert not found.timing.n_others
    assert not found.about


def test_steps_before_an_optimiser_joins_do_not_count(tmp_path):
    source = script(tmp_path, GAN.format(steps=26, condition="step >= 15"))
    found = record_script(source, 100, 0, ignore)
    estimate = record_on_fake_tensors(source, ignore)
    for step in (found.step, estimate.step):
        assert steps_of(step) == ["Adam", "SGD"]
    assert len(found.timing.step_times_us) < 11 <= found.timing.n_others + 4


SUMS = """
import torch

model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in range(1, 40):
    model(torch.randn(2, 8)).sum().backward()
    if batch % 5 in (0, 2, 4):  # the last sum of an epoch has only one batch
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_step_with_fewer_backward_passes_does_not_count(tmp_path):
    usual = torch.autograd.backward
    found = record_script(script(tmp_path, SUMS), 100, 0, ignore)
    assert torch.autograd.backward is usual
    backward = [op for op in found.step.ops if op.kind == "mm" and op.pass_ == "backward"]
    assert len(backward) == 2
    assert found.timing.n_others >= 4
    fake = record_on_fake_tensors(script(tmp_path, SUMS), ignore)
    backward = [op for op in fake.step.ops if op.kind == "mm" and op.pass_ == "backward"]
    assert len(backward) == 2
    assert "one has 1.6 backward passes; the recorded one has 2." in fake.about[0]


def test_an_estimate_has_the_optimiser_that_soon_replaces_another(tmp_path):
    text = GAN.format(steps=9, condition="False") + "    if step == 2:\n        of_d = of_g\n"
    text = text.replace("of_d = of_g", "of_d = torch.optim.AdamW(D.parameters())")
    assert steps_of(record_on_fake_tensors(script(tmp_path, text), ignore).step) == ["AdamW"]


WITHOUT = "The recorded step is without"
TOO_FEW = f"which made no step, or too few, within {PATIENCE} of the others."


def test_an_optimiser_that_is_in_no_recorded_step_is_named(tmp_path):
    later = script(tmp_path, GAN.format(steps=60, condition="step >= 35"))
    found = record_on_fake_tensors(later, ignore)
    assert steps_of(found.step) == ["SGD"]
    assert found.about == (f"{WITHOUT} Adam (of_g), {TOO_FEW}",)


def test_an_optimiser_that_made_too_few_steps_is_named(tmp_path):
    late = script(tmp_path, GAN.format(steps=8, condition="step == 7"))
    found = record_script(late, 100, 0, ignore)
    assert steps_of(found.step) == ["SGD"]
    assert len(found.timing.step_times_us) >= 2
    assert found.about == (f"{WITHOUT} Adam (of_g), {TOO_FEW}",)
    with pytest.raises(LoadError, match="its 2 optimisers made too few steps"):
        record_script(script(tmp_path, GAN.format(steps=1, condition="True")), 1, 0, ignore)
