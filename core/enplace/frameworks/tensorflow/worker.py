"""Handlers that run in a worker with TensorFlow, which is imported once devices are known."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import shorten
from typing import Any

from enplace.errors import DoesNotFitError, EnplaceError, PlanError
from enplace.frameworks.devices import LOCAL, cuda_visible
from enplace.frameworks.jobs import data_parallel_job, do_work
from enplace.frameworks.measured import run_message
from enplace.frameworks.microbatches import Microbatches
from enplace.frameworks.source import is_program, source_from_json
from enplace.frameworks.tensorflow.error_text import (
    describe_out_of_memory,
    first_line,
    is_out_of_memory,
)
from enplace.frameworks.tensorflow.framework import FRAMEWORK
from enplace.processes import codecs
from enplace.processes.main import Connection, failure
from enplace.processes.wire import DONE, Message
from enplace.processes.worker import Report, WorkerError
from enplace.text import count
from enplace.values.measurement import Measurement
from enplace.values.profile import Profile
from enplace.values.splits import unsplit_names

Facts = Mapping[str, Any]

MIRRORED = "Running under tf.distribute.MirroredStrategy"

QUICK_OPS = 5_000
"""Of steps with so many ops, TensorFlow builds a copy for each device within seconds."""

NOT_QUICK = "building a copy of {} for each device takes long; enplace run --data-parallel does it"

_SHOWN = 3

# Names as in malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_MOST, _PAD = (1 << 31) - 1, 64 << 20


def work(connection: Connection) -> Message:
    """Do the job that is received; see :mod:`enplace.frameworks.jobs`."""
    _keep_memory()
    values, job = _receive(connection)
    return _answer(job, values, connection.report)


def serve(connection: Connection) -> Message:
    """Serve one task of a cluster file for as long as this worker lives.

    The message has ``cluster`` and ``task``; progress is reported once the task is served.
    """
    job = connection.receive().details
    _start_tensorflow(job["cluster"])
    from enplace.frameworks.tensorflow.devices import parse_devices
    from enplace.frameworks.tensorflow.hosts.servers import start_server

    server = start_server(parse_devices(job["cluster"]), job["task"])
    connection.report(f"serving {job['task']}")
    server.join()
    raise EnplaceError(f"the server of {job['task']} has ended")


def _keep_memory() -> None:
    """Make glibc keep the memory that a step frees for the next step.

    Otherwise it returns large blocks to the system. Allocating them again took up to a tenth of a
    step on a CPU, varying with the thread that freed them.
    """
    with contextlib.suppress(OSError, AttributeError):
        set_option = ctypes.CDLL(None).mallopt
        for option, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _MOST), (_M_TOP_PAD, _PAD)):
            set_option(option, value)


def _receive(connection: Connection) -> tuple[list[Message], Message]:
    """Receive the job and the values that it is about; return the values first."""
    values: list[Message] = []
    while "source" not in (message := connection.receive()).details:
        values.append(message)
    return values, message


def _answer(job: Message, values: list[Message], report: Report) -> Message:
    try:
        if job.do == "profile" and job.details["batch_sizes"]:
            return _evaluate(job, report)
        rival = _data_parallel(job, values, report) if job.details.get("data_parallel") else {}
        report("Starting TensorFlow", None)
        _start_tensorflow(job.details["devices"])
        if job.do == "profile":
            return _profile(job, report)
        if job.do == "data-parallel":
            return _time_mirrored(job, report)
        return _run(job, values, report, rival)
    except BaseException as error:
        return _failure(error)


def _start_tensorflow(devices: str) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # oneDNN's kernels are not the ones that the graph names, and they fuse ops that a plan orders.
    # A user's own process keeps them (:func:`enplace.apply`).
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    visible = cuda_visible(devices, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
    if importlib.util.find_spec("tensorflow") is None:
        raise EnplaceError(f"TensorFlow is not installed; run: {FRAMEWORK.install_command}")
    try:
        importlib.import_module("tensorflow")
    except Exception as error:
        traceback.print_exc()
        raise EnplaceError(
            f"TensorFlow is installed but does not start ({_brief(error)}); "
            f"install it again: {FRAMEWORK.install_command}"
        ) from None


def _profile(job: Message, report: Report) -> Message:
    from enplace.frameworks.tensorflow.devices import parse_devices
    from enplace.frameworks.tensorflow.measure.profile import graph_profile, profile_step
    from enplace.frameworks.tensorflow.measure.recorded_trace import profile_of_trace
    from enplace.frameworks.tensorflow.open.load import load

    details = job.details
    source = source_from_json(details["source"])
    if source.kind == "trace":
        profile = profile_of_trace(source.path)
        measured = replace(profile.measured, source=details["source"])
        return codecs.profile_message(replace(profile, measured=measured), DONE)
    devices = parse_devices(details["devices"])  # quick to refuse
    step = load(source, report)
    if details["steps"]:
        profile = profile_step(step, devices, details["steps"], details["warm_ups"], report)
    else:
        profile = graph_profile(step, devices)
    measured = replace(profile.measured, source=details["source"], devices=details["devices"])
    return codecs.profile_message(replace(profile, measured=measured), DONE)


def _evaluate(job: Message, report: Report) -> Message:
    """Estimate a profile; further workers run TensorFlow for it, one after another."""
    from enplace.frameworks.evaluation import evaluate

    details = job.details
    source = source_from_json(details["source"])

    def do(messages: Sequence[Message], progress: Report) -> Message:
        return do_work(source, messages, progress)

    profile = evaluate(
        source,
        details["batch_sizes"],
        details["devices"],
        details["steps"],
        details["warm_ups"],
        do,
        report,
    )
    return codecs.profile_message(profile, DONE)


def _data_parallel(job: Message, values: list[Message], report: Report) -> Facts:
    """Time data parallelism in a worker of its own, which divides the devices as it needs them.

    A step of many ops would take longer to build than all else, so unless it is to be timed in any
    case, it is only predicted.
    """
    from enplace.placers.data_parallel import mirrored

    details = job.details
    profile = codecs.profile_from(values[0])

    def predicted(why_not: str) -> Facts:
        shared = mirrored(codecs.problem_from(profile, details["problem"]))
        return {"why_not": why_not, "predicted_us": shared.step_time_us if shared else None}

    if details["data_parallel"] == "quick" and profile.n_ops > QUICK_OPS:
        return predicted(NOT_QUICK.format(count(profile.n_ops, "op")))
    source, devices = source_from_json(details["source"]), details["devices"]
    if not is_program(source):
        return predicted("only a script says how the model is trained")
    if not LOCAL.fullmatch(devices.strip()):
        return predicted("the devices are on several hosts")
    try:
        done = do_work(source, data_parallel_job(source, devices, details["steps"]), report)
    except EnplaceError as error:
        return predicted(str(error))
    return done.details


def _time_mirrored(job: Message, report: Report) -> Message:
    from enplace.frameworks.tensorflow.devices import parse_devices
    from enplace.frameworks.tensorflow.measure.mirrored import time_mirrored

    details = job.details
    report(MIRRORED, None)
    timed = time_mirrored(
        source_from_json(details["source"]),
        parse_devices(details["devices"]),
        details["steps"],
        lambda _, fraction: report(MIRRORED, fraction),
    )
    return Message(DONE, {"times_us": timed})


def _run(job: Message, values: list[Message], report: Report, rival: Facts) -> Message:
    from enplace.frameworks.tensorflow.apply.run import run_plan
    from enplace.frameworks.tensorflow.devices import parse_devices
    from enplace.frameworks.tensorflow.open.load import load

    details = job.details
    devices = parse_devices(details["devices"])
    profile = codecs.profile_from(values[0])
    step = load(source_from_json(details["source"]), report)
    gc.freeze()  # what the script has built stays; looking through it took a tenth of what follows
    problem, plan = codecs.problem_from(profile, details["problem"]), codecs.plan_from(job)
    pipeline = details["pipeline"]
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
        repeat=details["repeat"],
        microbatches=Microbatches(**pipeline) if pipeline else None,
        progress=report,
    )
    facts = {**run.facts, "data_parallel": rival} if rival else run.facts
    return run_message(replace(run, facts=facts))


def _is_whole(profile: Profile) -> bool:
    """Return whether a profile surely has every op of its model."""
    if profile.measured == Measurement(batch_shapes=profile.measured.batch_shapes):
        return True  # that of a plan's file
    return profile.measured.source.get("kind") not in (None, "trace")


def _check_same_graph(nodes: set[str], planned: Sequence[str], whole: bool) -> None:
    """Refuse a plan that places ops which the model's step does not have.

    If its profile is ``whole`` (a trace leaves ops out), the plan must also place every op.
    """
    missing = [name for name in planned if name not in nodes]
    new = sorted(nodes.difference(planned)) if whole else []
    if odd := missing or new:
        names = ", ".join(odd[:_SHOWN]) + (", ..." if len(odd) > _SHOWN else "")
        difference = (
            f"the model has no {names} ({count(len(odd), 'op')} of {len(planned):,})"
            if missing
            else f"it does not place {names} ({count(len(odd), 'op')} of {len(nodes):,})"
        )
        raise PlanError(
            f"the plan was made for another graph: {difference}; give the model the arguments it "
            f"was profiled with (--profile has them), or profile it again and make a new plan"
        )


def _failure(error: BaseException) -> Message:
    if isinstance(error, EnplaceError):
        return failure(error)
    if is_out_of_memory(error):
        return failure(DoesNotFitError(describe_out_of_memory(str(error))))
    traceback.print_exception(error)
    return failure(WorkerError(f"TensorFlow failed: {_brief(error)}"))


def _brief(error: BaseException) -> str:
    """Return the kind of an error and its text in one line."""
    kind, text = type(error).__name__, first_line(error)
    return f"{kind}: {shorten(text, 200, placeholder=' …')}" if text else kind
