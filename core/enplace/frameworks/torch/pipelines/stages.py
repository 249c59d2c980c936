"""Cut a tape into the stages of a pipeline, as modules that ``torch.distributed.pipelining`` takes.

A stage has the calls of consecutive modules. What a later stage needs is passed on by all between.
A call without a parameter, such as a sum in the root, begins no stage: it is where what it gets is.
Calls that need no gradient and no parameter, such as those that make a mask, are done in each stage
that needs them, since each process has the whole batch; so are those that make such a tensor of
what the stage gets, as ``zeros_like`` does. What the model reads is read in one stage.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, groupby
from typing import Any

import torch

from enplace.frameworks.torch.pipelines.calls import (
    Batch,
    Call,
    Kept,
    Made,
    PipelineRefusedError,
    found_for,
)
from enplace.frameworks.torch.pipelines.pipeline_files import ON_ONE_DEVICE
from enplace.text import listed

Place = tuple[int, int]
"""The device of a stage, and in a V which of its device's two stages it is."""

Shape = tuple[torch.Size, torch.dtype]
"""Of a tensor."""

_RANDOM = re.compile("rand|bernoulli|normal_|uniform_|multinomial|dropout|poisson|exponential_")
"""Calls that draw numbers, of which stages would have others."""

Again = Callable[[Callable[[], Any]], Any]
"""Makes a call, and makes it again for its gradients."""


@dataclass(frozen=True, eq=False)
class Cut:
    """A tape in stages.

    Attributes
    ----------
    devices : sequence of int
        Of each stage.
    calls : sequence of sequence of Call
        Of each stage, in their order.
    passed : sequence of sequence of int
        What each stage passes to the next one, by the numbers of the tape.
    loss : int
        The number of what the last one makes.
    shapes : mapping of int to (shape, dtype)
        Of what all stages make.
    """

    devices: Sequence[int]
    calls: Sequence[Sequence[Call]]
    passed: Sequence[Sequence[int]]
    loss: int
    shapes: Mapping[int, Shape]

    @property
    def rank(self) -> list[int]:
        """The number of each stage's process, of which each device has one."""
        order = self.order
        return [order.index(device) for device in self.devices]

    @property
    def order(self) -> list[int]:
        """The device of each process."""
        return list(dict.fromkeys(self.devices))

    def stages_of(self, rank: int) -> list[int]:
        """Return the numbers of a process's stages."""
        return [stage for stage, at in enumerate(self.rank) if at == rank]

    @property
    def is_looped(self) -> bool:
        """Whether the processes take turns with the stages."""
        return all(rank == stage % len(self.order) for stage, rank in enumerate(self.rank))

    @cached_property
    def shared(self) -> list[tuple[torch.nn.Parameter, tuple[int, ...]]]:
        """The parameters that stages of several processes read, and these processes."""
        users: dict[int, tuple[torch.nn.Parameter, set[int]]] = {}
        for calls, rank in zip(self.calls, self.rank, strict=True):
            for parameter in chain.from_iterable(map(parameters_of, calls)):
                users.setdefault(id(parameter), (parameter, set()))[1].add(rank)
        return [(p, tuple(sorted(on))) for p, on in users.values() if len(on) > 1]

    def module(
        self, stage: int, parts_of_loss: Sequence[int] = (), again: Again | None = None
    ) -> StageModule:
        """Return a stage; the last one keeps the values of the loss and of these numbers."""
        last = stage == len(self.devices) - 1
        gets = self.passed[stage - 1] if stage else ()
        gives = (self.loss,) if last else self.passed[stage]
        given = {number: self.shapes[number] for number in gives}
        kept = [self.loss, *(number for number in parts_of_loss if number != self.loss)]
        return StageModule(self.calls[stage], gets, given, kept if last else (), again)


