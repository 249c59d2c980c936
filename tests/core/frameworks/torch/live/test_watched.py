"""Where weights are read between the steps of a pipeline; `make test-torch` runs them."""

import copy
import io

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.utils import (  # noqa: E402
    clip_grad_norm_,
    parameters_to_vector,
    vector_to_parameters,
)

from enplace.frameworks.torch.pipelines.calls import PipelineRefusedError  # noqa: E402
from enplace.frameworks.torch.pipelines.watched import Watch  # noqa: E402


class Watched:
    """A model, of which ``fresh`` tells when its weights were read and ``written`` which were."""

    def __init__(self, model=None):
        self.model = model or nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2, bias=False))
        for each in self.model.parameters():
            each.grad = torch.ones_like(each)
        self.n_reads, self.written, self.is_in_step = 0, set(), False
        self.watch = Watch(self._read, self._wrote, lambda: self.is_in_step, self._is_elsewhere)
        self.watch.follow(self.model.parameters())
        self.watch.turn(on=True)

    def _read(self):
        """Be what other processes do: set the weights, unseen."""
        self.n_reads += 1
        with torch.no_grad(), self.watch.off():
            for each in self.model.parameters():
                each.fill_(7)

    def _is_elsewhere(self, parameter):
        return parameter is self.model[1].weight

    def _wrote(self, parameters):
        names = {id(p): name for name, p in self.model.named_parameters()}
        self.written |= {names[id(each)] for each in parameters}


