"""One process of a pipeline: runs a script as it is, and of its model the own stage.

Each process runs the whole script, with the same random numbers, so that all have the same batches.
Where the script calls its model and goes backward, the schedule of ``torch.distributed.pipelining``
runs instead. Only the process of a stage makes the gradients of its parameters and updates them;
where the script evaluates or saves its model, all get the weights of all stages.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed import pipelining
from torch.optim import optimizer as hooks
from torch.utils._pytree import tree_leaves

from enplace.errors import EnplaceError, PlanError
from enplace.frameworks.microbatches import Microbatches
from enplace.frameworks.torch.error_text import first_line
from enplace.frameworks.torch.pipelines.again import MadeAgain, RunAgain
from enplace.frameworks.torch.pipelines.joining import join
from enplace.frameworks.torch.pipelines.pipeline_files import OF_SEVERAL, SCHEDULES, WEIGHTS_WAIT
from enplace.frameworks.torch.pipelines.stages import (
    PART,
    Cut,
    StageModule,
    cut_tape,
    device_around,
    parameters_of,
)
from enplace.frameworks.torch.pipelines.tape import Call, Kept, PipelineRefusedError, Tape
from enplace.frameworks.torch.record.modules import unwrapped
from enplace.frameworks.torch.run.hooks import modules_in_plan
from enplace.frameworks.torch.run.matching import halves_by_name, planned_devices
from enplace.values.device_names import device_label
from enplace.values.plan import Plan
from enplace.values.problem import Problem

MOST_SHAPES = 16
"""So many shapes of batches keep their stages; the one used longest ago makes room."""


_Span = tuple[Any, Any]
"""When something begins and ends, as :meth:`Pipeline._clock` says it."""


class Outdated(torch.Tensor):
    """What a model gave for a step that has gone backward: it is of the first micro-batch alone."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func in _ABOUT_TENSORS:
            return super().__torch_function__(func, types, args, kwargs or {})
        raise PipelineRefusedError(
            "the script uses what its model gave after loss.backward(); in a pipeline only losses "
            "are known then: take other figures of the model under model.eval() or torch.no_grad()"
        )


_ABOUT_TENSORS = {
    getattr(torch.Tensor, name).__get__
    for name in ("requires_grad", "grad_fn", "is_leaf", "dtype", "device", "layout", "_grad")
}


@dataclass(eq=False)
class Staged:
    """A step of batches of one shape: its tape, cut, and the schedule that runs it.

    Attributes
    ----------
    tape : Tape
    number : int
        Of micro-batches.
    cut : Cut or None
        None until the first of these steps goes backward.
    kept : list of int
        The numbers on the tape that the last stage keeps: of the loss first.
    last : StageModule or None
        The last stage, if it is here.
    n_targets : int
        How many losses of it may leave out targets.
    parts : list of int
        The parts of the batch that the stages here take.
    """

    tape: Tape
    number: int
    cut: Cut | None = None
    schedule: Any = None
    kept: Sequence[int] = ()
    last: StageModule | None = None
    n_targets: int = 0
    parts: Sequence[int] = ()