def cut_tape(
    calls: Sequence[Call],
    loss: int,
    device_of: Mapping[str, int],
    names: Sequence[str],
    *,
    schedule: str = "1f1b",
    half_of: Mapping[str, int] | None = None,
) -> Cut:
    """Cut a tape where the device of its modules changes.

    Parameters
    ----------
    loss : int
        Number of the loss.
    device_of : mapping of str to int
        The device of each module, by its path; others are where what they get comes from.
    names : sequence of str
        Of the devices, for messages.
    schedule : str
        If ``interleaved``, a device may have several stages, in turn with the others; with ``zbv``,
        it has two, in a V.
    half_of : mapping of str to int, optional
        In a V, which of its device's two stages each module is in.

    Raises
    ------
    PipelineRefusedError
        If the modules are no pipeline in this order.
    """
    maker = {number: at for at, call in enumerate(calls) for number in call.numbers}
    free = _free_calls(calls, maker)
    planned: list[Place | None] = []
    for call in calls:
        device = device_around(call.module, device_of) if parameters_of(call) else None
        half = device_around(call.module, half_of or {}) or 0
        planned.append(None if device is None else (device, half))
    may_return = schedule == "interleaved" or (schedule == "zbv" and not half_of)
    places = [] if may_return else _order_places(calls, planned, maker, free, loss)
    stage_of: dict[int, int] = {}
    for at, (call, place) in enumerate(zip(calls, planned, strict=True)):
        if at in free:
            continue
        stage = max((stage_of[maker[n]] for n in _made(call) if maker[n] in stage_of), default=0)
        if place is not None:
            if place not in places[stage:]:
                if not may_return:
                    raise _circle(call, names[place[0]], names[places[stage][0]], schedule)
                places.append(place)
            stage = places.index(place, stage)
        stage_of[at] = stage
    devices = [device for device, _ in places]
    last = stage_of.get(maker[loss], -1)
    if len(devices) < 2:
        raise PipelineRefusedError(ON_ONE_DEVICE)
    if last != len(devices) - 1:
        raise PipelineRefusedError(
            f"the loss does not depend on what {names[devices[-1]]} computes last; no pipeline "
            f"ends there"
        )
    cut = _cut(calls, loss, devices, stage_of, maker, free)
    where = listed([names[device] for device in devices])
    if schedule == "zbv" and devices != [*cut.order, *cut.order[::-1]]:
        raise PipelineRefusedError(
            f"stages are on {where} in this order, and zbv needs two on each device, in a V, each "
            f"with parameters; "
            f"{'run this plan as zb-h1' if devices == cut.order else _another('zbv')}"
        )
    if schedule != "zbv" and (not cut.is_looped or len(devices) % len(cut.order)):
        raise PipelineRefusedError(
            f"stages are on {where} in this order, and interleaved ones take turns; "
            f"{_another('interleaved')}"
        )
    return cut


def _made(call: Call) -> list[int]:
    return [each.number for each in call.sources if isinstance(each, Made)]


def parameters_of(call: Call) -> list[torch.nn.Parameter]:
    """Return the parameters that a call reads."""
    return [each for each in kept_by(call) if isinstance(each, torch.nn.Parameter)]


def kept_by(call: Call) -> list[torch.Tensor]:
    """Return the parameters and buffers that a call reads, and what else stays."""
    return [each.tensor for each in call.sources if isinstance(each, Kept)]


def _free_calls(calls: Sequence[Call], maker: Mapping[int, int]) -> set[int]:
    """Find the calls that any stage may do for itself."""
    free: set[int] = set()
    for at, call in enumerate(calls):
        sources = [maker[number] for number in _made(call)]
        is_free = not call.needs_gradient and not parameters_of(call)
        if is_free and call.numbers and all(source in free for source in sources):
            free.add(at)
    return free


def device_around(path: str, device_of: Mapping[str, int]) -> int | None:
    """Return the device of a module, or of the one around it; none of the root."""
    while path and path not in device_of:
        path = path.rpartition(".")[0]
    return device_of.get(path) if path else None


def _order_places(
    calls: Sequence[Call],
    planned: Sequence[Place | None],
    maker: Mapping[int, int],
    free: Collection[int],
    loss: int,
) -> list[Place]:
    """Order places so that each follows those that it gets something from, with the loss's last.

    Apart from that, they are in the order in which the script calls them; all of them are if two
    need each other. In a V, the first stages of devices are in the opposite order of the second.
    """
    needs: dict[int, set[Place]] = {}
    readers: dict[Place, set[Place]] = {}
    for at, (call, place) in enumerate(zip(calls, planned, strict=True)):
        if at in free:
            continue
        needs[at] = set[Place]().union(*(needs.get(maker[n], ()) for n in _made(call)))
        if place is not None:
            readers.setdefault(place, set())
            for other in needs[at] - {place}:
                readers[other].add(place)
            needs[at] = {place}
    halves = [{device for device, half in readers if half == side} for side in (0, 1)]
    ends = needs.get(maker[loss], ())
    if halves[0] != halves[1]:
        return _in_order([*readers], readers, ends)
    back = [place for place in readers if place[1]]
    after = {place: {other for other in readers[place] if other[1]} for place in back}
    for place in back:  # the first stages are in the opposite order
        for device, half in readers[place[0], 0]:
            if not half and device != place[0]:
                after[device, 1].add(place)
    order = _in_order(back, after, ends)
    return [*((device, 0) for device, _ in order[::-1]), *order]


