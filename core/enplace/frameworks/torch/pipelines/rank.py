"""One process of a pipeline: it runs a script as it is, but of the model only its own stages.

Each process runs the whole script, with the same random numbers, so that all have the same batches.
Where the script calls its model and goes backward, the schedule of ``torch.distributed.pipelining``
runs instead. :mod:`.weights` says what becomes of gradients and weights.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial, wraps
from traceback import walk_stack, walk_tb
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed import pipelining
from torch.optim import optimizer as hooks

from enplace.errors import EnplaceError, PlanError
from enplace.frameworks.microbatches import Microbatches
from enplace.frameworks.torch.error_text import first_line, is_out_of_memory
from enplace.frameworks.torch.pipelines import weights_apart
from enplace.frameworks.torch.pipelines.again import MadeAgain, RunAgain
from enplace.frameworks.torch.pipelines.batches import check_same_batch, count_samples, shape_of
from enplace.frameworks.torch.pipelines.calls import Outdated, PipelineRefusedError, is_of_script
from enplace.frameworks.torch.pipelines.first_check import ModelCall
from enplace.frameworks.torch.pipelines.joining import (
    connected,
    end_with_torchrun,
    join,
    tell_others,
)
from enplace.frameworks.torch.pipelines.model_state import KnownState
from enplace.frameworks.torch.pipelines.own_states import OwnStates
from enplace.frameworks.torch.pipelines.pipeline_files import OF_SEVERAL, SCHEDULES, WEIGHTS_WAIT
from enplace.frameworks.torch.pipelines.stages import (
    PART,
    Cut,
    StageModule,
    cut_tape,
    device_around,
    parameters_of,
)
from enplace.frameworks.torch.pipelines.tape import Tape
from enplace.frameworks.torch.pipelines.times import StageTimes
from enplace.frameworks.torch.pipelines.weights import Weights
from enplace.frameworks.torch.record.modules import unwrapped
from enplace.frameworks.torch.record.variables import names_of
from enplace.frameworks.torch.run.hooks import modules_in_plan
from enplace.frameworks.torch.run.matching import halves_by_name, planned_devices
from enplace.frameworks.work import brief
from enplace.values.plan import Plan
from enplace.values.problem import Problem

MOST_SHAPES = 16
"""So many shapes of batches keep their stages; the least recently used one makes room."""


@dataclass(eq=False)
class Staged:
    """A step of batches of one shape: its tape, cut, and the schedule that runs it.

    Attributes
    ----------
    tape : Tape
    number : int
        Of micro-batches.
    call : ModelCall or None
        The call that the tape has; None once it has been checked.
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
    call: ModelCall | None
    cut: Cut | None = None
    schedule: Any = None
    kept: Sequence[int] = ()
    last: StageModule | None = None
    n_targets: int = 0
    parts: Sequence[int] = ()


