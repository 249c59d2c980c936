"""Tapes cut into stages, and pipelines of two processes; `make test-torch` runs them."""

import os
import random
import select
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.distributed.pipelining import stage as its_stage  # noqa: E402
from torch.distributed.pipelining._backward import stage_backward_input  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from enplace.errors import ClusterError, EnplaceError, PlanError  # noqa: E402
from enplace.frameworks.jobs import RunRequest, run_job  # noqa: E402
from enplace.frameworks.microbatches import Microbatches  # noqa: E402
from enplace.frameworks.torch.pipelines import pipelines  # noqa: E402
from enplace.frameworks.torch.pipelines.again import MadeAgain, RunAgain  # noqa: E402
from enplace.frameworks.torch.pipelines.calls import PipelineRefusedError  # noqa: E402
from enplace.frameworks.torch.pipelines.first_check import ModelCall  # noqa: E402
from enplace.frameworks.torch.pipelines.model_state import KnownState  # noqa: E402
from enplace.frameworks.torch.pipelines.pipelines import check_pipeline, run_pipeline  # noqa: E402
from enplace.frameworks.torch.pipelines.rank import explain_failure  # noqa: E402
from enplace.frameworks.torch.pipelines.stages import PART, _Given, cut_tape  # noqa: E402
from enplace.frameworks.torch.pipelines.tape import Tape  # noqa: E402
from enplace.frameworks.torch.pipelines.weights_apart import patches  # noqa: E402
from enplace.frameworks.torch.run.hooks import modules_in_plan  # noqa: E402
from enplace.frameworks.torch.run.run import run_plain  # noqa: E402
from enplace.inputs import make_problem  # noqa: E402
from enplace.placers import PlaceOptions, place  # noqa: E402
from enplace.placing.options import load_values  # noqa: E402
from enplace.processes.wire import Message  # noqa: E402
from enplace.processes.worker import WorkerError, ignore  # noqa: E402
from enplace.readers import read_plan  # noqa: E402
from enplace.readers.clusters import presets  # noqa: E402
from enplace.values.load_rule import LoadRule  # noqa: E402
from enplace.values.plan import Plan, follow_graph  # noqa: E402
from enplace.writers import write_plan  # noqa: E402
from forked_ranks import fork_ranks  # noqa: E402
from torch_scripts import profile_of, script  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(torch.__version__.startswith("2.6."), reason="its pipelines are refused"),
]