def _in_order(
    called: Sequence[Place], readers: Mapping[Place, set[Place]], ends: Collection[Place]
) -> list[Place]:
    """Order places with readers after what they read; as they are called if that cannot be."""
    order: list[Place] = []
    while left := [place for place in called if place not in order]:
        last = [place for place in left if not readers[place].intersection(left)]
        if not last:
            return [*called]
        order.insert(0, next((place for place in last[::-1] if place in ends), last[-1]))
    return order


def _circle(call: Call, own: str, other: str, schedule: str) -> PipelineRefusedError:
    return PipelineRefusedError(
        f"'{call.module}' is on {own} and needs what {other} makes, which needs what {own} makes: "
        f"so these cannot be stages; {_another(schedule)}"
    )


def _another(schedule: str) -> str:
    """Say which plan has stages for a schedule."""
    return (
        f"make a plan with --objective throughput --pipeline {schedule} --method max-load-dp "
        f"--grain block, without pins that rule such stages out or a time limit that ends its "
        f"search before it finds them"
    )


def _cut(
    calls: Sequence[Call],
    loss: int,
    devices: Sequence[int],
    stage_of: Mapping[int, int],
    maker: Mapping[int, int],
    free: set[int],
) -> Cut:
    users: dict[int, set[int]] = {}
    for at, stage in stage_of.items():
        for number in _made(calls[at]):
            users.setdefault(number, set()).add(stage)
    passed: list[list[int]] = [[] for _ in devices[1:]]
    again: list[set[int]] = [set() for _ in devices]
    for number, stages in sorted(users.items()):
        made = maker[number]
        if made in free:
            continue
        if calls[made].needs_gradient:
            passing = range(stage_of[made], max(stages))
            if passing and calls[made].shapes[number][1].is_complex:
                raise PipelineRefusedError(
                    f"what '{calls[made].module or calls[made].name}' makes for another stage is "
                    f"complex, and PyTorch sends real numbers only; pin what reads it to the same "
                    f"device"
                )
            for stage in passing:
                passed[stage].append(number)
        else:
            for stage in stages - {stage_of[made]}:
                again[stage] |= _made_again(number, stage, calls, maker, users, free)
    own: list[list[Call]] = []
    drawn: set[int] = set()
    for stage in range(len(devices)):
        wanted = {at for at, on in stage_of.items() if on == stage} | again[stage]
        waiting = [maker[n] for at in wanted for n in _made(calls[at])]
        while waiting:
            at = waiting.pop()
            if at in free and at not in wanted:
                wanted.add(at)
                waiting += [maker[n] for n in _made(calls[at])]
        draws = {at for at in wanted if _RANDOM.search(calls[at].name)}
        if twice := draws & drawn:
            raise PipelineRefusedError(
                f"two stages need what '{calls[min(twice)].name}' draws, and each would draw other "
                f"numbers; draw them in the script, and give them to the model"
            )
        drawn |= draws
        own.append([calls[at] for at in sorted(wanted)])
    shapes = {number: each for call in calls for number, each in call.shapes.items()}
    return Cut(devices, own, passed, loss, shapes)


def _made_again(
    number: int,
    stage: int,
    calls: Sequence[Call],
    maker: Mapping[int, int],
    users: Mapping[int, set[int]],
    free: set[int],
) -> set[int]:
    """Return the calls by which a later stage makes a tensor without a gradient for itself."""
    found: set[int] = set()
    waiting = [number]
    while waiting:
        made = waiting.pop()
        call = calls[maker[made]]
        is_passed = call.needs_gradient and max(users[made]) >= stage
        if maker[made] in free or is_passed:
            continue
        if parameters_of(call) or _RANDOM.search(call.name):
            module = f"'{call.module}'" if call.module else "the model"
            raise PipelineRefusedError(
                f"{module} gives the next stage a tensor without a gradient, of '{call.name}', "
                f"which PyTorch's pipelines do not send; keep both on one device"
            )
        found.add(maker[made])
        waiting += _made(call)
    return found