class Pipeline:
    """Runs the training steps of a script's model as a pipeline, of which this process is a part.

    Attributes
    ----------
    head : str
        The script's variable with the model, if the plan has several.
    cut : Cut or None
        Of the first step; None until it goes backward.
    weights : Weights
    times : StageTimes
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
        self._names = [each.label for each in problem.cluster.devices]
        self._wanted = wanted
        self.member = join(problem, plan, agreed + str(wanted).encode())
        self._device = self.member.device
        self.weights = Weights(self.member, lambda: self._waits_for_loss)
        self.times = StageTimes(self._device)
        self.model: torch.nn.Module | None = None
        self.head = ""
        self.others: dict[int, torch.nn.Module] = {}
        self.cut: Cut | None = None
        self.samples = 0
        self._state: KnownState | None = None
        self._staged: dict[Any, Staged] = {}
        self._now: Staged | None = None
        self._depth = 0
        self._updating: list[tuple[torch.optim.Optimizer, bool]] = []
        self._waits_for_loss = False
        self.told: Callable[[torch.Tensor], None] = lambda loss: None
        self.around: Callable[[], AbstractContextManager[Any]] = nullcontext

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Run the model's steps as a pipeline within the block."""
        with ExitStack() as stack:
            for owner, name, new in (
                (torch.nn.Module, "__call__", self._called),
                (torch.autograd, "backward", self._went_back),
                # It would call the one above from within the tape, which could not end there.
                (torch.Tensor, "backward", self._went_back),
                (torch.autograd, "grad", self._took_gradients),
                *self.weights.patches(),
                *weights_apart.patches(),
            ):
                stack.enter_context(patch.object(owner, name, new(getattr(owner, name))))
            stack.callback(hooks.register_optimizer_step_pre_hook(self._surround_update).remove)
            stack.callback(self.weights.watch.turn, on=False)
            yield

    def stay(self) -> None:
        """Run the model's steps as a pipeline from now on, as they are written: not compiled."""
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
        if (known := sys.modules.get("torch._dynamo.config")) is not None:
            known.disable = True  # type: ignore[attr-defined]
        end_with_torchrun()
        stack = ExitStack()
        stack.enter_context(self.hooked())
        atexit.register(self._leave, stack)

    def _leave(self, hooks: ExitStack) -> None:
        hooks.close()
        if hasattr(sys, "last_value"):
            tell_others()
        if self.cut is not None and not self._waits_for_loss and dist.is_initialized():
            dist.destroy_process_group()

    @property
    def planned_on(self) -> str:
        """The plan's device of this process, once its stages are known."""
        assert self.cut is not None
        return self._names[self.cut.order[self.member.rank]]

    # The model

    def _called(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(usual)
        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._depth or not any(True for _ in module.parameters()):
                return usual(module, *args, **kwargs)
            self._depth += 1
            try:
                own = unwrapped(module)
                is_frozen = not any(each.requires_grad for each in own.parameters())
                is_frozen |= not torch.is_grad_enabled()
                trains = own.training and not is_frozen
                if not self._is_planned(own, names_of(module), trains):
                    if self._waits_for_loss and is_frozen:
                        assert self._now is not None
                        return self._now.tape.call_beside(partial(usual, module), args, kwargs)
                    return usual(module, *args, **kwargs)
                if not trains:
                    self.weights.refresh()
                    known = nullcontext() if self._state is None else self._state.called()
                    with self.weights.watch.off(), known:
                        return usual(module, *args, **kwargs)
                if (wrapper := type(module).__name__) in _OF_REPLICAS:
                    raise _refuse_replicas(wrapper)
                with self.weights.watch.off():
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
        key = shape_of((args, kwargs))
        check_same_batch(key, (args, kwargs), self._device)
        self._state = self._state or KnownState(model)
        self._state.check()
        known = self._staged.pop(key, None)
        if known is not None:
            self._staged[key] = self._now = known
            self._waits_for_loss = True
            return known.tape.call_again(args, kwargs)
        samples = count_samples((args, kwargs))
        number = self._wanted.number
        if not self._staged:
            self.samples = samples
        elif samples % number:  # the rest of the data
            number = max(n for n in range(1, number) if not samples % n)
        call = ModelCall(model, usual, args, kwargs, self._device)
        tape = Tape(model, samples, number, self._device.type)
        self._now = Staged(tape, number, call)
        self._waits_for_loss = True
        try:
            with self._state.called():
                return tape.call(usual, args, kwargs)
        except BaseException:
            tape.close()
            raise
        finally:
            self._staged[key] = self._now
            if len(self._staged) > MOST_SHAPES:
                del self._staged[next(iter(self._staged))]

    def _is_planned(self, model: torch.nn.Module, names: Iterable[str], trains: bool) -> bool:
        """Whether a model is that of the stages: the first one of the plan that is trained.

        Its ops begin with one of its ``names`` if the plan has several models.
        """
        if model is self.model:
            return True
        if not trains or id(model) in self.others:
            return False
        for head in ("", *names):
            modules = modules_in_plan(model, self._planned, head, in_stages=True)
            if modules is not None and (self.model is None or head != self.head):
                break
        else:
            self.others[id(model)] = model
            return False
        if self.model is not None:
            raise PipelineRefusedError(
                f"the plan has two models that are trained, '{self.head}' and '{head}', and a "
                f"pipeline runs one; run without a pipeline, or train each in a script of its own"
            )
        self.model, self.head, self._modules_on = model, head, modules
        halves = self._halves
        self._half_of = modules_in_plan(model, halves, head, in_stages=True) if halves else {}
        self._check_device()
        self.weights.begin(model)
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
            self._updating.clear()  # where one has failed
            self.weights.watch.is_updating = False
            with self.weights.watch.off():
                number = self._now.tape.loss(given[0])
                if self._now.cut is None:
                    self._check_call(self._now, number)
                    self._make_stages(self._now, number)
                elif number != self._now.kept[0]:
                    raise PipelineRefusedError("a later step goes backward from another loss")
                self._show(self._now, self._step(self._now))
                self.told(given[0])
            self.weights.watch.turn(on=True)
            return None

        return backward

    def _check_call(self, staged: Staged, loss: int) -> None:
        """Compare the model with its tape, and the loss of the batch with those of its parts."""
        assert staged.call is not None
        assert self._state is not None
        self._depth += 1
        try:
            with self._state.called():
                staged.tape.parts_of_loss = staged.call.check(staged.tape, loss, staged.number)
        finally:
            self._depth -= 1
            staged.call = None

    def _check_loss(self, given: Sequence[torch.Tensor]) -> None:
        """Refuse what is trained besides the planned model, or in its stead."""
        if self._now is not None and any(id(each) in self._now.tape.shown for each in given):
            raise PipelineRefusedError(
                "the script goes backward twice from one call of its model; add up its losses and "
                "go backward once"
            )
        if self.model is None and self.others:
            raise self.another_model()

    def another_model(self) -> PlanError:
        """Say that the script trains another model than the planned one."""
        found = type(next(iter(self.others.values()))).__name__
        return PlanError(
            f"the plan was made for another model than {found}; profile it again and make a new "
            f"plan"
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
        staged.tape.add_known(known)
        for number, tensor in staged.tape.shown.values():
            if number in known:
                tensor.data.copy_(known[number].reshape(tensor.shape))
            elif type(tensor) is torch.Tensor:
                tensor.__class__ = Outdated
        staged.tape.shown = {
            key: each for key, each in staged.tape.shown.items() if each[0] in known
        }
        for call in reversed(staged.tape.made_of_losses):
            call.undo()
        for call in staged.tape.made_of_losses:
            try:
                call.again()
            except PipelineRefusedError:  # of what the last stage does not know
                for each in call.results:
                    each.__class__ = Outdated

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
                "with --objective throughput --method max-load-dp"
            )
        numbers = cut.stages_of(rank)
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
            for name, begins in (
                ("forward_one_chunk", module),
                ("backward_one_chunk", None),
                ("backward_weight_one_chunk", None),
            ):
                setattr(made, name, self.times.timed(getattr(made, name), again, begins))
            stages.append(made)
        staged.schedule = self._schedule(stages, staged.number, looped=cut.is_looped)
        staged.cut = cut
        self.weights.divide(cut, modules)
        self.cut = self.cut or cut

    def _again(self, held: MadeAgain, call: Callable[[], Any]) -> Any:
        waits = self._wanted.schedule in WEIGHTS_WAIT
        return RunAgain(call, self._device, held if waits else None).first()

    def _schedule(self, stages: Sequence[Any], number: int, *, looped: bool) -> Any:
        """Make the schedule; the rest of the data, in fewer micro-batches, takes a simpler one."""
        kind = self._wanted.schedule
        if kind == "interleaved" and len(stages) == 1:
            kind = "1f1b"  # the same order, but it holds no more micro-batches than it must
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

    def _step(self, staged: Staged) -> torch.Tensor:
        """Run the schedule on this step's batch; return the losses, in all processes."""
        assert staged.cut is not None
        last = staged.cut.rank[-1]
        batch = {f"{PART}{number}": staged.tape.batch[number] for number in staged.parts}
        before = self.weights.lay_aside()
        self.times.begin_step()
        explained = explain_failure(self._wanted.schedule)
        with explained, connected(), self._own_random_numbers(), self.around():
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
            self.weights.exchange(before)
        if staged.n_targets and values[len(staged.kept) :].any():
            raise PipelineRefusedError(
                "the loss leaves out targets, such as padding, unlike many in each micro-batch, so "
                "it is no mean over samples; give all samples as many, or let it count all"
            )
        self.times.end_step()
        return values[: len(staged.kept)]

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        """Let a stage draw its own numbers, for dropout, and leave the script's as they are."""
        cards = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(cards):
            seed = torch.initial_seed() + len(self.times.step_us) * len(self.member.order)
            for own in [torch.default_generator, *map(_generator_of, cards)]:
                own.manual_seed((seed + self.member.rank) % 2**63)
            yield

    def _surround_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Begin an update after the script's hooks before it, and end it before those after it."""
        if self.cut is not None and (any(map(callable, args[1:])) or kwargs.get("closure")):
            raise PipelineRefusedError(
                f"{type(optimizer).__name__} gets a closure, which goes backward within its step; "
                f"use an optimiser without one"
            )
        before, after = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
        before[_OWN_HOOK], after[_OWN_HOOK] = self._begin_update, self._end_update
        before.move_to_end(_OWN_HOOK)
        after.move_to_end(_OWN_HOOK, last=False)

    def _begin_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        watch = self.weights.watch
        self._updating.append((optimizer, watch.is_on))
        watch.is_updating = True
        if _takes_each_alone(optimizer):
            watch.turn(on=False)
        if isinstance(optimizer.state, OwnStates):
            optimizer.state.turn(shown=True)

    def _end_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        _, was_on = self._updating.pop()
        self.weights.watch.is_updating = bool(self._updating)
        self.weights.watch.turn(on=was_on)
        if not any(each is optimizer for each, _ in self._updating):
            self.weights.updated(optimizer, keeps_all=not _takes_each_alone(optimizer))

    def count_modules(self) -> tuple[int, int]:
        """Count the modules of this stage with a planned device, and those with this one."""
        assert self.cut is not None
        own = [self.cut.calls[stage] for stage in self.cut.stages_of(self.member.rank)]
        paths = {call.module for calls in own for call in calls if parameters_of(call)}
        on = [device_around(path, self._modules_on) for path in paths]
        on = [device for device in on if device is not None]
        return len(on), on.count(self.cut.order[self.member.rank])


_OWN_HOOK = -1
"""Stands for the pipeline's own hook among those of an optimiser."""

_ALONE = ("torch", "transformers", "bitsandbytes")
"""Packages whose optimisers update each parameter without a look at the others."""


def _takes_each_alone(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimiser does for a parameter the same if it has only some of them.

    Any other may take a norm of all gradients, or draw random numbers for each.
    """
    return type(optimizer).step.__module__.partition(".")[0] in _ALONE


def _generator_of(card: torch.device) -> torch.Generator:
    """Return a card's generator; seeding those of all cards would take milliseconds."""
    found: torch.Generator = torch.cuda.default_generators[card.index]
    return found


def _refuse_replicas(wrapper: str) -> PipelineRefusedError:
    by_trainer = any(
        frame.f_globals.get("__name__") == "transformers.trainer" for frame, _ in walk_stack(None)
    )
    if by_trainer:
        return PipelineRefusedError(
            f"transformers.Trainer wraps its model in {wrapper} itself under torchrun, for "
            f"replicas of it; use enplace.apply without a pipeline, or a loop of your own"
        )
    return PipelineRefusedError(
        f"the script wraps its model in {wrapper}, for replicas of it, and here each process is a "
        f"stage; leave the wrapper out"
    )


_OF_REPLICAS = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel")


@contextmanager
def explain_failure(schedule: str) -> Iterator[None]:
    """Tell what failed first within the block.

    Raises
    ------
    PipelineRefusedError
        If that was PyTorch, and no line of the script.
    """
    tells_schedule = logging.getLogger(pipelining.schedules.__name__)  # in 50 lines
    try:
        with patch.object(tells_schedule, "disabled", new=True):
            yield
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        by_script = any(is_of_script(frame) for frame, _ in walk_tb(cause.__traceback__))
        if isinstance(cause, EnplaceError) or by_script or is_out_of_memory(cause):
            raise cause from None
        other = "gpipe" if schedule == "1f1b" else "1f1b"
        raise PipelineRefusedError(
            f"the pipeline failed within PyTorch, at no line of the script: "
            f"{brief(cause, first_line(cause))}; try another pipeline, such as {other}"
        ) from None