class Tied(nn.Module):
    """An embedding that is the head, too, and that goes past a layer as a skip."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(16, 8)
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, x):
        e = self.emb(x)
        h = torch.relu_(self.two(torch.tanh(self.one(e))))
        mask = torch.arange(x.shape[1]) >= 0
        return self.head(torch.where(mask[None, :, None], h + e, 0.0))


def loss_of(out, y):
    return nn.functional.cross_entropy(out.flatten(0, 1), y.flatten())


def taped(model, x, y, parts=2, loss=loss_of):
    tape = Tape(model, len(x), parts)
    try:
        out = tape.call(model, (x,), {})
        return tape, tape.loss(loss(out, y))
    finally:
        tape.close()


def batch(rows=4):
    made = torch.Generator().manual_seed(rows)
    return [torch.randint(0, 16, (rows, 3), generator=made) for _ in range(2)]


def loss_in_stages(cut, batch):
    """Return the loss of two micro-batches of two rows."""
    stages, losses = [cut.module(number) for number in range(len(cut.devices))], []
    for part in (slice(0, 2), slice(2, 4)):
        given = ()
        for stage in stages:
            stage.has_begun = True
            out = stage(*given, **{f"{PART}{n}": batch[n][part] for n in stage.batch})
            given = out if isinstance(out, tuple) else (out,)
        losses.append(given[0])
    return torch.stack(losses).mean()


def test_stages_of_a_tape_make_the_loss_of_the_whole_model():
    model, (x, y) = Tied(), batch()
    tape, loss = taped(model, x, y)
    cut = cut_tape(tape.calls, loss, {"emb": 0, "one": 0, "two": 1, "head": 2}, "abc")
    assert [*cut.devices] == [0, 1, 2]
    assert [len(passed) for passed in cut.passed] == [2, 1]  # the skip, too
    assert [(p is model.emb.weight, on) for p, on in cut.shared] == [(True, (0, 2))]
    in_stages = loss_in_stages(cut, tape.batch)
    in_stages.backward()
    gradient = model.emb.weight.grad.clone()
    model.zero_grad()
    whole = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    whole.backward()
    assert in_stages.item() == pytest.approx(whole.item(), rel=1e-6)
    assert torch.allclose(gradient, model.emb.weight.grad, atol=1e-6)


class Turned(Tied):
    def forward(self, x):
        turned = self.two.weight
        return self.head(self.emb(x) @ turned)


class Joined(nn.Module):
    """Of two towers, the one that it calls last may be in the first stage of a V."""

    def __init__(self):
        super().__init__()
        self.right, self.more, self.left = nn.Embedding(16, 8), nn.Linear(8, 8), nn.Embedding(16, 8)
        self.head = nn.Linear(8, 16)

    def forward(self, x):
        right = self.more(self.right(x))
        return self.head(self.left(x) + right)


def test_first_stages_of_a_v_are_in_the_opposite_order_of_the_second():
    model, (x, y) = Joined(), batch()
    tape, loss = taped(model, x, y)
    devices = {"left": 0, "right": 1, "more": 1, "head": 0}
    halves = {"left": 0, "right": 0, "more": 1, "head": 1}
    cut = cut_tape(tape.calls, loss, devices, "ab", schedule="zbv", half_of=halves)
    assert [*cut.devices] == [0, 1, 1, 0]
    whole = loss_of(model(x), y)
    assert loss_in_stages(cut, tape.batch).item() == pytest.approx(whole.item(), rel=1e-6)


def test_a_first_stage_may_make_only_a_weight():
    """Then it reads nothing of the batch; PyTorch calls it at first, to see shapes."""
    model, (x, y) = Turned(), batch()
    nn.utils.parametrizations.orthogonal(model.two)
    tape, loss = taped(model, x, y)
    cut = cut_tape(tape.calls, loss, {"two": 0, "emb": 1}, "ab")
    first = cut.module(0)
    assert not first.batch
    assert first().shape == (8, 8)
    assert loss_in_stages(cut, tape.batch).item() == pytest.approx(loss_of(model(x), y).item())


class ByValue(Tied):
    """What ``act`` does between two layers may depend on values; ``last`` is its line."""

    def __init__(self, act):
        super().__init__()
        self.act = act

    def forward(self, x):
        return self.head(self.two(self.act(torch.tanh(self.one(self.emb(x))), x)))


def trimmed(h, x):
    return nn.functional.pad(h[:, : int(x[:, 0].max())], (0, 0, 0, 3))[:, :3]


def trimmed_by_tensor(h, x):
    return nn.functional.pad(h[:, : x[:, 0].max()], (0, 0, 0, 3))[:, :3]


def branching(h, x):
    return h * 2 if (x[:, 0] == 1).any() else h


def dropped(h, x):
    return h * 2 if torch.rand(()) < x[0, 0] - 1 else h


def routed(h, x, skips=True):
    out, rows = torch.zeros_like(h), (x[:, 0] == 1).nonzero().squeeze(-1)
    if skips and rows.numel() == 0:
        return h + out
    return h + out.index_add(0, rows, h[rows])


def routed_simply(h, x):
    return routed(h, x, skips=False)


def weighted(h, x):
    found = h[x > 1]
    return h * len(found)


def scaled(h, x):
    return h * x.numpy().mean()


class Chosen(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, mask):
        ctx.save_for_backward(mask)
        return h[mask]

    @staticmethod
    def backward(ctx, gradient):
        (mask,) = ctx.saved_tensors
        return gradient.new_zeros(*mask.shape, 8).index_put((mask,), gradient), None


def chosen(h, x):
    return h * Chosen.apply(h, x > 1).shape[0]


def counted(h, x):
    n_bytes = x[x > 1].nbytes
    return h * n_bytes


def printed(h, x):
    return h * len(str((x > 1).sum() * 5))


def mapped(h, x):
    """``vmap`` also reads a tensor that is no argument."""
    return h * torch.vmap(lambda row: x[row].sum())(torch.arange(len(x)))[:, None, None]


def _halved(h, x):
    return h * x.unsqueeze(-1) / 2


def halved(h, x):
    return torch.jit.script(_halved)(h, x)


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (trimmed, "'int' depends on values: it gives 2 for one micro-batch and gave 1 for the"),
        (trimmed_by_tensor, "'index' depends on values: it gives 2 for one micro-batch"),
        (branching, "'bool' depends on values: it gives False for one micro-batch and gave True"),
        (dropped, "'bool' depends on values: it gives True for one micro-batch and gave False"),
        (routed, "'numel' depends on values: it gives 0 for one micro-batch and gave 2 for"),
        (weighted, "'len' depends on values: it gives 6 for one micro-batch and gave 4 for"),
        (scaled, r"'numpy' depends on values: it gives \[\[2, 2, 2\]"),
        (
            chosen,
            r"'shape' depends on values: it gives \(6, 8\) for one micro-batch and gave \(4, ",
        ),
        (counted, "'nbytes' depends on values: it gives 48 for one micro-batch and gave 32 for"),
        (printed, r"'repr' depends on values: it gives 'tensor\(30\)' for one micro-batch"),
        (routed_simply, None),
        (mapped, None),
        (halved, None),
    ],
)
def test_a_model_that_goes_by_values_is_refused_where_they_differ(act, why):
    model, x = ByValue(act), torch.tensor([[1, 2, 2], [1, 2, 2], [2, 2, 2], [2, 2, 2]])
    y = batch()[1]
    tape, loss = taped(model, x, y)
    cut = cut_tape(tape.calls, loss, {"emb": 0, "one": 0, "two": 1, "head": 1}, "ab")
    same = {number: torch.cat([each[:2]] * 2) for number, each in tape.batch.items()}
    loss_in_stages(cut, same).backward()  # the second micro-batch is like the first
    if why is None:
        whole = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        assert loss_in_stages(cut, tape.batch).item() == pytest.approx(whole.item(), rel=1e-6)
        return
    line = act.__code__.co_firstlineno
    with pytest.raises(
        PipelineRefusedError, match=rf"test_pipelines.py, line \d+: {why}"
    ) as caught:
        loss_in_stages(cut, tape.batch)
    assert 0 < int(str(caught.value).split("line ")[1].split(":")[0]) - line < 4


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (lambda h, x: h * x.untyped_storage()[0], "takes the memory of a tensor, by 'untyped_st"),
        (lambda h, x: h * np.from_dlpack(x).max(), "takes the memory of a tensor, by 'dlpack'"),
        (lambda h, x: torch.jit.script(nn.Linear(8, 8))(h) * 2, "it made by other calls"),
        (lambda h, x: h.register_hook(torch.sign), "tensor has a hook on its gradient"),
    ],
)
def test_what_goes_past_the_calls_of_pytorch_is_refused(act, why):
    with pytest.raises(PipelineRefusedError, match=rf"test_pipelines.py, line \d+: .* {why}"):
        taped(ByValue(act), *batch())


class Kept(ByValue):
    """A model with what one may keep in one: numbers, a module and a buffer."""

    def __init__(self, act):
        super().__init__(lambda h, x: act(self, h))
        self.scale, self.longest, self.drop = 1.0, 0, nn.Dropout(0.5)
        self.register_buffer("mean", torch.zeros(8))


class Centred(torch.autograd.Function):
    """Takes a mean over samples in one call."""

    @staticmethod
    def forward(ctx, x):
        return x - x.mean((0, 1))

    @staticmethod
    def backward(ctx, gradient):
        return gradient - gradient.mean((0, 1))


def checked(act):
    """Record a model that does something between two layers, and check what is on the tape."""
    model, (x, y) = Kept(act), batch()
    call = ModelCall(model, model, (x,), {}, torch.device("cpu"))
    tape, loss = taped(model, x, y)
    call.check(tape, loss, 2)
    return model


def root(out, y):
    return torch.sqrt(loss_of(out, y))


def focal(out, y):
    return (1 - torch.exp(-loss_of(out, y))) ** 2 * loss_of(out, y)


def contrast(out, y):
    texts = nn.functional.normalize(out.flatten(1), dim=1)
    return nn.functional.cross_entropy(texts @ texts.detach().T, torch.arange(len(texts)))


def spread(out, y):
    rows = out.flatten(1)
    return loss_of(out, y) + 1e-4 * torch.einsum("id,ie->de", rows, rows).pow(2).mean()


def added(out, y):
    return loss_of(out, y) + torch.dot(out.flatten(), out.flatten()) / 100


@pytest.mark.parametrize("loss", [root, focal, contrast, spread, added])
def test_a_loss_that_is_no_mean_over_samples_is_refused(loss):
    model, (x, y) = Tied(), batch()
    call = ModelCall(model, model, (x,), {}, torch.device("cpu"))
    with pytest.raises(
        PipelineRefusedError, match=r"mean over samples|depend on the other samples"
    ):
        call.check(*taped(model, x, y, loss=loss), 2)


def test_a_loss_that_needs_more_samples_than_a_micro_batch_has_is_refused_in_a_line():
    def hardest(out, y):
        each = nn.functional.cross_entropy(out[:, 0], y[:, 0], reduction="none")
        return each.topk(3)[0].mean()

    def marked(out, y):
        KEPT[torch.arange(len(out)), 0, y[:, 0]] = 1
        return (out * KEPT).mean()

    for loss in (hardest, marked):
        with pytest.raises(PipelineRefusedError, match="it fails on 2 of 4 rows"):
            taped(Tied(), *batch(), loss=loss)


def policy(out, y):
    return -torch.distributions.Categorical(logits=out).log_prob(y).mean()


def gaussian(out, y):
    of_each = torch.distributions.Normal(out[..., 0], out[..., 1].exp())
    return -torch.distributions.Independent(of_each, 1).log_prob(y.float()).mean()


@pytest.mark.parametrize("policy", [policy, gaussian])
def test_a_distribution_may_check_its_values_and_name_the_number_of_samples(policy):
    model, (x, y) = Tied(), batch()
    call = ModelCall(model, model, (x,), {}, torch.device("cpu"))
    tape, number = taped(model, x, y, loss=policy)
    assert call.check(tape, number, 2)[0] == number


def test_what_is_no_mean_over_samples_is_unknown_after_the_step_and_the_loss_is_known():
    model, (x, y), seen = Tied(), batch(), []
    call = ModelCall(model, model, (x,), {}, torch.device("cpu"))

    def loss(out, y):
        own, weights = loss_of(out, y), model.one.weight.abs().sum()
        seen.extend([own, weights, own.exp()])
        return own + 1e-3 * weights

    tape, number = taped(model, x, y, loss=loss)
    number_of = {id(tensor): number for number, tensor in tape.shown.values()}
    means = call.check(tape, number, 2)
    assert means[0] == number
    assert [number_of[id(each)] in means for each in seen] == [True, True, False]


def count_calls(model, h):
    model.scale += 1
    return h


def keep_longest(model, h):
    model.longest = max(model.longest, h.shape[1])
    return model.drop(h)


def keep_mean(model, h):
    with torch.no_grad():
        model.mean.lerp_(h.mean((0, 1)), 0.1)
    return h + model.mean


def replace_mean(model, h):
    model.mean = (model.mean + h.detach().mean((0, 1))) / 2
    return h + model.mean


def test_what_a_model_keeps_of_each_call_is_outdated_after_its_step():
    def keep(model, h):
        if not hasattr(model, "table"):
            model.table = torch.ones(8)
        model.seen = h * model.table
        return h

    model = checked(keep)
    assert model.table.sum() == 8
    with pytest.raises(PipelineRefusedError, match=r"after loss.backward.* what its model made"):
        model.seen.norm()
    model.eval()(batch()[0])
    assert model.seen.norm()


def keep_quietly(model, h):
    model.mean.data.add_(1)
    return h


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (count_calls, r"the model changes its 'scale' in each forward pass \("),
        (keep_mean, "the model changes its buffer 'mean' in its forward pass"),
        (replace_mean, "the model changes its buffer 'mean' in its forward pass"),
        (keep_quietly, "the model changes its buffer 'mean' in its forward pass"),
        (lambda model, h: model.drop(Centred.apply(h)), "depends on other samples of its batch"),
    ],
)
def test_a_model_that_gives_something_else_than_its_tape_is_refused(act, why):
    with pytest.raises(PipelineRefusedError, match=why):
        checked(act)


@pytest.mark.parametrize("act", [keep_longest, lambda model, h: h + torch.rand_like(h)])
def test_a_model_whose_tape_is_like_it_draws_as_before_after_the_check(act):
    after = []
    for make in (lambda: Kept(act)(batch()[0][:2]), lambda: checked(act)):
        torch.manual_seed(1)
        make()
        after.append(torch.rand(1))
    assert torch.equal(*after)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda model: setattr(model, "scale", 2.0), r"another 'scale' .* \(1.0 then, 2.0 now\)"),
        (lambda model: setattr(model.drop, "p", 0.1), "'drop' has another 'p'"),
        (lambda model: model.two.eval(), "'two' has another 'training'"),
        (lambda model: setattr(model, "two", nn.Linear(8, 8)), "'two' is another module"),
        (lambda model: setattr(model, "mean", torch.ones(8)), "the model has another 'mean'"),
        (lambda model: model.two.register_forward_hook(print), "'two' has other forward hooks"),
        (lambda model: model.two.register_full_backward_hook(print), "'two' has a hook on its gra"),
        (
            lambda model: model.two.bias.register_hook(torch.sign),
            "'two.bias' has a hook on its gradient, which would run once for each micro-batch",
        ),
        (
            lambda model: model.two.bias.register_post_accumulate_grad_hook(print),
            "'two.bias' has a hook on its gradient",
        ),
    ],
)
def test_what_a_script_changes_in_its_model_is_refused(change, why):
    model = Kept(keep_longest)
    state = KnownState(model)
    with state.called():
        model(batch()[0])
    model.mean.fill_(1)
    state.check()
    change(model)
    with pytest.raises(PipelineRefusedError, match=why):
        state.check()
    if "hook on" in why:  # which is refused at first, too
        with pytest.raises(PipelineRefusedError, match=why):
            KnownState(model)


@pytest.mark.parametrize(("both", "ends"), [(False, None), (True, "two stages need what 'rand'")])
def test_numbers_that_two_stages_need_are_not_drawn_by_both(both, ends):
    class Noisy(Tied):
        def forward(self, x):
            noise = torch.rand(*x.shape, 8)
            h = self.one(self.emb(x) + noise if both else self.emb(x))
            return self.head(self.two(h) + noise)

    tape, loss = taped(Noisy(), *batch())
    with pytest.raises(PipelineRefusedError, match=ends) if ends else nullcontext():
        cut_tape(tape.calls, loss, {"emb": 0, "one": 0, "two": 1, "head": 1}, "ab")


def test_complex_numbers_stay_on_one_device():
    class Spectral(Tied):
        def __init__(self):
            super().__init__()
            self.two = nn.Linear(8, 8, dtype=torch.complex64)

        def forward(self, x):
            spectrum = torch.fft.fft(self.one(self.emb(x)))
            return self.head(torch.fft.ifft(self.two(spectrum)).real)

    tape, loss = taped(Spectral(), *batch())
    cut_tape(tape.calls, loss, {"emb": 0, "one": 0, "two": 0, "head": 1}, "ab")
    why = r"what '.*fft.*' makes for another stage is complex, and PyTorch sends real numbers"
    with pytest.raises(PipelineRefusedError, match=why):
        cut_tape(tape.calls, loss, {"emb": 0, "one": 0, "two": 1, "head": 1}, "ab")


@pytest.mark.parametrize("draw", [random.random, np.random.rand, np.random.randn])
def test_a_model_that_draws_numbers_elsewhere_than_from_pytorch_is_refused(draw):
    with pytest.raises(PipelineRefusedError, match="draws random numbers from Python or NumPy"):
        taped(ByValue(lambda h, x: h * draw()), *batch())


@pytest.mark.parametrize(
    ("kind", "late"),
    [("LlamaForCausalLM", ("model.norm", "lm_head")), ("BertForMaskedLM", ("cls",))],
)
def test_a_batch_whose_first_rows_need_no_mask_runs_with_those_that_do(kind, late):
    made_by = getattr(pytest.importorskip("transformers"), kind)
    sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    model = made_by(made_by.config_class(**sizes, num_attention_heads=2)).eval()
    x, y = batch()
    mask = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 0, 0]])
    tape = Tape(model, len(x), 2)
    out = tape.call(model, (), {"input_ids": x, "attention_mask": mask})
    loss = tape.loss(nn.functional.cross_entropy(out.logits.flatten(0, 1), y.flatten()))
    places = {name: int(name.startswith(late)) for name, _ in model.named_modules()}
    cut = cut_tape(tape.calls, loss, places, "ab")
    whole = nn.functional.cross_entropy(model(x, mask).logits.flatten(0, 1), y.flatten())
    assert loss_in_stages(cut, tape.batch).item() == pytest.approx(whole.item(), rel=1e-6)


def test_a_mean_over_unlike_many_rows_is_refused():
    def loss_of_some(out, y):
        return nn.functional.cross_entropy(out[y > 0], y[y > 0])

    y = torch.tensor([[1, 1, 1], [1, 1, 1], [0, 1, 1], [0, 0, 0]])
    tape, loss = taped(Tied(), batch()[0], y, loss=loss_of_some)
    cut = cut_tape(tape.calls, loss, {"emb": 0, "one": 0, "two": 1, "head": 1}, "ab")
    with pytest.raises(PipelineRefusedError, match="'numel' depends on values"):
        loss_in_stages(cut, tape.batch)


def test_the_plain_shape_of_a_batch_is_not_read_again():
    model, (x, y) = ByValue(lambda h, x: h.view(x.shape[0], h.size(1), -1)), batch()
    tape, _ = taped(model, x, y)
    assert not [call.name for call in tape.calls if not call.numbers]


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.late, self.early = nn.Embedding(16, 8), nn.Embedding(16, 8)
        self.joined, self.head = nn.Linear(8, 8), nn.Linear(8, 16)

    def forward(self, x):
        late = self.late(x)  # is called first, but its stage needs the other one's result
        return self.head(self.joined(self.early(x)) + late)


@pytest.mark.parametrize(("on", "order"), [((1, 0, 0, 1), [0, 1]), ((0, 1, 1, 0), [1, 0])])
def test_stages_are_in_the_order_in_which_they_need_each_other(on, order):
    tape, loss = taped(Towers(), *batch())
    device_of = dict(zip(("late", "early", "joined", "head"), on, strict=True))
    assert [*cut_tape(tape.calls, loss, device_of, "ab").devices] == order


def test_a_later_step_gives_its_own_batch_and_must_be_the_same():
    model, (x, y) = Tied(), batch()
    tape, loss = taped(model, x, y)
    other = [each.flip(0) for each in (x, y)]
    out = tape.call_again((other[0],), {})
    again = nn.functional.cross_entropy(out.flatten(0, 1), other[1].flatten())
    assert tape.loss(again) == loss
    assert torch.equal(tape.batch[0], other[0])
    assert any(torch.equal(each, other[1]) for each in tape.batch.values())
    out = tape.call_again((x,), {})
    try:
        with pytest.raises(PipelineRefusedError, match="a later step calls 'log_softmax'"):
            out.log_softmax(-1)
    finally:
        tape.close()


@pytest.mark.parametrize("part", [lambda n: slice(n, n + 3), lambda n: np.arange(n, n + 3)])
def test_a_part_of_the_data_that_a_later_step_takes_is_its_own_or_refused(part):
    model, (x, _), data = Tied(), batch(), torch.randint(0, 16, (4, 20))
    tape, _ = taped(model, x, data[:, part(3)], loss=lambda out, y: loss_of(out, data[:, part(3)]))
    out = tape.call_again((x,), {})
    with pytest.raises(PipelineRefusedError, match="take a step's part of the data before the mod"):
        loss_of(out, data[:, part(4)])
    tape.close()


def test_what_leaves_a_tensor_as_it_is_is_no_call_of_a_step():
    def loss_of_floats(out, y):
        return loss_of(out.float().contiguous().to(y.device), y)

    model, (x, y) = Tied(), batch()
    tape, loss = taped(model, x, y, loss=loss_of_floats)
    assert tape.loss(loss_of_floats(tape.call_again((x,), {}), y)) == loss


def test_what_a_model_keeps_for_its_loss_must_be_returned():
    kept = []
    model, (x, y) = ByValue(lambda h, x: kept.append(h.square().mean()) or h), batch()
    tape, _ = taped(model, x, y, loss=lambda out, y: loss_of(out, y) + kept[0])
    out = tape.call_again((x,), {})
    try:
        with pytest.raises(PipelineRefusedError, match="let the model return it"):
            loss_of(out, y) + kept[0]
    finally:
        tape.close()


def each_with_each(out, y):
    out = nn.functional.normalize(out.mean(1), dim=-1)
    return nn.functional.cross_entropy(5 * out @ out.T, torch.arange(len(out)))


@pytest.mark.parametrize(
    ("act", "loss"),
    [
        (lambda h, x: h, each_with_each),
        (lambda h, x: h, lambda out, y: torch.cdist(out[:, 0], out[:, 0]).mean()),
        (lambda h, x: h - h.mean((0, 1)), loss_of),
        (lambda h, x: h / h.flatten(0, 1).norm(dim=0), loss_of),
        (lambda h, x: h.transpose(0, 1).softmax(1).transpose(0, 1), loss_of),
    ],
)
def test_samples_that_depend_on_each_other_are_refused(act, loss):
    why = r"test_pipelines.py, line \d+: .* depend on the other samples"
    with pytest.raises(PipelineRefusedError, match=why):
        taped(ByValue(act), *batch(), loss=loss)


def with_attention(h, x):
    heads = h.unflatten(-1, (2, 4)).transpose(1, 2)
    return h + ((heads @ heads.mT).softmax(-1) @ heads).transpose(1, 2).flatten(2)


def one_by_one(h, x):
    return h + torch.stack([each @ each.T @ each for each in h])


def of_experts(h, x):
    flat = h.flatten(0, 1)
    shares = flat[:, :3].softmax(-1)
    h.aux = 3 * (shares.detach().mean(0) * shares.mean(0)).sum()
    chosen = shares.argmax(-1)
    out = torch.zeros_like(flat).index_add(0, (chosen == 1).nonzero()[:, 0], flat[chosen == 1])
    return h + out.view_as(h)


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_what_runs_again_for_its_gradients_has_its_own_calls(is_reentrant):
    model, (x, y) = ByValue(lambda h, x: h), batch()
    model.act = lambda h, x: checkpoint(model.one, h, use_reentrant=is_reentrant)
    tape, _ = taped(model, x, y)
    assert [call.module for call in tape.calls].count("one") == 2


def test_what_needs_no_gradient_is_made_again_in_the_stage_that_reads_it():
    class Expert(Tied):
        def forward(self, x):
            h, where = self.one(self.emb(x)), x > 3
            out = torch.zeros_like(h)
            out[where] = self.two(h[where])
            return self.head(h + out)

    model, (x, y) = Expert(), batch()
    tape, loss = taped(model, x, y)
    cut = cut_tape(tape.calls, loss, {"emb": 0, "one": 0, "two": 1, "head": 1}, "ab")
    whole = loss_of(model(x), y)
    assert loss_in_stages(cut, tape.batch).item() == pytest.approx(whole.item(), rel=1e-6)


@pytest.mark.parametrize("act", [with_attention, one_by_one, of_experts])
@pytest.mark.parametrize("rows", [4, 2, 6])
def test_samples_that_do_not_depend_on_each_other_are_not_refused(act, rows):
    taped(ByValue(act), *batch(rows))


class Counts(Tied):
    def forward(self, x):
        return super().forward(x), (x > 3).sum(1)


@pytest.mark.parametrize("model", [Counts(), Tied().double()])
def test_a_model_may_give_counts_of_each_sample_or_compute_in_doubles(model):
    x, y = batch()
    call = ModelCall(model, model, (x,), {}, torch.device("cpu"))
    tape, loss = taped(
        model, x, y, loss=lambda out, y: loss_of(out[0] if isinstance(out, tuple) else out, y)
    )
    assert call.check(tape, loss, 2) == [loss]


@dataclass(frozen=True)
class Answer:
    out: torch.Tensor
    more: dict


class Answers(Tied):
    def forward(self, x):
        out = super().forward(x)
        return Answer(out, {"twice": 2 * out})


def test_a_model_may_give_a_dataclass():
    x, y = batch()
    tape, loss = taped(Answers(), x, y, loss=lambda given, y: loss_of(given.more["twice"], y))
    given = tape.call_again((x,), {})
    assert isinstance(given, Answer)
    assert tape.loss(loss_of(given.more["twice"], y)) == loss


def test_a_cast_of_what_a_module_gets_may_be_in_the_stage_before_it():
    planned = {f"{owner}/{name}": 0 for owner in ("one", "two") for name in ("weight", "bias")}
    planned |= {"emb/weight": 0, "emb/embedding": 0, "head/_to_copy_1": 0, "head/mm": 1}
    found = modules_in_plan(Tied(), planned, in_stages=True)
    assert found == {"emb": 0, "one": 0, "two": 0, "head": 1}
    with pytest.raises(PlanError, match="'head' would be divided"):
        modules_in_plan(Tied(), planned | {"head/add": 0}, in_stages=True)


def test_what_is_drawn_for_the_next_step_is_whole():
    """Order of lines of scripts that draw a batch while the model computes."""
    data, drawn = torch.randint(0, 16, (20, 3)), []

    def loss(out, y):
        rows = torch.randint(0, 20, (4,))
        drawn[:] = [data[rows], torch.stack([torch.from_numpy(data.numpy()[i]) for i in rows])]
        drawn.append(drawn[0].float().mean(0))
        return loss_of(out, y)

    model, (x, y) = Tied(), batch()
    tape, number = taped(model, x, y, loss=loss)
    for _ in range(2):
        assert [len(each) for each in drawn] == [4, 4, 3]
        assert torch.equal(drawn[0], drawn[1])
        assert [*map(len, tape.batch.values())] == [4, 4]
        assert tape.loss(loss(tape.call_again((x,), {}), y)) == number


@pytest.mark.parametrize(
    "labels",
    [
        lambda: torch.ones(4, 3, dtype=torch.long).add(1).view(-1),
        lambda: torch.from_numpy(np.arange(12).reshape(4, 3)).flatten(),
    ],
)
def test_what_is_made_for_the_loss_is_cut_where_it_meets_it(labels):
    model, (x, y) = Tied(), batch()
    tape, loss = taped(
        model, x, y, loss=lambda out, y: nn.functional.cross_entropy(out.flatten(0, 1), labels())
    )
    cut = cut_tape(tape.calls, loss, {"emb": 0, "one": 0, "two": 1, "head": 1}, "ab")
    whole = nn.functional.cross_entropy(model(x).flatten(0, 1), labels())
    assert loss_in_stages(cut, tape.batch).item() == pytest.approx(whole.item(), rel=1e-6)


KEPT, OWN = torch.zeros(4, 3, 16), torch.Generator()


@pytest.mark.parametrize(
    "made",
    [
        lambda out, y: KEPT.copy_(torch.arange(4.0).view(4, 1, 1)),
        lambda out, y: KEPT.mul_(0.5).add_(2),
        lambda out, y: KEPT.copy_(nn.functional.one_hot(y, 16) * 0.9 + 0.1),
        lambda out, y: KEPT.fill_(0.1).scatter_(2, y[..., None], 0.9),
        lambda out, y: torch.add(torch.ones(4, 3, 16), 1, out=KEPT),
        lambda out, y: torch.zeros(4, 3, 16).scatter_(2, y[..., None], 1),
        lambda out, y: torch.ones(4, 3, 16).add_(out.detach()).mul_(2),
        lambda out, y: y.view(-1).mul_(2).view(-1, 3, 1).expand(-1, 3, 16) * 1.0,
        lambda out, y: torch.randn_like(out) + torch.rand_like(y * 1.0)[..., None],
        lambda out, y: torch.empty_like(out).normal_() + torch.zeros_like(out).uniform_(),
        lambda out, y: out.new_empty(out.shape).exponential_().mul_(2),
        lambda out, y: nn.functional.dropout(out, 0.5) + nn.functional.dropout1d(out, 0.5),
        lambda out, y: nn.functional.dropout(out.relu(), 0.5, inplace=True),
        lambda out, y: torch.bernoulli(out.sigmoid()) - torch.normal(out, 0.1),
        lambda out, y: torch.empty_like(out).bernoulli_(out.detach().sigmoid()),
        lambda out, y: nn.functional.gumbel_softmax(out.flatten(0, 1), hard=True).view_as(out),
        lambda out, y: torch.multinomial(out.flatten(0, 1).softmax(-1), 16).view_as(out) * 1.0,
        lambda out, y: nn.functional.dropout(out.transpose(0, 1), 0.5).transpose(0, 1),
        lambda out, y: nn.functional.dropout(out.transpose(1, 2), 0.5).transpose(1, 2),
        lambda out, y: nn.functional.dropout(y[..., None] * torch.ones(4, 3, 16), 0.5),
        lambda out, y: torch.empty_like(out).normal_(generator=OWN.manual_seed(1)),
        lambda out, y: out * nn.functional.dropout(torch.ones(5, 16), 0.5)[0],
    ],
)
def test_what_a_script_fills_or_draws_for_its_loss_is_whole(made):
    model, (x, y) = Tied(), batch()
    before = KEPT.clone()

    def loss(out, y):
        torch.manual_seed(0)
        filled = made(out, y)
        return (out * filled).mean() + (filled * filled).mean()

    tape, number = taped(model, x, y, loss=loss)
    after = KEPT.clone()
    cut = cut_tape(tape.calls, number, {"emb": 0, "one": 0, "two": 1, "head": 1}, "ab")
    found = loss_in_stages(cut, tape.batch).item()
    assert torch.equal(KEPT, after)
    KEPT.copy_(before)
    assert found == pytest.approx(loss(model(x), y).item(), rel=1e-5)
    assert torch.equal(KEPT, after)


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, y: (KEPT.copy_(out.detach()) * out).mean(),
        lambda out, y: loss_of(out, y) + 0 * y.zero_().sum(),
        lambda out, y: KEPT[:, :1].copy_(y[:, :1, None]).sum() + (out * KEPT).mean(),
    ],
)
def test_what_a_step_has_taken_is_not_changed_in_it(loss):
    with pytest.raises(PipelineRefusedError, match="changes a tensor with a row for each sample"):
        taped(Tied(), *batch(), loss=loss)


@pytest.mark.parametrize(
    "draw",
    [
        lambda out: torch.randn(out.shape),
        lambda out: torch.rand(out.size(0), 1, 1),
        lambda out: torch.empty(out.shape).normal_(),
        lambda out: torch.distributions.Normal(out, 1.0).rsample(),
        lambda out: nn.functional.dropout(torch.ones(len(out), 1, 1), 0.5),
        lambda out: out.new_empty(3 * len(out), 16).normal_().view_as(out),
        lambda out: nn.functional.dropout(out[out > 0], 0.5).mean(),
        lambda out: torch.distributions.Gamma(out.exp(), 1.0).rsample(),
    ],
)
def test_noise_that_all_micro_batches_would_share_is_refused(draw):
    with pytest.raises(PipelineRefusedError, match=r"draw by torch.randn_like"):
        taped(Tied(), *batch(), loss=lambda out, y: loss_of(out + draw(out), y))


def test_a_function_of_pytorch_that_reads_values_is_named_with_the_line_that_calls_it():
    def noisy(out, y):
        return loss_of(out + nn.init.trunc_normal_(torch.empty_like(out)), y)

    with pytest.raises(PipelineRefusedError, match=r"line \d+: PyTorch's 'trunc_normal_' reads"):
        taped(Tied(), *batch(), loss=noisy)


class Masked(Tied):
    def forward(self, x, mask):
        return nn.functional.scaled_dot_product_attention(*[self.emb(x)] * 3, mask) @ self.two(mask)


def test_where_something_is_cut_that_is_no_part_of_the_batch_a_line_says_so():
    x, mask, weight = torch.randint(0, 16, (8, 8)), torch.ones(8, 8), torch.ones(8)
    y = torch.randint(0, 8, (8,))
    for model, given, loss in (
        (Masked(), (x, mask), None),
        (nn.Linear(3, 8), (torch.randn(8, 3),), lambda out: nn.CrossEntropyLoss(weight)(out, y)),
    ):
        tape = Tape(model, 8, 2)
        why = r"test_pipelines.py, line \d+: it fails on 4 of 8 rows \(\w+: .* was cut \(here 8"
        with pytest.raises(PipelineRefusedError, match=why):
            loss(tape.call(model, given, {}))
        tape.close()
    model = Masked()
    model.register_buffer("mask", mask)
    tape = Tape(model, 8, 2)
    assert tape.call(model, (x, mask), {}).shape == (4, 8, 8)
    tape.close()
    with pytest.raises(AttributeError, match="odd"):  # the model's own
        taped(ByValue(lambda h, x: h.odd), *batch())


def test_what_is_no_pipeline_is_refused_in_a_line():
    model, (x, y) = Tied(), batch()
    with pytest.raises(PipelineRefusedError, match="4 rows of the batch, in its first dimension"):
        Tape(model, 4, 3)
    tape, loss = taped(model, x, y)
    with pytest.raises(PipelineRefusedError, match="4 rows of the batch, in its first dimension"):
        Tape(model, 4, 3)
    tape, loss = taped(model, x, y)
    with pytest.raises(PipelineRefusedError, match="'head' is on a and needs what b makes"):
        cut_tape(tape.calls, loss, {"emb": 0, "one": 0, "two": 1, "head": 0}, "ab")
    with pytest.raises(PipelineRefusedError, match="all modules of the model on one device"):
        cut_tape(tape.calls, loss, dict.fromkeys(("emb", "one", "two", "head"), 0), "ab")
    with pytest.raises(PipelineRefusedError, match=r"needs two on each .* run this plan as zb-h1"):
        cut_tape(tape.calls, loss, {"emb": 0, "one": 0, "two": 1}, "ab", schedule="zbv")
    with pytest.raises(PipelineRefusedError, match="normalises over the whole batch"):
        taped(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), torch.randn(4, 3), y)
    for loss, why in (
        (lambda out, y: out.sum(), "'sum' adds up samples"),
        (lambda out, y: print(loss_of(out, y).item()), "move that line below loss.backward"),
        (lambda out, y: loss_of(out, y) / y.tolist()[0][0], "move that line below loss.backward"),
        (lambda out, y: loss_of(out, y) / loss_of(out, y).detach(), "by the value of a loss"),
        (lambda out, y: 2 * float(loss_of(out, y).detach()), "move that line below loss.backward"),
        (lambda out, y: out[0], "something other than one loss"),
        (
            lambda out, y: loss_of(out * torch.ones(1, requires_grad=True), y),
            r"a tensor outside of the model gets a gradient .* make it a torch.nn.Parameter",
        ),
    ):
        with pytest.raises(PipelineRefusedError, match=why):
            taped(model, x, y, loss=loss)
    for loss in (
        lambda out, y: 2 * out.pow(2).mean(-1).sum() + loss_of(out, y),
        lambda out, y: nn.functional.mse_loss(out[..., 0], y.float(), reduction="sum") / 8,
    ):
        with pytest.raises(PipelineRefusedError, match="adds up samples"):
            taped(model, x, y, loss=loss)
    shares = lambda out: (out.softmax(-1).mean((0, 1)) ** 2).sum()  # noqa: E731
    taped(model, x, y, loss=lambda out, y: loss_of(out, y) + shares(out))  # over classes
    taped(
        model, x, y, loss=lambda out, y: loss_of(out / out.detach().sum(), y)
    )  # is no part of the loss
    penalty = sum(p.pow(2).sum() for p in model.parameters())  # is no sum over samples
    taped(model, x, y, loss=lambda out, y: loss_of(out, y) + penalty + model.emb.weight.sum())


SCRIPT = """
import os, sys, threading
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(16, 8)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(8, 16, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, x):
        x = self.emb(x)
        for layer in self.layers:
            x = x + self.drop(torch.tanh(layer(x)))
        return self.head(x)

