"""What the workers of all frameworks do alike: receive a job, check its plan, report a failure.

A worker that only reads a graph needs little of this, so the heavy imports are in functions.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from textwrap import shorten
from typing import Any

from enplace.errors import EnplaceError, PlanError
from enplace.frameworks.devices import LOCAL, cuda_visible
from enplace.frameworks.framework import Framework
from enplace.frameworks.registry import kind_of
from enplace.frameworks.source import is_program, source_from_json
from enplace.frameworks.wishes import KEEP_DEVICE_SCOPES
from enplace.processes.codecs import problem_from, profile_from, profile_message
from enplace.processes.main import Connection, failure
from enplace.processes.redirect import why_refused
from enplace.processes.wire import DONE, Message
from enplace.processes.worker import WRITTEN, Report, WorkerError
from enplace.text import count
from enplace.values.measurement import Measurement
from enplace.values.profile import Profile

Facts = Mapping[str, Any]

Do = Callable[[Sequence[Message], Report], Message]
"""Has a worker of the framework do a job, and returns its answer."""

QUICK_OPS = 5_000
"""Of steps with so many ops, a framework builds a copy for each device within seconds."""

NOT_QUICK = "building a copy of {} for each device takes long; enplace run --data-parallel does it"

_SHOWN = 3


def receive_job(connection: Connection) -> tuple[list[Message], Message]:
    """Receive the values that a job is about, and the job."""
    values: list[Message] = []
    while "source" not in (message := connection.receive()).details:
        values.append(message)
    return values, message


def do_several(connection: Connection) -> Message:
    """Do a job that starts the framework several times, each time in a worker of its own."""
    from enplace.frameworks.jobs import RUN_PLAIN, do_work, runs_apart

    values, job = receive_job(connection)
    written: set[str] = set()
    source = source_from_json(job.details["source"])

    def do(job: Sequence[Message], report: Report) -> Message:
        return do_work(source, job, report, wrote=written.update)

    if job.details.get("batch_sizes"):
        answer = _estimate_profile(job, do, connection.report)
    else:
        timed = bool(job.details["data_parallel"])
        rival = time_data_parallel(job, values, do, connection.report) if timed else {}
        rest = replace(job, details={**job.details, "data_parallel": ""})
        if runs_apart(rest):
            os.environ.setdefault("PYTHONHASHSEED", "0")  # sets have the same order in both
            values = [*values, do([*values, replace(rest, do=RUN_PLAIN)], connection.report)]
            rest.details["compare"] = False
        answer = do([*values, rest], connection.report)
        answer.details["run"]["facts"]["data_parallel"] = rival
    return replace(answer, details={**answer.details, WRITTEN: sorted(written)})


def profile_answer(profile: Profile, job: Message, devices: str = "") -> Message:
    """Make the answer to the job of profiling a model; the profile names model and devices."""
    devices = devices or profile.measured.devices
    source = job.details["source"]
    keeps = True if source.get(KEEP_DEVICE_SCOPES.key) else None
    measured = replace(profile.measured, source=source, devices=devices, keeps_device_scopes=keeps)
    return profile_message(replace(profile, measured=measured), DONE)


def _estimate_profile(job: Message, do: Do, report: Report) -> Message:
    from enplace.frameworks.evaluation import evaluate

    details = job.details
    source = source_from_json(details["source"])
    sizes, devices = details["batch_sizes"], details["devices"]
    steps = details["steps"], details["warm_ups"]
    return profile_message(evaluate(source, sizes, devices, *steps, do, report), DONE)


def time_data_parallel(job: Message, values: Sequence[Message], do: Do, report: Report) -> Facts:
    """Time data parallelism in another worker, which divides the devices as it needs them.

    A step of many ops would take longer to build than all else, so unless it is to be timed in any
    case, it is only predicted.
    """
    from enplace.frameworks.jobs import data_parallel_job
    from enplace.placers.alternatives import at_once
    from enplace.placers.data_parallel import mirrored

    details = job.details
    profile = profile_from(values[0])

    def predicted(why_not: str) -> Facts:
        problem, parts = problem_from(profile, details["problem"]), profile.measured.parts_of_batch
        # A step has the whole batch, of which the profile may have one micro-batch.
        shared = mirrored(at_once(problem, parts) if parts > 1 else problem)
        if shared is None:
            return {"why_not": why_not, "predicted_us": None}
        return {"why_not": why_not, "predicted_us": shared.step_time_us, "about": shared.about}

    if details["data_parallel"] == "quick" and profile.n_ops > QUICK_OPS:
        return predicted(NOT_QUICK.format(count(profile.n_ops, "op")))
    source, devices = source_from_json(details["source"]), details["devices"]
    if not is_program(source):
        return predicted("only a script says how the model is trained")
    if not LOCAL.fullmatch(devices.strip()):
        return predicted("the devices are on several hosts")
    try:
        done = do(data_parallel_job(source, devices, details["steps"]), report)
    except EnplaceError as error:
        return predicted(str(error))
    return done.details


def is_whole(profile: Profile) -> bool:
    """Return whether a profile surely has every op of its model."""
    found = profile.measured
    if found == Measurement(batch_shapes=found.batch_shapes, framework=found.framework):
        return True  # that of a plan's file
    known = kind_of(profile)
    return bool(found.source.get("kind")) and not (known and known.is_recorded)


def check_same_graph(ops: Collection[str], planned: Sequence[str], whole: bool) -> None:
    """Refuse a plan that places ops which the model's step does not have.

    If its profile is ``whole`` (a trace leaves ops out), the plan must also place every op.
    """
    missing = [name for name in planned if name not in ops]
    new = sorted(set(ops).difference(planned)) if whole else []
    if odd := missing or new:
        names = ", ".join(odd[:_SHOWN]) + (", ..." if len(odd) > _SHOWN else "")
        difference = (
            f"the model has no {names} ({count(len(odd), 'op')} of {len(planned):,})"
            if missing
            else f"it does not place {names} ({count(len(odd), 'op')} of {len(ops):,})"
        )
        raise PlanError(
            f"the plan was made for another graph: {difference}; give the model the arguments it "
            f"was profiled with (--profile has them), or profile it again and make a new plan"
        )


def framework_failure(error: BaseException, framework: str, line: str) -> Message:
    """Make an error the answer of a job; of one that is not Enplace's, ``line`` says why."""
    if isinstance(error, EnplaceError):
        return failure(error)
    traceback.print_exception(error)
    why = why_refused(error) or f"{framework} failed: {brief(error, line)}"
    return failure(WorkerError(why))


def import_framework(
    framework: Framework, devices: str, first_line: Callable[[BaseException], str]
) -> None:
    """Import a framework into this process, which sees only the GPUs of some devices.

    Raises
    ------
    EnplaceError
        If it is not installed, or does not start.
    """
    visible = cuda_visible(devices, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
    framework.check_installed()
    try:
        importlib.import_module(framework.module)
    except Exception as error:
        traceback.print_exc()
        raise EnplaceError(
            f"{framework.name} is installed but does not start ({brief(error, first_line(error))});"
            f" install it again: {framework.install_command}"
        ) from None


def brief(error: BaseException, line: str) -> str:
    """Return the kind of an error and the line of its text that says why, in one line."""
    kind = type(error).__name__
    return f"{kind}: {shorten(line, 200, placeholder=' …')}" if line else kind
