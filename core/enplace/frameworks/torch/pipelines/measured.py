"""A process of a pipeline that ``enplace run`` starts: what the script's own would do, measured."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from enplace.errors import EnplaceError
from enplace.frameworks.microbatches import find_microbatches
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
from enplace.frameworks.torch.pipelines.calls import PipelineRefusedError
from enplace.frameworks.torch.pipelines.joining import LostError, end_with_torchrun
from enplace.frameworks.torch.pipelines.pipeline_files import (
    ANSWER,
    JOB,
    LOST,
    OUTPUT,
    OWN,
    PROGRESS,
    WHY,
)
from enplace.frameworks.torch.pipelines.rank import Pipeline
from enplace.frameworks.torch.record.recorder import ASIDE, given_tensors, held_by
from enplace.frameworks.torch.record.storages import tensors_in
from enplace.frameworks.torch.run.comparison import results_of
from enplace.frameworks.torch.run.placed import Labels
from enplace.frameworks.work import brief
from enplace.processes.codecs import plan_from, problem_from, profile_from
from enplace.processes.wire import Message, encode, read
from enplace.processes.worker import Report


class Measured(Follower):
    """Follows a script whose steps run as a pipeline."""

    def __init__(self, pipeline: Pipeline, steps: int, what: str, report: Report) -> None:
        super().__init__(steps, what, report)
        self.pipeline = pipeline
        self.peak_bytes = 0
        pipeline.told, pipeline.around = self._told, self._counted

    @contextmanager
    def hooked(self) -> Iterator[None]:
        with super().hooked(), self.pipeline.hooked():
            yield

    def enter(self) -> None:
        """Nothing of a step is followed by its modules."""

    def leave(self, is_whole: bool) -> None:
        """Nothing to end."""

    def synchronize(self) -> None:
        """Wait for the card of this process, and start none of the others."""
        if self.pipeline.member.device.type == "cuda":
            torch.cuda.synchronize(self.pipeline.member.device)

    def go_backward(self, losses: Any) -> None:
        """Note nothing: the pipeline tells the loss of each step."""

    def _told(self, loss: torch.Tensor) -> None:
        if self.losses:
            self.losses[-1].append(as_array(loss))

    def _values(self) -> dict[str, NDArray[Any]]:
        """Return the parameters that this process updates, by their names."""
        with self.pipeline.weights.watch.off():
            return {name: as_array(each) for name, each in self.pipeline.weights.named.items()}

    def _keep_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        for name, each in self.pipeline.weights.named.items():
            if each.grad is not None:
                self._gradients[name] = each.grad.detach().clone()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count bytes in a step that is not timed."""
        device = self.pipeline.member.device
        if device.type == "cuda":
            yield
            self.peak_bytes = torch.cuda.max_memory_allocated(device)
        elif self._number != FIRST:
            yield
        else:
            own = self.pipeline.weights.own
            held = [tensor for p, tensor, _ in held_by(self.optimizers) if id(p) in own]
            with _Counting(held) as counting:
                yield
            self.peak_bytes = counting.peak_bytes


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
            made = tensors_in(out)
            self._count(each for each in made if each.untyped_storage().data_ptr() not in given)
        return out


def answer_of(follower: Measured) -> Message:
    """Return what this process measured and computed."""
    pipeline, times = follower.pipeline, follower.pipeline.times
    assert pipeline.cut is not None
    modules, in_place = pipeline.count_modules()
    details: dict[str, Any] = {
        "times_us": follower.times_us,
        "busy_us": times.busy_us[-len(follower.times_us) :],
        "passes_us": times.passes_us[-len(follower.times_us) :],
        "in_flight": times.in_flight,
        "peak_bytes": follower.peak_bytes,
        "modules": modules,
        "modules_in_place": in_place,
        "samples": pipeline.samples,
        "devices": pipeline.cut.order,
        "stages": len(pipeline.cut.devices),
        "shared": len(pipeline.cut.shared),
        "compared_steps": follower.n_compared,
        "is_compiled": follower.is_compiled,
    }
    return Message("rank", details, results_of(follower))


def run(folder: Path) -> None:
    """Do this process's part."""
    with open(folder / JOB, "rb") as file:
        profile, job = read(file), read(file)
    assert profile is not None
    assert job is not None
    details = job.details
    problem = problem_from(profile_from(profile), details["problem"])
    wanted = find_microbatches(details["wishes"])
    assert wanted is not None
    pipeline = Pipeline(problem, plan_from(job), wanted)
    rank = pipeline.member.rank

    def report(message: str, fraction: float | None) -> None:
        if not rank:
            (folder / PROGRESS).write_text(f"{fraction or 0} {message}")

    what = f"Running the plan as a pipeline ({wanted})"
    follower = Measured(pipeline, details["steps"], what, report)
    seed_all()
    with without_dropout():
        run_watched(source_from_json(details["source"]), follower)
    if pipeline.cut is None and pipeline.others:
        raise pipeline.another_model()
    if not follower.n_compared or pipeline.cut is None:
        raise PipelineRefusedError("the script has too few steps; let it make at least three")
    _leave(folder / ANSWER.format(rank), encode(answer_of(follower)))


def _leave(path: Path, content: bytes) -> None:
    """Write a file that is there once it is whole: ``torchrun`` may end this process meanwhile."""
    part = path.with_name(f"part-{path.name}")
    part.write_bytes(content)
    os.replace(part, path)


def main() -> None:
    """Run, and leave a line that says why where that fails."""
    end_with_torchrun()
    folder = Path(sys.argv[1])
    with open(folder / OUTPUT.format(os.environ["RANK"]), "wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    try:
        run(folder)
    except BaseException as error:
        is_ours = isinstance(error, EnplaceError)
        line = str(error) if is_ours else f"PyTorch failed: {brief(error, first_line(error))}"
        kind = LOST if isinstance(error, LostError) else OWN if is_ours else "other"
        _leave(folder / WHY.format(os.environ["RANK"]), f"{kind} {line}".encode())
        if not is_ours:
            raise
        os._exit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of a script may go on for ever


if __name__ == "__main__":
    main()