model = Model()
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
for step in range(12):
    x, y = torch.randint(0, 16, (8, 5)), torch.randint(0, 16, (8, 5))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    if "die" in sys.argv and step == 4 and os.environ.get("RANK") == "1":
        os.kill(os.getpid(), 9)
    if "orphan" in sys.argv and step == 4 and "RANK" in os.environ:
        with open(f"{__file__}.{os.environ['RANK']}", "w") as file:
            file.write(str(os.getpid()))
        torch.distributed.barrier()
        if os.environ["RANK"] == "0":  # once it is gone, the other's parent is a stranger
            os.kill(os.getppid(), 9)
        threading.Event().wait()
"""


def pipeline(tmp_path, schedule="1f1b", *words, recompute=(), text=SCRIPT):
    """Profile a script, make a plan, with its first half on one device, and a pipeline's job."""
    source = script(tmp_path, text, *words)
    profile = profile_of(source, 1)
    times_us = np.where(np.isnan(profile.time_us), np.nan, 1000.0)
    profile = replace(profile, time_us=times_us)
    problem = make_problem(profile, presets()["cpu-2"], objective="throughput")
    if (schedule in ("interleaved", "zbv") and text == SCRIPT) or text == TABLES:
        rule = LoadRule(pipeline=schedule, microbatches=4)
        options = PlaceOptions(objective="throughput", values=load_values(rule))
        write_plan(tmp_path / "plan.json", place(problem, "max-load-dp", options=options))
        plan = read_plan(tmp_path / "plan.json", problem).plan
    else:
        late, inner = (
            np.array([int(any(s in name for s in each)) for name in profile.op_names])
            for each in (("layers_1", "layers_2", "head", "loss"), ("layers_0", "layers_1"))
        )
        plan = Plan(late, follow_graph(profile, np.arange(profile.n_ops)), method="test")
        if schedule == "zbv":
            plan = replace(plan, device=inner, subgraph=late)
    plan = replace(plan, recompute=recompute)
    wishes = {"pipeline": schedule, "microbatches": 4}
    job = run_job(RunRequest(source, "cpu:2", 4, wishes), problem, plan)
    return source, problem, plan, Microbatches(schedule, 4), job


