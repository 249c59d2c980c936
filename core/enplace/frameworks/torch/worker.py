"""The handler that runs a PyTorch script, in a worker; ``torch`` is imported late."""

from __future__ import annotations

import importlib
import os
import re
import sys
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from enplace.errors import DoesNotFitError, EnplaceError, FileError
from enplace.frameworks.jobs import RUN_PLAIN
from enplace.frameworks.measured import run_message
from enplace.frameworks.microbatches import find_microbatches
from enplace.frameworks.roofline import GPUS, find_gpu
from enplace.frameworks.source import Source, source_from_json
from enplace.frameworks.torch.error_text import (
    describe_out_of_memory,
    first_line,
    is_out_of_memory,
    lacking,
)
from enplace.frameworks.torch.framework import FRAMEWORK
from enplace.frameworks.wishes import CUT_BATCH
from enplace.frameworks.work import (
    framework_failure,
    import_framework,
    profile_answer,
    receive_job,
)
from enplace.processes import redirect
from enplace.processes.codecs import plan_from, problem_from, profile_from
from enplace.processes.main import Connection
from enplace.processes.wire import Message
from enplace.processes.worker import Report
from enplace.system import is_busy
from enplace.values.measurement import Measurement
from enplace.values.profile import Profile

SHORT_SPIN = "GOMP_SPINCOUNT", "300"
"""Lets threads of OpenMP sleep after some 10 microseconds of waiting for each other. On a busy
machine, each wait would otherwise take a turn of milliseconds. On an idle one they keep their way,
which is faster by up to a half where ops are tiny."""

if TYPE_CHECKING:
    from enplace.frameworks.torch.record.recording import Recorded


def work(connection: Connection) -> Message:
    """Do the job that is received; see :mod:`enplace.frameworks.jobs`."""
    values, job = receive_job(connection)
    try:
        if job.do == "profile":
            return profile_answer(_profile(job, connection.report), job, job.details["devices"])
        if job.do in ("run", RUN_PLAIN):
            return _run(job, values, connection.report)
        raise EnplaceError("")  # DDP is never timed: the row of its prediction says so
    except BaseException as error:
        if not isinstance(error, EnplaceError) and is_out_of_memory(error):
            error = DoesNotFitError(describe_out_of_memory(str(error)))
        return framework_failure(error, "PyTorch", first_line(error))


def _profile(job: Message, report: Report) -> Profile:
    details = job.details
    source = source_from_json(details["source"])
    if details["batch_sizes"]:
        raise EnplaceError(
            f"{source.path}: a batch is estimated from smaller ones for TensorFlow only; use "
            f"--estimate"
        )
    report("Starting PyTorch", None)
    if is_busy() and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault(*SHORT_SPIN)
    _start(details["devices"])
    if source.kind == "pt2":
        return _exported(source, report)
    from enplace.frameworks.torch.measure.measure import estimated_profile, measured_profile
    from enplace.frameworks.torch.open.fake import record_on_fake_tensors
    from enplace.frameworks.torch.open.scripts import record_script
    from enplace.frameworks.torch.pipelines.first_rows import first_rows

    parts = int(source.options.get(CUT_BATCH.key) or 0)
    with first_rows(parts) if parts else nullcontext():
        if gpu := source.text("estimate"):
            found = record_on_fake_tensors(source, report)
            return estimated_profile(source.name, found.step, GPUS[gpu], _facts(found))
        found = record_script(source, details["steps"], details["warm_ups"], report)
    return measured_profile(source.name, found.step, found.timing, _facts(found))


def _exported(source: Source, report: Report) -> Profile:
    """Estimate the profile of a program of ``torch.export``; limits this process."""
    from enplace.files.reading import naming
    from enplace.frameworks.limits import limit_worker
    from enplace.frameworks.torch.measure.measure import estimated_profile
    from enplace.frameworks.torch.open.exported import read_program
    from enplace.frameworks.torch.open.replay import record_program

    limit_worker(MORE_BYTES, CPU_S)
    report("Reading the graph", None)
    with naming(source.path):
        try:
            found = record_program(read_program(source.path), source, report)
            gpu, notes = find_gpu(source.text("estimate"), "--estimate")
            facts = _facts(found)
            facts = replace(facts, notes=(*facts.notes, *notes))
            return estimated_profile(source.name, found.step, gpu, facts)
        except MemoryError:
            raise FileError(
                "takes far more memory than any real program, or than the limit of this shell "
                "(ulimit -v); do not trust it"
            ) from None


MORE_BYTES, CPU_S = 3 << 30, 600
"""Memory and time that a program may take; those of Llama 70B take less than a tenth."""


def _run(job: Message, values: list[Message], report: Report) -> Message:
    """Run the script without the plan or, given the answer to that, with it."""
    details = job.details
    source, steps = source_from_json(details["source"]), details["steps"]
    if why := source.model_kind.why_no_run:
        raise EnplaceError(f"{source.path}: {why}")
    report("Starting PyTorch", None)
    _start(details["devices"])
    from enplace.frameworks.torch.pipelines.pipelines import check_pipeline, run_pipeline
    from enplace.frameworks.torch.run.matching import planned_devices
    from enplace.frameworks.torch.run.run import check_devices, run_placed, run_plain

    profile, *plain = values
    problem, plan = problem_from(profile_from(profile), details["problem"]), plan_from(job)
    wanted, devices = find_microbatches(details["wishes"]), details["devices"]
    if wanted is None:
        check_devices(problem, plan, devices)
    else:
        check_pipeline(problem, plan, wanted, devices)
    if job.do == RUN_PLAIN:
        planned = planned_devices(problem, plan)
        return run_plain(source, steps, report, planned, drops_out=wanted is None)
    answer = next(iter(plain), None)
    if wanted is not None:
        return run_message(run_pipeline(problem, plan, wanted, job, profile, answer, report))
    return run_message(run_placed(source, problem, plan, devices, steps, answer, report))


def _facts(found: Recorded) -> Measurement:
    import torch

    return Measurement(
        framework="torch",
        framework_version=torch.__version__,
        tf32=bool(torch.backends.cuda.matmul.allow_tf32),
        compiled=found.is_compiled,
        notes=found.about,
    )


def _redirect() -> None:
    """Lead the files that PyTorch and safetensors open themselves, if those of Python are led."""
    if redirect.copies is not None:
        native = importlib.import_module("torch._C")
        redirect.lead(native, "PyTorchFileWriter", "write")
        redirect.lead(native, "PyTorchFileReader", "read")
        if find_spec("safetensors"):
            files = importlib.import_module("safetensors")
            redirect.lead(files, "safe_open", "read")
            redirect.lead(files, "serialize_file", "", "write")


def _start(devices: str) -> None:
    import_framework(FRAMEWORK, devices, first_line)
    _redirect()
    check_imports()


def check_imports() -> None:
    """Import what works on PyTorch.

    Raises
    ------
    EnplaceError
        If this version of PyTorch lacks something that it needs.
    """
    for name in ("measure.measure", "open.replay", "run.run"):
        try:
            importlib.import_module(f"enplace.frameworks.torch.{name}")
        except (ImportError, AttributeError) as error:
            what = _MISSING.search(str(error))
            name = what[1] if what else first_line(error)
            raise EnplaceError(lacking(sys.modules["torch"].__version__, name)) from None


_MISSING = re.compile(r"(?:cannot import name|No module named|has no attribute) '([\w.]+)'")