class _Whole(torch.autograd.Function):
    """Passes a tensor on as it is, and its gradient in one piece of memory, as sending needs it."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.contiguous()


class _Given(torch.autograd.Function):
    """Gives tensors as ones that are no views, without copies: PyTorch detaches them in place.

    All come from one node: where gradients of weights are taken apart, PyTorch finds only those of
    weights from which a path leads to something that depends on what the stage gets.
    """

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(each.contiguous().data for each in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(each.contiguous() for each in gradients)


class StageModule(torch.nn.Module):
    """A stage: gets what the one before it passes, and its own parts of the batch by name.

    Attributes
    ----------
    kept : list of int
        Of the last stage: the loss, and other single numbers that it makes.
    targets : list of (source, int)
        Of the last stage: the targets of its losses, and those that they leave out.
    has_begun : bool
        Before, PyTorch calls it to see shapes, with tensors of any content.
    values : list of tensor, each of shape (n_kept + n_targets,)
        What is kept of each micro-batch so far, and how many targets were left out.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        gets: Sequence[int],
        gives: Mapping[int, Shape],
        kept: Sequence[int] = (),
        again: Again | None = None,
    ) -> None:
        super().__init__()
        self._again = again
        self._gets, self._gives = gets, gives
        self._calls = [(modes, [*own]) for modes, own in groupby(calls, lambda call: call.modes)]
        known = {*gets, *(number for call in calls for number in call.numbers)}
        self.kept = [number for number in kept if number in known]
        self.targets = [call.targets for call in calls if call.targets is not None] if kept else []
        self.has_begun = False
        self.values: list[torch.Tensor] = []
        sources = [each for call in calls for each in call.sources]
        self.batch = sorted({each.number for each in sources if isinstance(each, Batch)})
        found = {id(p): p for call in calls for p in parameters_of(call)}
        self.own = torch.nn.ParameterList(found.values())
        changed = {
            first.number
            for call in calls
            if call.changes is not None and isinstance(first := call.args[0], Made)
        }
        self._copied = [number in changed for number in gets]

    def forward(
        self, *received: torch.Tensor, **batch: torch.Tensor
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Make the calls of the stage on a micro-batch."""
        if self.has_begun:
            own = {int(name.removeprefix(PART)): each for name, each in batch.items()}
            call = partial(self._call, received, own)
            given, kept = call() if self._again is None else self._again(call)
            if self.kept:
                self.values.append(torch.stack(kept))
        else:
            given = self._shaped(received, self.own[0].device)  # it may get nothing
        if self.kept:
            return given[0].reshape(1)  # results of micro-batches are put together by rows
        return given[0] if len(given) == 1 else given

    def _shaped(
        self, received: Sequence[torch.Tensor], device: torch.device
    ) -> tuple[torch.Tensor, ...]:
        """Return tensors like those that the stage gives, with gradients to all that it gets."""
        like = [
            torch.zeros(shape, dtype=dtype, device=device, requires_grad=True)
            for shape, dtype in self._gives.values()
        ]
        sums = [_Whole.apply(each).sum() for each in received]
        return tuple(each + sum(total.to(each.dtype) for total in sums) for each in like)

    def _call(
        self, received: Sequence[torch.Tensor], own: Mapping[int, torch.Tensor]
    ) -> tuple[tuple[torch.Tensor, ...], list[torch.Tensor]]:
        """Return what the stage gives to the next one, and what it keeps."""
        known = {
            number: each.clone() if copied else _Whole.apply(each)
            for number, each, copied in zip(self._gets, received, self._copied, strict=True)
        }
        for modes, calls in self._calls:
            with modes.again():
                for call in calls:
                    call.again(known, own)
        given = _Given.apply(*(known[number] for number in self._gives))
        for each, (shape, _) in zip(given, self._gives.values(), strict=True):
            if each.shape != shape:
                raise PipelineRefusedError(
                    f"the model goes by values: a stage gives the next one a tensor of shape "
                    f"{tuple(each.shape)} for one micro-batch and {tuple(shape)} for the first, "
                    f"and the processes send each other the same shapes; run it without a "
                    f"pipeline, or make a plan that keeps what makes it and reads it on one device"
                )
        kept = [known[number].detach().reshape(()).double() for number in self.kept]
        for source, out in self.targets:
            kept.append((found_for(source, known, own) == out).sum().double())
        return given, kept


PART = "part_"
"""Begins the name of a part of the batch, as an argument of a stage."""
