"""One process of a pipeline, as ``torchrun`` starts it: runs the script, and its own stage.

Each process runs the whole script from the same seed, so that all have the same batches. Where the
script calls its model and goes backward, the schedule of ``torch.distributed.pipelining`` runs
instead. Only the process of a stage makes the gradients of its parameters and updates them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed import pipelining
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from enplace.errors import EnplaceError, PlanError
from enplace.frameworks.microbatches import Microbatches, find_microbatches
from enplace.frameworks.source import source_from_json
from enplace.frameworks.torch.error_text import first_line
from enplace.frameworks.torch.open.following import (
    FIRST,
    Follower,
    as_array,
    seed_all,
    without_dropout,
)
from enplace.frameworks.torch.open.scripts import run_watched
from enplace.frameworks.torch.pipelines.pipeline_files import (
    ANSWER,
    JOB,
    OF_SEVERAL,
    PROGRESS,
    SCHEDULES,
    WHY,
)
from enplace.frameworks.torch.pipelines.stages import (
    PART,
    Cut,
    cut_tape,
    device_around,
    parameters_of,
)
from enplace.frameworks.torch.pipelines.tape import PipelineRefusedError, Tape
from enplace.frameworks.torch.record.modules import unwrapped
from enplace.frameworks.torch.record.recorder import ASIDE, given_tensors, held_by
from enplace.frameworks.torch.run.comparison import results_of
from enplace.frameworks.torch.run.hooks import modules_in_plan
from enplace.frameworks.torch.run.matching import planned_devices
from enplace.frameworks.torch.run.placed import Labels
from enplace.frameworks.work import brief
from enplace.processes.codecs import plan_from, problem_from, profile_from
from enplace.processes.wire import Message, encode, read
from enplace.processes.worker import Report
from enplace.values.device_names import device_label
from enplace.values.plan import Plan
from enplace.values.problem import Problem


class Pipelined(Follower):
    """Follows a script whose model and backward pass run as a pipeline.

    Attributes
    ----------
    busy_us : list of float
        How long this process computed in each step.
    in_flight : int
        The most micro-batches at a time that had gone forward here and not backward.
    """

    def __init__(
        self, problem: Problem, plan: Plan, wanted: Microbatches, steps: int, report: Report
    ) -> None:
        super().__init__(steps, f"Running the plan as a pipeline ({wanted})", report)
        self._planned = planned_devices(problem, plan)
        devices = problem.cluster.devices
        self._names = [device_label(each.name) for each in devices]
        self._device = _device_here([each.kind for each in devices])
        self._wanted = wanted
        self._model: torch.nn.Module | None = None
        self._tape: Tape | None = None
        self.cut: Cut | None = None
        self._schedule: Any = None
        self._depth_of_calls = 0
        self._waits_for_loss = False
        self._is_exchanged = True
        self.busy_us: list[float] = []
        self._busy = 0.0
        self._flying = self.in_flight = self.peak_bytes = 0
        self.own: dict[int, torch.nn.Parameter] = {}

    @contextmanager
    def hooked(self) -> Iterator[None]:
        call, backward = torch.nn.Module.__call__, torch.autograd.backward
        with ExitStack() as stack:
            stack.enter_context(super().hooked())
            for owner, name, new in (
                (torch.nn.Module, "__call__", self._called(call)),
                (torch.autograd, "backward", self._went_back(backward)),
                # It would reach the one above inside of the tape, which could not end then.
                (torch.Tensor, "backward", self._went_back(torch.Tensor.backward)),
                (torch.nn.utils, "clip_grad_norm_", self._clip),
            ):
                stack.enter_context(patch.object(owner, name, new))
            yield

    # Names and values are those of the stage alone

    def enter(self) -> None:
        """Nothing of a step is followed by its modules."""

    def leave(self, is_whole: bool) -> None:
        """Nothing to end."""

    def enter_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        super().enter_optimizer(optimizer)
        self._exchange()

    def _values(self) -> dict[str, NDArray[Any]]:
        """Return the parameters that this process updates, by their names."""
        return {self._name_of[key]: as_array(each) for key, each in self.own.items()}

    def _keep_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Gradients are those of a stage; the weights that they give are compared."""

    # The model

    def _called(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(usual)
        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            own = unwrapped(module)
            is_outer = not self._depth_of_calls and any(True for _ in own.parameters())
            if not is_outer or not self._is_planned(own):
                return usual(module, *args, **kwargs)
            if self._waits_for_loss or not torch.is_grad_enabled():
                raise PipelineRefusedError(
                    "the script calls its model outside of its training steps, where the weights "
                    "of other stages are out of date; leave that out for this run"
                )
            self._depth_of_calls += 1
            try:
                self._waits_for_loss = True
                if self._tape is not None:
                    return self._tape.call_again(args, kwargs)
                self.samples = _samples_in((args, kwargs))
                self._tape = Tape(own, self.samples, self._wanted.number)
                return self._tape.call(partial(usual, module), args, kwargs)
            finally:
                self._depth_of_calls -= 1

        return call

    def _is_planned(self, model: torch.nn.Module) -> bool:
        if self._model is None:
            modules = modules_in_plan(model, self._planned)
            if modules is None:
                raise PlanError(
                    f"the plan was made for another model than {type(model).__name__}; profile it "
                    f"again and make a new plan"
                )
            self._model, self._modules_on = model, modules
            self._name_of = {id(each): name for name, each in model.named_parameters()}
        return model is self._model

    def _went_back(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(usual)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._waits_for_loss or self._tape is None:
                return usual(tensors, *args, **kwargs)
            given = [tensors] if isinstance(tensors, torch.Tensor) else [*tensors]
            self._waits_for_loss = False
            number = self._tape.loss(given[0])
            if self._schedule is None:
                self._make_stage(number)
            mean = self._step()
            given[0].data.copy_(mean.reshape(given[0].shape))
            if self.losses:
                self.losses[-1].append(as_array(given[0]))
            return None

        return backward

    # The pipeline

    def _make_stage(self, loss: int) -> None:
        """Cut the tape, and make this process's stage and its schedule."""
        assert self._tape is not None
        kind, rank, world = self._wanted.schedule, dist.get_rank(), dist.get_world_size()
        is_interleaved = kind == "interleaved"
        cut = self.cut = cut_tape(
            self._tape.calls, loss, self._modules_on, self._names, interleaved=is_interleaved
        )
        if len(cut.order) != world:
            raise PipelineRefusedError(
                f"the model is on {len(cut.order)} devices in this plan, and {world} processes run"
            )
        numbers = [stage for stage, at in enumerate(cut.rank) if at == rank]
        modules = [cut.module(stage) for stage in numbers]
        self._parts = sorted({number for module in modules for number in module.batch})
        self.own = {id(each): each for module in modules for each in module.own}
        stages = []
        for stage, module in zip(numbers, modules, strict=True):
            module.forward = self._timed(module.forward, 1)  # type: ignore[method-assign]
            made = pipelining.PipelineStage(module, stage, len(cut.devices), self._device)
            made.backward_one_chunk = self._timed(made.backward_one_chunk, -1)
            made.backward_weight_one_chunk = self._timed(made.backward_weight_one_chunk, 0)
            stages.append(made)
        make = getattr(pipelining, SCHEDULES[kind])
        number = self._wanted.number

        def share(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            """Return the part of a micro-batch in the loss, which is a mean over samples."""
            return output.reshape(()) / number

        given = stages if kind in OF_SEVERAL else stages[0]
        self._schedule = make(given, number, loss_fn=share, scale_grads=False)
        self._groups = [
            (parameter, dist.new_group([*stages])) for parameter, stages in cut.shared
        ]  # all processes make all groups

    def _timed(self, usual: Callable[..., Any], change: int) -> Callable[..., Any]:
        """Time a function, of which each call changes how many micro-batches are in flight."""

        @wraps(usual)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            out = usual(*args, **kwargs)
            self._busy += time.perf_counter() - begun
            self._flying += change
            self.in_flight = max(self.in_flight, self._flying)
            return out

        return timed

    def _step(self) -> torch.Tensor:
        """Run the schedule on this step's batch; return the mean loss, which all processes get."""
        assert self._tape is not None
        assert self.cut is not None
        last = self.cut.rank[-1]
        self._busy, self._flying, self.in_flight = 0.0, 0, 0
        batch = {f"{PART}{number}": self._tape.batch[number] for number in self._parts}
        with self._counted():
            mean = self._scheduled(batch, dist.get_rank() == last)
        dist.broadcast(mean, last)
        self._is_exchanged = False
        self.busy_us.append(self._busy * 1e6)
        return mean

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count bytes in a step that is not timed."""
        if self._device.type == "cuda":
            yield
            self.peak_bytes = torch.cuda.max_memory_allocated(self._device)
        elif self._number != FIRST:
            yield
        else:
            held = [tensor for p, tensor, _ in held_by(self.optimizers) if id(p) in self.own]
            with _Counting(held) as counting:
                yield
            self.peak_bytes = counting.peak_bytes

    def _scheduled(self, batch: Mapping[str, torch.Tensor], is_last: bool) -> torch.Tensor:
        """Run the schedule; return the loss, 0 where it is not known."""
        losses: list[torch.Tensor] = []
        if is_last:
            target = torch.zeros(self._wanted.number, device=self._device)
            self._schedule.step(**batch, target=target, losses=losses)
            mean = torch.stack([each.detach() for each in losses]).sum()
        else:
            self._schedule.step(**batch)
            mean = torch.zeros((), device=self._device)
        return mean.to(torch.float64)

    def _exchange(self) -> None:
        """Add up the gradients of parameters that several stages read, once before an update."""
        if self._is_exchanged:
            return
        self._is_exchanged = True
        for parameter, group in self._groups:
            if id(parameter) in self.own:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad, group=group)

    def _clip(
        self, parameters: Any, max_norm: float, norm_type: float = 2.0, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """Clip gradients by the norm of those of all stages; a shared one counts once."""
        self._exchange()
        given = [parameters] if isinstance(parameters, torch.Tensor) else [*parameters]
        mine = [p for p in given if p.grad is not None and self._counts_here(p)]
        norms = [torch.linalg.vector_norm(p.grad, norm_type) for p in mine if p.grad is not None]
        zero = torch.zeros((), device=self._device)
        if norm_type == float("inf"):
            total = torch.stack([zero, *norms]).max()
            dist.all_reduce(total, op=dist.ReduceOp.MAX)
        else:
            total = torch.stack([zero, *(norm**norm_type for norm in norms)]).sum()
            dist.all_reduce(total)
            total = total ** (1 / norm_type)
        factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
        for parameter in given:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
        return total

    def _counts_here(self, parameter: torch.Tensor) -> bool:
        assert self.cut is not None
        first = next((on[0] for each, on in self.cut.shared if each is parameter), None)
        return first in (None, dist.get_rank())

    def count_modules(self) -> tuple[int, int]:
        """Count the modules of this stage with a planned device, and those with this one."""
        assert self.cut is not None
        rank = dist.get_rank()
        own = [calls for calls, at in zip(self.cut.calls, self.cut.rank, strict=True) if at == rank]
        paths = {call.module for calls in own for call in calls if parameters_of(call)}
        on = [device_around(path, self._modules_on) for path in paths]
        on = [device for device in on if device is not None]
        return len(on), on.count(self.cut.order[rank])


class _Counting(TorchDispatchMode):
    """Counts the bytes of what a step makes, and holds besides."""

    def __init__(self, held: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._labels = Labels(1)
        self._count(held)

    @property
    def peak_bytes(self) -> int:
        """The most at a time."""
        return self._labels.peak_bytes[0]

    def _count(self, tensors: Iterable[torch.Tensor]) -> None:
        for block in map(self._labels.of, tensors):
            if block.device is None:
                self._labels.put(block, 0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.namespace not in ASIDE:
            given = {each.untyped_storage().data_ptr() for each, _ in given_tensors(func, args, {})}
            made = (each for each in tree_leaves(out) if isinstance(each, torch.Tensor))
            self._count(each for each in made if each.untyped_storage().data_ptr() not in given)
        return out


def _samples_in(values: Any) -> int:
    """Return the number of samples: the rows of the first tensor that the model gets."""
    leaves = tree_leaves(values)
    first = next((v for v in leaves if isinstance(v, torch.Tensor) and v.dim()), None)
    if first is None:
        raise PipelineRefusedError("the model is called without a tensor that has rows to divide")
    return int(first.shape[0])


def _device_here(kinds: Sequence[str]) -> torch.device:
    if "gpu" in kinds and torch.cuda.is_available():
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return torch.device("cpu")


def answer_of(follower: Pipelined) -> Message:
    """Return what this process measured and computed."""
    assert follower.cut is not None
    modules, in_place = follower.count_modules()
    details: Mapping[str, Any] = {
        "times_us": follower.times_us,
        "busy_us": follower.busy_us[-len(follower.times_us) :],
        "in_flight": follower.in_flight,
        "peak_bytes": follower.peak_bytes,
        "modules": modules,
        "modules_in_place": in_place,
        "samples": follower.samples,
        "devices": follower.cut.order,
        "stages": len(follower.cut.devices),
        "shared": len(follower.cut.shared),
        "compared_steps": follower.n_compared,
        "is_compiled": follower.is_compiled,
    }
    return Message("rank", dict(details), results_of(follower))


def run(folder: Path) -> None:
    """Do this process's part."""
    rank = int(os.environ["RANK"])
    with open(folder / JOB, "rb") as file:
        profile, job = read(file), read(file)
    assert profile is not None
    assert job is not None
    details = job.details
    problem = problem_from(profile_from(profile), details["problem"])
    wanted = find_microbatches(details["wishes"])
    assert wanted is not None

    def report(message: str, fraction: float | None) -> None:
        if not rank:
            (folder / PROGRESS).write_text(f"{fraction or 0} {message}")

    here = _device_here([device.kind for device in problem.cluster.devices])
    dist.init_process_group("nccl" if here.type == "cuda" else "gloo")
    follower = Pipelined(problem, plan_from(job), wanted, details["steps"], report)
    seed_all()
    with without_dropout():
        run_watched(source_from_json(details["source"]), follower)
    if not follower.n_compared or follower.cut is None:
        raise PipelineRefusedError("the script has too few steps; let it make at least three")
    (folder / f"{ANSWER.format(rank)}.part").write_bytes(encode(answer_of(follower)))
    os.replace(folder / f"{ANSWER.format(rank)}.part", folder / ANSWER.format(rank))


def main() -> None:
    """Run, and leave a line that says why where that fails."""
    folder = Path(sys.argv[1])
    try:
        run(folder)
    except BaseException as error:
        is_ours = isinstance(error, EnplaceError)
        line = str(error) if is_ours else f"PyTorch failed: {brief(error, first_line(error))}"
        kind = "own" if is_ours else "other"
        (folder / WHY.format(os.environ["RANK"])).write_text(f"{kind} {line}")
        if not is_ours:
            raise
        os._exit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of a script may go on for ever


if __name__ == "__main__":
    main()
