"""The process that has TensorFlow: it reads one job from its input and answers on its output.

:mod:`enplace.frameworks.worker` tells what is said. TensorFlow is imported once the devices are
known.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib.util
import io
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import BinaryIO

from enplace.errors import EnplaceError, PlanError
from enplace.frameworks.measured import run_message
from enplace.frameworks.source import ADD_TENSORFLOW, source_from_json
from enplace.frameworks.tensorflow.said import what_it_says
from enplace.frameworks.worker import Report, do_work
from enplace.processes import wire
from enplace.processes.wire import Message
from enplace.text import count
from enplace.values.measurement import Measurement
from enplace.values.profile import Profile
from enplace.values.splits import unsplit_names

_SHOWN = 3

# Names as in malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_MOST, _PAD = (1 << 31) - 1, 64 << 20

Send = Callable[[Message], None]


def main() -> None:
    """Do one job for the process that started this one, and end with it."""
    _keep_memory()
    hear, send = _claim_streams()
    faulthandler.enable(all_threads=False)
    values, job = _receive(hear)
    tempfile.tempdir = tempfile.mkdtemp(prefix="enplace-")
    scratch = Path(tempfile.tempdir)
    threading.Thread(target=_end_with, args=(hear,), name="listener", daemon=True).start()
    answer = _answer(job, values, send)
    sys.stderr.flush()
    _tidy(scratch)
    send(answer)  # whoever asked ends this process once it has this
    os._exit(0)  # a script's own threads may go on for ever


def _tidy(scratch: Path) -> None:
    """Remove the files that AutoGraph wrote; it would only do so at an orderly end."""
    for path in scratch.glob("__autograph_generated_file*"):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # what the script left there is the person's
        scratch.rmdir()


def _keep_memory() -> None:
    """Have the C library keep the memory that a step frees, for the next one.

    It would give large blocks back, and fetching them anew took up to a tenth of a step on a CPU,
    now more, now less, depending on which thread freed what. Other libraries than glibc do as they
    please.
    """
    with contextlib.suppress(OSError, AttributeError):
        set_option = ctypes.CDLL(None).mallopt
        for option, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _MOST), (_M_TOP_PAD, _PAD)):
            set_option(option, value)


def _claim_streams() -> tuple[BinaryIO, Send]:
    """Keep the connection for messages: a script reads nothing, and prints to standard error."""
    hear, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)  # a crash loses nothing that was printed

    def send(message: Message) -> None:
        try:
            out.write(wire.encode(message))
            out.flush()
        except BrokenPipeError:
            os._exit(1)

    return hear, send


def _receive(hear: BinaryIO) -> tuple[list[Message], Message]:
    """The values that the job is about, and the job."""
    values: list[Message] = []
    while message := wire.read(hear):
        if "source" in message.details:
            return values, message
        values.append(message)
    os._exit(0)


def _end_with(hear: BinaryIO) -> None:
    """Wait until whoever asked is gone; end, with all that was started."""
    hear.read()
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(0)


def _answer(job: Message, values: list[Message], send: Send) -> Message:
    def report(message: str, fraction: float | None = None) -> None:
        send(Message("progress", {"message": message, "fraction": fraction}))

    try:
        if job.do == "profile" and job.details["batch_sizes"]:
            return _evaluate(job, report)
        report("Starting TensorFlow")
        _start_tensorflow(job.details["devices"])
        if job.do == "profile":
            return _profile(job, report)
        return _run(job, values, report)
    except BaseException as error:
        return _failure(error)


def _start_tensorflow(devices: str) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    if devices.lower().startswith("cpu:"):
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    if importlib.util.find_spec("tensorflow") is None:
        raise EnplaceError(f"TensorFlow is not installed; run: {ADD_TENSORFLOW}")
    try:
        importlib.import_module("tensorflow")
    except Exception as error:
        traceback.print_exc()
        raise EnplaceError(
            f"TensorFlow is installed but does not start ({_brief(error)}); "
            f"install it anew: {ADD_TENSORFLOW}"
        ) from None


def _profile(job: Message, report: Report) -> Message:
    from enplace.frameworks.tensorflow.devices import parse_devices
    from enplace.frameworks.tensorflow.load import load
    from enplace.frameworks.tensorflow.profile import graph_profile, profile_step
    from enplace.frameworks.tensorflow.recorded_trace import profile_of_trace

    details = job.details
    source = source_from_json(details["source"])
    if source.kind == "trace":
        profile = profile_of_trace(source.path)
        measured = replace(profile.measured, source=details["source"])
        return wire.profile_message(replace(profile, measured=measured), "done")
    devices = parse_devices(details["devices"])  # quick to refuse
    step = load(source, report)
    if details["steps"]:
        profile = profile_step(step, devices, details["steps"], details["warm_ups"], report)
    else:
        profile = graph_profile(step, devices)
    measured = replace(profile.measured, source=details["source"], devices=details["devices"])
    return wire.profile_message(replace(profile, measured=measured), "done")


def _evaluate(job: Message, report: Report) -> Message:
    """Other processes have TensorFlow then, one after the other."""
    from enplace.frameworks.evaluation import evaluate

    details = job.details
    profile = evaluate(
        source_from_json(details["source"]),
        details["batch_sizes"],
        details["devices"],
        details["steps"],
        details["warm_ups"],
        do_work,
        report,
    )
    return wire.profile_message(profile, "done")


def _run(job: Message, values: list[Message], report: Report) -> Message:
    from enplace.frameworks.tensorflow.devices import parse_devices
    from enplace.frameworks.tensorflow.load import load
    from enplace.frameworks.tensorflow.run import run_plan

    details = job.details
    devices = parse_devices(details["devices"])
    profile = wire.profile_from(values[0])
    step = load(source_from_json(details["source"]), report)
    problem, plan = wire.problem_from(profile, details["problem"]), wire.plan_from(job)
    planned = unsplit_names(profile.op_names, problem.splits)
    _check_same_graph({n.name for n in step.graph_def.node}, planned, _is_whole(profile))
    run = run_plan(
        step,
        problem,
        plan,
        devices,
        details["steps"],
        ordered=details["order"],
        compare=details["compare"],
        progress=report,
    )
    return run_message(run)


def _is_whole(profile: Profile) -> bool:
    """Whether it surely has every op of its model: measured here, or all that a plan tells of."""
    if profile.measured == Measurement():
        return True
    return profile.measured.source.get("kind") not in (None, "trace")


def _check_same_graph(nodes: set[str], planned: Sequence[str], whole: bool) -> None:
    """Refuse a plan that places ops which the model's step does not have.

    If its profile is ``whole``, not one of a trace, which leaves ops out, also one that lacks some.
    """
    lacking = [name for name in planned if name not in nodes]
    new = sorted(nodes.difference(planned)) if whole else []
    if odd := lacking or new:
        names = ", ".join(odd[:_SHOWN]) + (", ..." if len(odd) > _SHOWN else "")
        said = (
            f"the model has no {names} ({count(len(odd), 'op')} of {len(planned):,})"
            if lacking
            else f"it knows nothing of {names} ({count(len(odd), 'op')} of {len(nodes):,})"
        )
        raise PlanError(
            f"the plan was made for another graph: {said}; call the model as it was when it was "
            f"profiled (--profile knows how), or profile and place it again"
        )


def _failure(error: BaseException) -> Message:
    kind = "WorkerError"
    if isinstance(error, EnplaceError):
        why = str(error)
        if not getattr(error, "printed", False):
            kinds = (c.__name__ for c in type(error).__mro__ if c.__module__ == "enplace.errors")
            kind = next(kinds)
    elif isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError":
        why = (
            f"TensorFlow ran out of memory ({_brief(error)}); "
            f"take a smaller batch, or more or larger devices"
        )
        kind = "DoesNotFitError"
    else:
        traceback.print_exception(error)
        why = f"TensorFlow failed: {_brief(error)}"
    return Message("failed", {"why": why, "kind": kind})


def _brief(error: BaseException) -> str:
    """The kind of an error and what it says in one line."""
    kind, said = type(error).__name__, what_it_says(error)
    return f"{kind}: {shorten(said, 200, placeholder=' …')}" if said else kind


if __name__ == "__main__":
    main()