def pickled(value):
    file = io.BytesIO()
    torch.save(value, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


def averaged(model):
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    return average.module


READS = [
    pickled,
    copy.deepcopy,
    averaged,
    lambda model: pickled(dict(model.named_parameters())),
    lambda model: pickled({name: p.data for name, p in model.named_parameters()}),
    lambda model: copy.deepcopy([p.detach() for p in model.parameters()]),
    lambda model: [p.detach().numpy().copy() for p in model.parameters()],
    lambda model: np.array(model[0].weight.tolist()),
    lambda model: parameters_to_vector(model.parameters()),
    lambda model: [p.norm() / p.numel() ** 0.5 for p in model.parameters()],
    lambda model: list(torch._foreach_norm(list(model.parameters()), float("inf"))),
    lambda model: model[1].weight[0].data[1:].clone(),
    lambda model: torch.zeros(3, 3).copy_(model[0].weight.detach()),
    lambda model: model[0].weight.max().item(),
]


def values(made):
    if isinstance(made, nn.Module):
        return [p.detach().numpy() for p in made.parameters()]
    if isinstance(made, dict | list):
        each = made.values() if isinstance(made, dict) else made
        return [np.asarray(one.detach() if torch.is_tensor(one) else one) for one in each]
    return [np.asarray(made.detach() if torch.is_tensor(made) else made)]


@pytest.mark.parametrize("read", READS)
def test_whatever_reads_a_weight_gets_what_it_is_by_then(read):
    watched = Watched()
    made = read(watched.model)
    assert watched.n_reads
    for each in values(made):
        assert np.allclose(each, 7)
    parts = [*made.parameters()] if isinstance(made, nn.Module) else [made]
    assert not [each for each in parts if type(each).__module__.startswith("enplace")]
    assert not watched.written


def test_what_is_said_about_weights_reads_none():
    watched = Watched()
    model = watched.model
    sum(p.numel() for p in model.parameters() if p.requires_grad and p.dim() > 1)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.zero_grad()
    assert isinstance(model[0].weight, nn.Parameter)
    assert [*model[0].weight.detach()[0].shape] == [3]
    with watched.watch.off():
        optimizer.step()
        model(torch.ones(3))
    assert not watched.n_reads
    assert not watched.written


def scale_down(model):
    model[0].weight.data -= 0.5 * model[0].weight.grad


@torch.no_grad()
@pytest.mark.parametrize(
    ("write", "n_reads", "written"),
    [
        (lambda model: model[0].weight.clamp_(-1, 1), 0, ["0.weight"]),
        (lambda model: model[0].weight.data.mul_(2), 0, ["0.weight"]),
        (lambda model: model[0].weight.data[0].zero_(), 0, ["0.weight"]),
        (scale_down, 0, ["0.weight"]),
        (lambda model: torch._foreach_mul_([*model.parameters()], 2), 0, None),
        (lambda model: model[0].weight.__setitem__(0, 0.0), 0, ["0.weight"]),
        (lambda model: setattr(model[1].weight, "data", torch.ones(2, 3)), 0, ["1.weight"]),
        (lambda model: nn.init.zeros_(model[0].bias), 0, ["0.bias"]),
        (lambda model: model[0].bias.sub_(model[0].bias.grad), 0, ["0.bias"]),
        (lambda model: model[0].bias.copy_(model[0].weight[0].data), 1, ["0.bias"]),
        (lambda model: model[0].bias.div_(model[0].bias.norm()), 1, ["0.bias"]),
        (lambda model: vector_to_parameters(torch.ones(18), model.parameters()), 3, None),
        (lambda model: model.load_state_dict(nn.Sequential(*model).state_dict()), 0, None),
    ],
)
def test_what_is_written_into_weights_is_told(write, n_reads, written):
    watched = Watched()
    write(watched.model)
    names = [name for name, _ in watched.model.named_parameters()]
    assert watched.written == set(names if written is None else written)
    assert bool(watched.n_reads) == bool(n_reads)


def test_what_a_loss_makes_of_weights_is_the_stages_own():
    watched = Watched()
    watched.is_in_step = True
    penalty = sum(p.pow(2).sum() for p in watched.model.parameters())
    assert penalty.requires_grad
    assert not watched.n_reads
    assert watched.model[0].weight.detach().max().item() == 7


def elsewhere():
    """Return a model of which another process has the gradient of the second layer."""
    watched = Watched()
    watched.model[1].weight.grad = None
    return watched.model


def clipped(model):
    total = torch.zeros(())
    for p in model.parameters():
        total += p.grad.norm() ** 2
    return bool(total.sqrt() > 1.0)


def set_to_scaled(model):
    gradients = [p.grad for p in model.parameters()]
    scale = torch.cat([each.flatten() for each in gradients]).norm()
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        p.grad = gradient / scale


def scaled(model):
    norms = [p.grad.data.norm(2) for p in model.parameters() if p.grad is not None]
    total = torch.stack(norms).norm()
    for p in model.parameters():
        p.grad.mul_(1 / total)


def scaled_as_list(model):
    gradients = [p.grad for p in model.parameters()]
    total = torch.stack(torch._foreach_norm(gradients)).norm()
    torch._foreach_mul_(gradients, 1 / total)


@pytest.mark.parametrize(
    "read",
    [
        clipped,
        scaled,
        scaled_as_list,
        lambda model: torch._foreach_mul([model[0].weight.grad], model[1].weight.grad.norm())[
            0
        ].tolist(),
        set_to_scaled,
        lambda model: [p.grad.norm().item() for p in model.parameters()],
        lambda model: model[1].weight.grad.numpy(),
        lambda model: print(model[1].weight.grad),
        lambda model: pickled(model[1].weight.grad),
        lambda model: model[0].bias.data.sub_(model[1].weight.grad.sum()),
        lambda model: float(model[0].weight.detach().sum() / model[1].weight.grad.sum()),
    ],
)
def test_a_gradient_of_another_stage_is_refused_where_it_is_read(read):
    with pytest.raises(PipelineRefusedError, match="reads a gradient of another stage, or what"):
        read(elsewhere())


def test_gradients_may_be_changed_one_by_one():
    model = elsewhere()
    model[1].weight.data.fill_(3)
    for p in model.parameters():
        if p.grad is not None:
            p.grad.data.clamp_(-0.5, 0.5)
            p.grad *= 2
        assert p.grad.shape == p.shape
        p.data -= 0.1 * p.grad
        with torch.no_grad():
            p.add_(p.grad, alpha=-0.1)
    with torch.no_grad():
        torch._foreach_add_([*model.parameters()], [p.grad for p in model.parameters()], alpha=-1)
        halves = torch._foreach_mul([p.grad for p in model.parameters()], 0.5)
        for p, half in zip(model.parameters(), halves, strict=True):
            p.grad = half * 2
        torch._foreach_sub_([model[1].weight], [model[1].weight.grad])
        parameters, gradients = [*model.parameters()], [p.grad for p in model.parameters()]
        torch._foreach_add_(other=gradients, self=parameters, alpha=-1)
    assert model[0].weight.grad.eq(1).all()
    assert clip_grad_norm_(model.parameters(), 100.0).item() == pytest.approx(12**0.5)
    assert model[1].weight.eq(7).all()  # as other processes set it
    for p in model.parameters():
        p.grad = None


def adam(p, moments):
    mean, square = moments
    mean.mul_(0.9).add_(p.grad, alpha=0.1)
    square[:] = 0.99 * square + 0.01 * p.grad**2
    p[:] -= mean / (square.sqrt() + 1e-8)


def rate(p, moments):
    p -= 0.1 * p.norm() / p.grad.norm() * p.grad
    p.data.add_(torch.randn_like(p))


def lists(p, moments):
    torch._foreach_add_(moments, [p.grad, p.grad])
    p.copy_(p.add(moments[0], alpha=-0.1))


@torch.no_grad()
@pytest.mark.parametrize("update", [adam, rate, lists])
def test_an_optimiser_by_hand_reads_and_writes_at_the_same_places_in_all_processes(update):
    seen = []
    for away in range(2):
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(3, 2))
        watched = Watched(nn.Sequential(model[1 - away], model[away]))  # the second is elsewhere
        model[away].weight.grad = None
        for layer in model:
            moments = [torch.zeros(2, 3), torch.zeros(2, 3)]
            update(layer.weight, moments)
            seen.append((watched.n_reads, len(watched.written)))
        if update is not rate and layer is model[away]:
            with pytest.raises(PipelineRefusedError, match="or what it made of one"):
                moments[0].norm().item()
    assert seen[:2] == seen[2:]


def test_what_shares_memory_with_a_gradient_of_this_stage_takes_none_of_another():
    model = elsewhere()
    momentum = torch.zeros(2, 3)
    with pytest.raises(PipelineRefusedError, match="reads a gradient of another stage"):
        momentum.data.add_(model[1].weight.grad)
    with pytest.raises(PipelineRefusedError, match="reads a gradient of another stage"):
        model[0].weight.grad.add_(model[1].weight.grad.sum())


def test_what_a_script_took_of_weights_before_they_were_watched_is_watched():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2, bias=False))
    before = {**model.state_dict(), "data": model[0].weight.data[1], "own": torch.ones(3)}
    watched = Watched(model)
    assert before.pop("own").sum() == 3
    assert not watched.n_reads
    for each in before.values():
        assert each.eq(7).all()
    assert watched.n_reads == len(before)
    assert all(type(each) is torch.Tensor for each in pickled(before).values())