@pytest.mark.parametrize(
    ("schedule", "recompute"),
    [
        ("1f1b", ()),
        ("gpipe", (0, 1)),
        ("interleaved", ()),
        ("zb-h1", (0, 1)),
        ("zbv", ()),
        ("zbv", (1,)),
    ],
)
def test_a_pipeline_of_two_processes_trains_like_the_script(
    tmp_path, monkeypatch, schedule, recompute
):
    if schedule != "1f1b":
        fork_ranks(monkeypatch)
    source, problem, plan, wanted, (profile, job) = pipeline(
        tmp_path, schedule, recompute=recompute
    )
    plain = run_plain(source, 4, ignore, drops_out=False)
    run = run_pipeline(problem, plan, wanted, job, profile, plain, ignore)
    assert run.first_step_difference < 1e-5
    assert run.loss_difference < 1e-4
    assert run.weights_difference < 1e-3
    assert 0 < run.facts["gradients_difference"] < 1e-5
    assert run.facts["weights_compared"] == 7  # one of them shared
    assert run.as_planned
    assert run.pipeline["shared_parameters"] == (0 if schedule == "zbv" else 1)
    assert [row["device"] for row in run.pipeline["devices"]] == ["CPU:0", "CPU:1"]
    in_flight = [row["in_flight"] for row in run.pipeline["devices"]]
    known = {"1f1b": [2, 1], "gpipe": [4, 4], "zbv": [4, 3]}
    assert in_flight == known.get(schedule, in_flight)
    assert run.pipeline["stages"] == (4 if schedule in ("interleaved", "zbv") else 2)
    for row in run.pipeline["devices"]:
        assert 0 < row["peak_bytes"] < 2 * row["predicted_peak_bytes"]