class Pipeline:
    """Runs the training steps of a script's model as a pipeline; this process is one of it.

    Attributes
    ----------
    cut : Cut or None
        Of the first step; None until it goes backward.
    own : dict of int to Parameter
        By ``id``, those that this process updates.
    busy_us, step_us : list of float
        How long this process computed in each step, and how long the step of the schedule took.
    in_flight : int
        The most micro-batches at a time that had gone forward here and were not done backward.
    told : callable
        Takes the loss of each step, when it is known.
    around : callable
        Returns a context for each step of the schedule.
    """

    def __init__(
        self, problem: Problem, plan: Plan, wanted: Microbatches, agreed: bytes = b""
    ) -> None:
        self._planned = planned_devices(problem, plan)
        self._halves, self._recompute = halves_by_name(problem, plan), plan.recompute
        self._names = [device_label(each.name) for each in problem.cluster.devices]
        self._wanted = wanted
        self.member = join(problem, plan, agreed + str(wanted).encode())
        self._device = self.member.device
        self.model: torch.nn.Module | None = None
        self.others: dict[int, torch.nn.Module] = {}
        self.cut: Cut | None = None
        self.samples = 0
        self._staged: dict[Any, Staged] = {}
        self._now: Staged | None = None
        self._depth = 0
        self._waits_for_loss = False
        self.own: dict[int, torch.nn.Parameter] = {}
        self._shared: dict[int, tuple[torch.nn.Parameter, tuple[int, ...]]] = {}
        self._groups: dict[tuple[int, ...], Any] = {}
        self._owner: dict[int, int] = {}
        self._is_outdated = False
        self.told: Callable[[torch.Tensor], None] = lambda loss: None
        self.around: Callable[[], AbstractContextManager[Any]] = nullcontext
        self.busy_us: list[float] = []
        self.passes_us: list[list[float]] = []
        self.step_us: list[float] = []
        self._spans: tuple[list[_Span], list[_Span]] = [], []
        self._flying: Counter[int] = Counter()
        self.in_flight = 0

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Run the model's steps as a pipeline within the block."""
        clip = sys.modules["torch.nn.utils.clip_grad"]
        scaler, optimizer = torch.amp.GradScaler, torch.optim.Optimizer
        with ExitStack() as stack:
            for owner, name, new in (
                (torch.nn.Module, "__call__", self._called),
                (torch.nn.Module, "state_dict", self._saved),
                (torch.autograd, "backward", self._went_back),
                # It would reach the one above inside of the tape, which could not end then.
                (torch.Tensor, "backward", self._went_back),
                (torch.autograd, "grad", self._took_gradients),
                (clip, "_get_total_norm", self._took_norm),
                (scaler, "_unscale_grads_", self._unscaled),
                (optimizer, "state_dict", self._saved_states),
            ):
                stack.enter_context(patch.object(owner, name, new(getattr(owner, name))))
            stack.callback(hooks.register_optimizer_step_pre_hook(self._begin_update).remove)
            yield

    def stay(self) -> None:
        """Run the model's steps as a pipeline from now on, as they are written: not compiled."""
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
        if (known := sys.modules.get("torch._dynamo.config")) is not None:
            known.disable = True  # type: ignore[attr-defined]
        stack = ExitStack()
        stack.enter_context(self.hooked())
        atexit.register(self._leave, stack)

    def _leave(self, hooks: ExitStack) -> None:
        hooks.close()
        if self.cut is not None and not self._waits_for_loss and dist.is_initialized():
            dist.destroy_process_group()

    @property
    def stages(self) -> list[int]:
        """The numbers of the stages here; of none before the first step."""
        ranks = [] if self.cut is None else self.cut.rank
        return [stage for stage, at in enumerate(ranks) if at == self.member.rank]

    @property
    def planned_on(self) -> str:
        """The plan's device of this process."""
        order = self.member.order if self.cut is None else self.cut.order
        return self._names[order[self.member.rank]]

    # The model

    def _called(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(usual)
        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._depth or not any(True for _ in module.parameters()):
                return usual(module, *args, **kwargs)
            self._depth += 1
            try:
                own = unwrapped(module)
                if not self._is_planned(own):
                    return usual(module, *args, **kwargs)
                if not (torch.is_grad_enabled() and own.training):
                    self.refresh()
                    return usual(module, *args, **kwargs)
                if type(module).__name__ in _OF_REPLICAS:
                    raise PipelineRefusedError(
                        f"the script wraps its model in {type(module).__name__}, for replicas of "
                        f"it, and here each process is a stage; leave the wrapper out"
                    )
                return self._begin_step(own, partial(usual, own), args, kwargs)
            finally:
                self._depth -= 1

        return call

    def _begin_step(
        self, model: torch.nn.Module, usual: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Call the model for a training step: on the tape, or later beside it."""
        if self._waits_for_loss:
            raise PipelineRefusedError(
                "the script calls its model twice before it goes backward; call it once in a step, "
                "and evaluate under model.eval() or torch.no_grad()"
            )
        key = _shape_of((args, kwargs))
        self._check_same_batch(key, [*_tensors((args, kwargs))])
        known = self._staged.pop(key, None)
        if known is not None:
            self._staged[key] = self._now = known
            self._waits_for_loss = True
            return known.tape.call_again(args, kwargs)
        samples = _samples_in((args, kwargs))
        number = self._wanted.number
        if not self._staged:
            self.samples = samples
        elif samples % number:  # the rest of the data
            number = max(n for n in range(1, number) if not samples % n)
        tape = Tape(model, samples, number, self._device.type)
        self._now = Staged(tape, number)
        self._waits_for_loss = True
        try:
            return tape.call(usual, args, kwargs)
        except BaseException:
            tape.close()
            raise
        finally:
            self._staged[key] = self._now
            if len(self._staged) > MOST_SHAPES:
                del self._staged[next(iter(self._staged))]

    def _is_planned(self, model: torch.nn.Module) -> bool:
        if model is self.model:
            return True
        if id(model) in self.others:
            return False
        modules = modules_in_plan(model, self._planned)
        if modules is None:
            self.others[id(model)] = model
            return False
        if self.model is not None:
            raise PipelineRefusedError(
                "the script calls a copy of its model, such as an average of weights, in which "
                "those of other stages are out of date; leave that out"
            )
        self.model, self._modules_on = model, modules
        self._half_of = modules_in_plan(model, self._halves) if self._halves else {}
        self.name_of = {id(each): name for name, each in model.named_parameters()}
        self._check_device()
        with self._connected():
            for tensor in _state_of(model):
                dist.broadcast(tensor.detach(), 0)
        return True

    def _check_device(self) -> None:
        assert self.model is not None
        odd = {p.device for p in self.model.parameters() if p.device != self._device}
        if odd:
            move = "'cuda'" if self._device.type == "cuda" else "'cpu'"
            raise PlanError(
                f"the model is on {odd.pop()}, and this stage is planned for {self._device}; move "
                f"the model to {move}, without a number"
            )

    def _check_same_batch(self, key: Any, batch: Sequence[torch.Tensor]) -> None:
        """Refuse a step whose batch is not the same in all processes."""
        seen = [float(zlib.crc32(repr(key).encode())), *map(_brief_of, batch[:MOST_SHAPES])]
        seen += [0.0] * (MOST_SHAPES + 1 - len(seen))
        own = torch.tensor(seen, dtype=torch.float64, device=self._device)
        first = own.clone()
        with self._connected():
            dist.broadcast(first, 0)
            differs = (own != first).any().to(torch.float64)
            dist.all_reduce(differs, op=dist.ReduceOp.MAX)
        if differs:
            raise PipelineRefusedError(
                "the processes have different batches, and in a pipeline all have the same; leave "
                "out DistributedSampler, and seed what draws the batches"
            )

    # The loss

    def _went_back(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(usual)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            given = [tensors] if isinstance(tensors, torch.Tensor) else [*tensors]
            if not self._waits_for_loss:
                self._check_loss(given)
                return usual(tensors, *args, **kwargs)
            odd = [*args, *(v for name, v in kwargs.items() if name != "retain_graph")]
            if any(each is not None and each is not False for each in odd):
                raise PipelineRefusedError(
                    "the script goes backward with arguments, and in a pipeline it is "
                    "loss.backward() alone"
                )
            assert self._now is not None
            self._waits_for_loss = False
            number = self._now.tape.loss(given[0])
            if self._now.cut is None:
                self._make_stages(self._now, number)
            elif number != self._now.kept[0]:
                raise PipelineRefusedError("a later step goes backward from another loss")
            self._show(self._now, self._step(self._now))
            self.told(given[0])
            return None

        return backward

    def _check_loss(self, given: Sequence[torch.Tensor]) -> None:
        """Refuse what is trained besides the planned model, or in its stead."""
        if self._now is not None and any(id(each) in self._now.tape.shown for each in given):
            raise PipelineRefusedError(
                "the script goes backward twice from one call of its model; add up its losses and "
                "go backward once"
            )
        if self.model is None and self.others:
            raise PlanError(
                f"the plan was made for another model than "
                f"{type(next(iter(self.others.values()))).__name__}; profile it again and make a "
                f"new plan"
            )

    def _took_gradients(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(usual)
        def grad(*args: Any, **kwargs: Any) -> Any:
            if self._waits_for_loss:
                raise PipelineRefusedError(
                    "the script takes gradients by torch.autograd.grad; a pipeline needs "
                    "loss.backward()"
                )
            return usual(*args, **kwargs)

        return grad

    def _show(self, staged: Staged, values: torch.Tensor) -> None:
        """Let the losses that the script has be those of the batch; the rest is outdated."""
        known = dict(zip(staged.kept, values, strict=True))
        for number, tensor in staged.tape.shown.values():
            if number in known:
                tensor.data.copy_(known[number].reshape(tensor.shape))
            elif type(tensor) is torch.Tensor:
                tensor.__class__ = Outdated
        staged.tape.shown = {
            key: each for key, each in staged.tape.shown.items() if each[0] in known
        }

    # The pipeline

    def _make_stages(self, staged: Staged, loss: int) -> None:
        """Cut the tape, and make this process's stages and their schedule."""
        rank, tape = self.member.rank, staged.tape
        cut = cut_tape(
            tape.calls,
            loss,
            self._modules_on,
            self._names,
            schedule=self._wanted.schedule,
            half_of=self._half_of,
        )
        if len(cut.order) != dist.get_world_size():
            raise PipelineRefusedError(
                f"the model is on {len(cut.order)} devices in this plan, and "
                f"{dist.get_world_size()} processes run"
            )
        if self.member.is_bound and cut.order != self.member.order:
            raise PipelineRefusedError(
                "the script calls the stages in another order than the plan has them; make a plan "
                "with --objective throughput"
            )
        numbers = [stage for stage, at in enumerate(cut.rank) if at == rank]
        held = [MadeAgain() for _ in numbers]
        recomputes = cut.order[rank] in self._recompute
        modules = [
            cut.module(stage, tape.parts_of_loss, partial(self._again, own) if recomputes else None)
            for stage, own in zip(numbers, held, strict=True)
        ]
        last = cut.module(len(cut.devices) - 1, tape.parts_of_loss)
        staged.kept, staged.n_targets = last.kept, len(last.targets)
        staged.last = next((module for module in modules if module.kept), None)
        staged.parts = sorted({number for module in modules for number in module.batch})
        stages = []
        for stage, module, again in zip(numbers, modules, held, strict=True):
            made = pipelining.PipelineStage(module, stage, len(cut.devices), self._device)
            made.forward_one_chunk = self._timed(made.forward_one_chunk, 1, module, again=again)
            made.backward_one_chunk = self._timed(made.backward_one_chunk, -1, again=again)
            made.backward_weight_one_chunk = self._timed(
                made.backward_weight_one_chunk, -1, again=again
            )
            stages.append(made)
        staged.schedule = self._schedule(stages, staged.number, looped=cut.is_looped)
        staged.cut = cut
        self._own(cut, modules)

    def _again(self, held: MadeAgain, call: Callable[[], Any]) -> Any:
        waits = self._wanted.schedule in WEIGHTS_WAIT
        return RunAgain(call, self._device, held if waits else None).first()

    def _schedule(self, stages: Sequence[Any], number: int, *, looped: bool) -> Any:
        """Make the schedule; the rest of the data, in fewer micro-batches, takes a simpler one."""
        kind = self._wanted.schedule
        made, several = SCHEDULES[kind], kind in OF_SEVERAL
        if number != self._wanted.number and (looped or len(stages) == 1):
            several = len(stages) > 1
            made = "ScheduleLoopedBFS" if several else SCHEDULES["gpipe"]

        def share(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            """Return the part of a micro-batch in the loss, which is a mean over samples."""
            return output.reshape(()) / number

        make = getattr(pipelining, made)
        given = [*stages] if several else stages[0]
        try:
            return make(given, number, loss_fn=share, scale_grads=False)
        except ValueError as error:
            raise PipelineRefusedError(
                f"PyTorch cannot run {kind} so: {first_line(error)}; choose another number of "
                f"micro-batches, or drop the last batch"
            ) from None

    def _own(self, cut: Cut, modules: Sequence[StageModule]) -> None:
        """Note which process has which parameters; the same for batches of all shapes."""
        owner: dict[int, int] = {}
        for calls, rank in zip(cut.calls, cut.rank, strict=True):
            for call in calls:
                for tensor in kept_by(call):
                    owner.setdefault(id(tensor), rank)
        if any(self._owner.get(key, rank) != rank for key, rank in owner.items()):
            raise PipelineRefusedError(
                "a batch of another shape takes the model's modules in another order; give all "
                "batches one shape"
            )
        self.cut, self._owner = self.cut or cut, {**owner, **self._owner}
        self.own.update({id(each): each for module in modules for each in module.own})
        for parameter, ranks in cut.shared:
            if parameter.requires_grad:
                self._shared[id(parameter)] = parameter, ranks
            if ranks not in self._groups:
                self._groups[ranks] = dist.new_group([*ranks])  # all processes make all groups

    def _timed(
        self,
        usual: Callable[..., Any],
        change: int,
        begins: StageModule | None = None,
        *,
        again: MadeAgain,
    ) -> Callable[..., Any]:
        """Time a function, of which each call changes how many stages a micro-batch is held for.

        Where gradients of weights wait, it is held until they are done; so is what was made again.
        """

        @wraps(usual)
        def timed(microbatch: int, *args: Any, **kwargs: Any) -> Any:
            if begins is not None:
                begins.keeps = bool(begins.kept)
            again.begin()
            begun = self._clock()
            out = usual(microbatch, *args, **kwargs)
            self._spans[change != 1].append((begun, self._clock()))
            is_over = change < 0 and kwargs.get("full_backward", True)
            self._flying[microbatch] += change if change > 0 or is_over else 0
            self.in_flight = max(self.in_flight, sum(each > 0 for each in self._flying.values()))
            again.end(microbatch, is_over=is_over)
            return out

        return timed

    def _clock(self) -> Any:
        """Return the time, or on a card what will know when it gets there."""
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _computed_us(self) -> list[float]:
        """Return how long this process computed in the step, forward and backward."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            return [sum(a.elapsed_time(b) for a, b in spans) * 1e3 for spans in self._spans]
        return [sum(b - a for a, b in spans) * 1e6 for spans in self._spans]

    def _step(self, staged: Staged) -> torch.Tensor:
        """Run the schedule on this step's batch; return the losses, in all processes."""
        assert staged.cut is not None
        last = staged.cut.rank[-1]
        self._spans = [], []
        self._flying.clear()
        batch = {f"{PART}{number}": staged.tape.batch[number] for number in staged.parts}
        before = self._lay_aside()
        begun = time.perf_counter()
        with self._connected(), self._own_random_numbers(), self.around():
            if staged.last is None:
                staged.schedule.step(**batch)
                n = len(staged.kept) + staged.n_targets
                values = torch.zeros(n, dtype=torch.float64, device=self._device)
            else:
                staged.last.values.clear()
                staged.schedule.step(
                    **batch, target=torch.zeros(staged.number, device=self._device)
                )
                found = torch.stack(staged.last.values)
                values, n = found.mean(0), len(staged.kept)
                values[n:] = found[:, n:].amax(0) - found[:, n:].amin(0)
            dist.broadcast(values, last)
            self._exchange(before)
        if staged.n_targets and values[len(staged.kept) :].any():
            raise PipelineRefusedError(
                "the loss leaves out targets, such as padding, unlike many in each micro-batch, so "
                "it is no mean over samples; give all samples as many, or let it count all"
            )
        self.passes_us.append(self._computed_us())
        self.busy_us.append(sum(self.passes_us[-1]))
        self.step_us.append((time.perf_counter() - begun) * 1e6)
        self._is_outdated = True
        return values[: len(staged.kept)]

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        """Let a stage draw numbers of its own, for dropout, and leave those of the script."""
        cards = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(cards):
            seed = torch.initial_seed() + len(self.step_us) * len(self.member.order)
            torch.manual_seed((seed + self.member.rank) % 2**63)
            yield

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Say in a line that another process has ended."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            if isinstance(error, EnplaceError) or not any(m in str(error) for m in _LOST):
                raise
            raise LostError(
                f"another process of the pipeline has ended; its own last line says why "
                f"({first_line(error):.80})"
            ) from None

    # Gradients

    def _lay_aside(self) -> dict[int, torch.Tensor]:
        """Take away the gradients so far of parameters that several stages read."""
        found = {}
        for key, (parameter, _) in self._shared.items():
            if parameter.grad is not None:
                found[key], parameter.grad = parameter.grad, None
        return found

    def _exchange(self, before: Mapping[int, torch.Tensor]) -> None:
        """Add up the gradients of parameters that several stages read, and those before."""
        for key, (parameter, ranks) in self._shared.items():
            if self.member.rank not in ranks:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=self._groups[ranks])
            if key in before:
                parameter.grad = before[key].add_(parameter.grad)

    def _took_norm(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(usual)
        def total_norm(tensors: Any, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> Any:
            """Take the norm of the gradients of all stages; a shared one counts once."""
            if self.cut is None:
                return usual(tensors, norm_type, *args, **kwargs)
            elsewhere = {
                id(p.grad) for p, ranks in self._shared.values() if ranks[0] != self.member.rank
            }
            given = [tensors] if isinstance(tensors, torch.Tensor) else [*tensors]
            mine = [each for each in given if id(each) not in elsewhere]
            own = usual(mine, norm_type, *args, **kwargs).to(self._device)
            with self._connected():
                if norm_type == float("inf"):
                    dist.all_reduce(own, op=dist.ReduceOp.MAX)
                    return own
                total = own**norm_type
                dist.all_reduce(total)
                return total ** (1 / norm_type)

        return total_norm

    def _unscaled(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(usual)
        def unscale(*args: Any, **kwargs: Any) -> Any:
            """Let all stages skip a step in which the gradients of one are infinite."""
            found = usual(*args, **kwargs)
            worst = torch.stack([torch.zeros((), device=self._device), *found.values()]).max()
            with self._connected():
                dist.all_reduce(worst, op=dist.ReduceOp.MAX)
            return {self._device: worst}

        return unscale

    def _begin_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self.cut is not None and (any(map(callable, args[1:])) or kwargs.get("closure")):
            raise PipelineRefusedError(
                f"{type(optimizer).__name__} gets a closure, which goes backward within its step; "
                f"use an optimiser without one"
            )

    # What is saved or evaluated

    def refresh(self) -> None:
        """Give all processes the weights of all stages, if there was a step since."""
        if not self._is_outdated or self.model is None:
            return
        self._is_outdated = False
        with self._connected():
            for tensor in _state_of(self.model):
                dist.broadcast(tensor.detach(), self._owner.get(id(tensor), 0))

    def _saved(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(usual)
        def state_dict(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._is_outdated and any(id(p) in self._owner for p in module.parameters()):
                self.refresh()
            return usual(module, *args, **kwargs)

        return state_dict

    def _saved_states(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(usual)
        def state_dict(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            """Return the states of all stages."""
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            if not any(id(p) in self._owner for p in parameters):
                return usual(optimizer, *args, **kwargs)
            own = {
                number: optimizer.state[p]
                for number, p in enumerate(parameters)
                if self._owner.get(id(p)) == self.member.rank and p in optimizer.state
            }
            found: list[Mapping[int, Any]] = [{} for _ in self.member.order]
            with self._connected():
                dist.all_gather_object(found, own)
            theirs = {
                parameters[number]: state
                for each in found
                for number, state in each.items()
                if parameters[number] not in optimizer.state
            }
            optimizer.state.update(theirs)
            try:
                return usual(optimizer, *args, **kwargs)
            finally:
                for parameter in theirs:
                    del optimizer.state[parameter]

        return state_dict

    def count_modules(self) -> tuple[int, int]:
        """Count the modules of this stage with a planned device, and those with this one."""
        assert self.cut is not None
        own = [
            calls
            for calls, at in zip(self.cut.calls, self.cut.rank, strict=True)
            if at == self.member.rank
        ]
        paths = {call.module for calls in own for call in calls if parameters_of(call)}
        on = [device_around(path, self._modules_on) for path in paths]
        on = [device for device in on if device is not None]
        return len(on), on.count(self.cut.order[self.member.rank])


class LostError(EnplaceError):
    """Another process of the pipeline has ended."""


_LOST = ("Connection", "connection", "onnected", "peer", "ocket", "NCCL", "remote process")
"""What PyTorch says then."""

_OF_REPLICAS = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel")


def kept_by(call: Call) -> list[torch.Tensor]:
    """Return the parameters and buffers that a call reads, and what else stays."""
    return [each.tensor for each in call.sources if isinstance(each, Kept)]


def _state_of(model: torch.nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (each for each in tree_leaves(values) if isinstance(each, torch.Tensor))


def _shape_of(values: Any) -> Any:
    """Return what two calls must have alike to be the same step."""
    return tuple(
        (tuple(each.shape), str(each.dtype)) if isinstance(each, torch.Tensor) else repr(each)[:80]
        for each in tree_leaves(values)
    )


def _brief_of(tensor: torch.Tensor) -> float:
    """Return a number that tells a tensor from others."""
    flat = tensor.detach().reshape(-1)
    some = flat[:: max(1, len(flat) // 1024)]
    some = (torch.view_as_real(some).reshape(-1) if some.is_complex() else some).double()
    weight = torch.linspace(1, 2, len(some), dtype=torch.float64, device=some.device)
    return float(torch.nan_to_num(some) @ weight)


def _samples_in(values: Any) -> int:
    """Return the number of samples: the rows of the first tensor that the model gets."""
    leaves = tree_leaves(values)
    first = next((v for v in leaves if isinstance(v, torch.Tensor) and v.dim()), None)
    if first is None:
        raise PipelineRefusedError("the model is called without a tensor that has rows to divide")
    return int(first.shape[0])
