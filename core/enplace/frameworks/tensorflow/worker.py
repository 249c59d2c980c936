"""Handlers that run in a worker with TensorFlow, which is imported once devices are known."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os

import numpy as np

from enplace.errors import DoesNotFitError, EnplaceError
from enplace.frameworks.measured import run_message
from enplace.frameworks.microbatches import find_microbatches
from enplace.frameworks.source import source_from_json
from enplace.frameworks.tensorflow.error_text import (
    describe_out_of_memory,
    first_line,
    is_out_of_memory,
)
from enplace.frameworks.tensorflow.framework import FRAMEWORK
from enplace.frameworks.wishes import ORDER
from enplace.frameworks.work import (
    check_same_graph,
    framework_failure,
    import_framework,
    is_whole,
    profile_answer,
    receive_job,
)
from enplace.processes import codecs, redirect
from enplace.processes.main import Connection
from enplace.processes.wire import DONE, Message
from enplace.processes.worker import Report
from enplace.values.splits import unsplit_names

MIRRORED = "Running under tf.distribute.MirroredStrategy"

# Names as in malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_MOST, _PAD = (1 << 31) - 1, 64 << 20


def work(connection: Connection) -> Message:
    """Do the job that is received; see :mod:`enplace.frameworks.jobs`."""
    _keep_memory()
    values, job = receive_job(connection)
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


def _answer(job: Message, values: list[Message], report: Report) -> Message:
    try:
        report("Starting TensorFlow", None)
        _start_tensorflow(job.details["devices"])
        if job.do == "profile":
            return _profile(job, report)
        if job.do == "export":
            return _export(job, values)
        if job.do == "data-parallel":
            return _time_mirrored(job, report)
        return _run(job, values, report)
    except BaseException as error:
        if not isinstance(error, EnplaceError) and is_out_of_memory(error):
            error = DoesNotFitError(describe_out_of_memory(str(error)))
        return framework_failure(error, "TensorFlow", first_line(error))


def _start_tensorflow(devices: str) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # oneDNN's kernels are not the ones that the graph names, and they fuse ops that a plan orders.
    # A user's own process keeps them (:func:`enplace.apply`).
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    import_framework(FRAMEWORK, devices, first_line)
    if redirect.copies is not None:
        importlib.import_module("enplace.frameworks.tensorflow.redirect").redirect_tensorflow()


def _profile(job: Message, report: Report) -> Message:
    from enplace.frameworks.tensorflow.devices import parse_devices
    from enplace.frameworks.tensorflow.measure.profile import graph_profile, profile_step
    from enplace.frameworks.tensorflow.measure.recorded_trace import profile_of_trace
    from enplace.frameworks.tensorflow.open.load import load

    details = job.details
    source = source_from_json(details["source"])
    if source.kind == "trace":
        return profile_answer(profile_of_trace(source.path), job)
    devices = parse_devices(details["devices"])  # quick to refuse
    step = load(source, report)
    if details["steps"]:
        profile = profile_step(step, devices, details["steps"], details["warm_ups"], report)
    else:
        profile = graph_profile(step, devices)
    return profile_answer(profile, job, details["devices"])


def _export(job: Message, values: list[Message]) -> Message:
    from enplace.frameworks.tensorflow.placed_saved_model import placed_saved_model

    details = job.details
    profile = codecs.profile_from(values[0])
    problem = codecs.problem_from(profile, details["problem"])
    source = source_from_json(details["source"])
    content = placed_saved_model(source, problem, codecs.plan_from(job))
    return Message(DONE, {}, {"saved_model": np.frombuffer(content, dtype=np.uint8)})


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


def _run(job: Message, values: list[Message], report: Report) -> Message:
    from enplace.frameworks.tensorflow.apply.run import run_plan
    from enplace.frameworks.tensorflow.devices import parse_devices
    from enplace.frameworks.tensorflow.open.load import load

    details = job.details
    devices = parse_devices(details["devices"])
    profile = codecs.profile_from(values[0])
    step = load(source_from_json(details["source"]), report)
    gc.freeze()  # what the script has built stays; looking through it took a tenth of what follows
    problem, plan = codecs.problem_from(profile, details["problem"]), codecs.plan_from(job)
    wishes = details["wishes"]
    planned = unsplit_names(profile.op_names, problem.splits)
    check_same_graph({n.name for n in step.graph_def.node}, planned, is_whole(profile))
    return run_message(
        run_plan(
            step,
            problem,
            plan,
            devices,
            details["steps"],
            ordered=wishes.get(ORDER.key, True),
            compare=details["compare"],
            repeat=details["repeat"],
            microbatches=find_microbatches(wishes),
            progress=report,
        )
    )