VIEWS = """
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Conv2d(1, 4, 3, padding=1)
        self.layers = nn.ModuleList([nn.Conv2d(4, 8, 3), nn.Linear(8, 8), nn.Linear(8, 8)])
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = torch.relu(self.emb(x)).flatten(2).unflatten(2, (6, 6))
        x = nn.functional.adaptive_avg_pool2d(self.layers[0](x), 1).flatten(1)
        y = torch.relu(self.layers[1](x)).unsqueeze(1).flatten(1)
        return self.head(torch.relu(self.layers[2](y)).view(-1, 8) + x)

model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(12):
    x, y = torch.randn(8, 1, 6, 6), torch.randint(0, 4, (8,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""


def test_stages_may_give_views(tmp_path, monkeypatch):
    """PyTorch detaches what a stage between others gives in place, which no view allows."""
    fork_ranks(monkeypatch)
    source, problem, plan, wanted, (profile, job) = pipeline(tmp_path, "zbv", text=VIEWS)
    plain = run_plain(source, 4, ignore, drops_out=False)
    run = run_pipeline(problem, plan, wanted, job, profile, plain, ignore)
    assert run.first_step_difference < 1e-5
    assert run.loss_difference < 1e-4
    assert run.as_planned


TABLES = """
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

class Turn(nn.Module):
    def __init__(self):
        super().__init__()
        angles = torch.outer(torch.arange(64.0), torch.arange(1.0, 5.0))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x):
        (one, two), n = x.chunk(2, -1), x.shape[1]
        cos, sin = self.cos[:n], self.sin[:n]
        return torch.cat([one * cos - two * sin, one * sin + two * cos], -1)

class Layer(nn.Module):
    def __init__(self, turn):
        super().__init__()
        self.inner, self.turn = nn.Linear(8, 8), turn

    def forward(self, x, scale):
        return x + self.turn(self.inner(x)) * scale

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        turn = Turn()
        self.emb, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)
        self.layers = nn.ModuleList([Layer(turn) for _ in range(4)])
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8))

    def forward(self, x):
        x = self.emb(x)
        for layer in self.layers:
            x = layer(x, self.scale)
        return self.head(x)

model = Model()
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
data = torch.randint(0, 16, (400,))
for step in range(12):
    starts = torch.randint(390, (8,)).tolist()
    x = torch.stack([data[at : at + 5] for at in starts])
    y = torch.stack([data[at + 1 : at + 6] for at in starts])
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
    optimizer.step()
"""


def test_layers_that_read_the_same_tables_are_stages_that_train_like_the_script(
    tmp_path, monkeypatch
):
    """The model gives one to each layer, and others are in a module that all layers share.

    Inputs and targets come from the same data, too, as in most scripts of language models.
    """
    fork_ranks(monkeypatch)
    source, problem, plan, wanted, (profile, job) = pipeline(tmp_path, text=TABLES)
    homes = {plan.device[problem.profile.index[f"layers_{n}/inner/weight"]] for n in (0, 3)}
    assert homes == {0, 1}
    plain = run_plain(source, 4, ignore, drops_out=False)
    run = run_pipeline(problem, plan, wanted, job, profile, plain, ignore)
    assert run.first_step_difference < 1e-5
    assert run.loss_difference < 1e-4
    assert run.weights_difference < 1e-3
    assert run.as_planned


EVALUATED = """
    average.update_parameters(model)
    with torch.no_grad():
        average(x), model(x)
"""


def test_weights_of_a_script_that_calls_its_average_too_are_those_of_its_model(
    tmp_path, monkeypatch
):
    """The run without the plan then names weights by the script's variables, and the plan not."""
    fork_ranks(monkeypatch)
    source, problem, plan, wanted, (profile, job) = pipeline(tmp_path)
    averaged = "average = torch.optim.swa_utils.AveragedModel(model)\noptimizer ="
    text = SCRIPT.replace("optimizer =", averaged)
    script(tmp_path, text.replace("optimizer.step()\n", f"optimizer.step(){EVALUATED}", 1))
    plain = run_plain(source, 4, ignore, drops_out=False)
    assert any(name.startswith("weights:average.") for name in plain.arrays)
    run = run_pipeline(problem, plan, wanted, job, profile, plain, ignore)
    assert run.first_step_difference < 1e-5
    assert run.weights_difference < 1e-3
    assert 0 < run.facts["gradients_difference"] < 1e-5
    assert run.facts["weights_compared"] == 7


@pytest.mark.parametrize("theirs", [{"v": np.ones(2)}, {"w": np.ones(3)}, {}])
def test_weights_that_have_no_pair_are_not_compared_but_named(theirs):
    answer, plain = (
        Message("rank", {}, {f"weights:{name}": each for name, each in found.items()})
        for found in ({"w": np.ones(2)}, theirs)
    )
    with pytest.raises(EnplaceError, match=r"no model with all 1 weight of .*, such as 'w'"):
        pipelines._compared(None, [answer], plain)


class Odd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("odd")


@pytest.mark.parametrize(
    ("give", "kind", "why"),
    [
        (lambda x: x.view(2), PipelineRefusedError, "no line of the script: RuntimeError: Can't d"),
        (Odd.apply, ValueError, "odd"),
    ],
)
def test_what_fails_within_pytorch_is_not_blamed_on_the_script(give, kind, why):
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(kind, match=why), explain_failure("zbv"):
        stage_backward_input([give(x)], None, [x], iter(()))


class Decoder(nn.Module):
    """What it embeds does not depend on what it gets; cross-attention reads both."""

    def __init__(self):
        super().__init__()
        self.emb, self.side = nn.Embedding(9, 8), nn.Embedding(9, 8)
        self.layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, memory, x):
        return _Given.apply(self.layer(self.emb(x), memory), self.side(x))


def test_gradients_of_weights_apart_are_those_of_one_pass():
    torch.manual_seed(0)
    model, x = Decoder(), torch.randint(0, 9, (3, 4))
    memory = torch.randn(3, 5, 8, requires_grad=True)
    given, gradients = model(memory, x), [torch.randn(3, 4, 8) for _ in range(2)]
    torch.autograd.backward(given, gradients)
    whole = [memory.grad, *(each.grad for each in model.parameters())]
    memory.grad = None
    model.zero_grad()
    with ExitStack() as stack:
        for owner, name, new in patches():
            stack.enter_context(patch.object(owner, name, new(getattr(owner, name))))
        of_input, groups = stage_backward_input(
            [*model(memory, x)], gradients, [memory], model.parameters()
        )
        its_stage.stage_backward_weight(model.parameters(), groups)
    apart = [*of_input, *(each.grad for each in model.parameters())]
    for one, other in zip(apart, whole, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("once", [True, False])
def test_what_runs_again_draws_the_same_numbers(once):
    """Gradients are those without it; where they are taken twice, it still runs again once."""
    weight, calls = torch.randn(6, 6, requires_grad=True), []
    x = torch.randn(4, 6, requires_grad=True)

    def call():
        calls.append(None)
        return nn.functional.dropout(torch.tanh(x @ weight), 0.5).square().sum()

    def gradients(made):
        if once:
            return torch.autograd.grad(made, (x, weight))
        first = torch.autograd.grad(made, x, retain_graph=True)
        return *first, *torch.autograd.grad(made, weight)

    torch.manual_seed(1)
    usual = gradients(call())
    after = torch.rand(1)
    torch.manual_seed(1)
    held = None if once else MadeAgain()
    again = gradients(RunAgain(call, torch.device("cpu"), held).first())
    assert len(calls) == 3
    assert all(map(torch.equal, usual, again))
    assert torch.equal(torch.rand(1), after)


def test_where_a_process_dies_the_others_end_and_a_line_says_so(tmp_path):
    _, problem, plan, wanted, (profile, job) = pipeline(tmp_path, "1f1b", "die")
    with pytest.raises(WorkerError, match="process 1 of the pipeline was ended by SIGKILL"):
        run_pipeline(problem, plan, wanted, job, profile, None, ignore)


def test_where_torchrun_is_killed_its_processes_end_too(tmp_path):
    source, problem, plan, wanted, (profile, job) = pipeline(tmp_path, "1f1b", "orphan")
    with pytest.raises(WorkerError, match="process 0 of the pipeline ended without a result"):
        run_pipeline(problem, plan, wanted, job, profile, None, ignore)
    for rank in range(2):
        process = int(Path(f"{source.path}.{rank}").read_text())
        with suppress(ProcessLookupError):
            ended = os.pidfd_open(process)
            assert select.select([ended], [], [], 60)[0]
            os.close(ended)


def test_pipelines_that_cannot_run_are_refused_before_anything_runs(tmp_path, monkeypatch):
    _, problem, plan, wanted, _ = pipeline(tmp_path)
    with pytest.raises(PlanError, match=r"as gpipe, 1f1b, .*not as inference"):
        check_pipeline(problem, plan, Microbatches("inference", 4), "cpu:2")
    with pytest.raises(ClusterError, match="a pipeline has a process for each; there are 1"):
        check_pipeline(problem, plan, wanted, "cpu:1")
    monkeypatch.setattr(pipelines, "find_spec", lambda name: None)
    with pytest.raises(EnplaceError, match="has no torchrun"):
        check_pipeline(problem, plan, wanted, "cpu:2")
