"""The handler that reads an ONNX model, in a worker: the library may crash on a hostile file."""

from __future__ import annotations

import importlib.util

from enplace.errors import EnplaceError, FileError
from enplace.frameworks.onnx.framework import FRAMEWORK
from enplace.frameworks.roofline import DEFAULT_GPU, GPUS
from enplace.frameworks.source import Source, source_from_json
from enplace.frameworks.work import profile_answer, receive_job
from enplace.processes.main import Connection
from enplace.processes.wire import Message
from enplace.values.profile import Profile


def work(connection: Connection) -> Message:
    """Do the job that is received, see :mod:`enplace.frameworks.jobs`; it can only be a profile."""
    _, job = receive_job(connection)
    source = source_from_json(job.details["source"])
    if job.do != "profile":
        raise EnplaceError(f"{source.path}: {FRAMEWORK.kind(source.kind).why_no_run}")
    if importlib.util.find_spec("onnx") is None:
        raise EnplaceError(f"ONNX is not installed; run: {FRAMEWORK.install_command}")
    connection.report("Reading the graph", None)
    return profile_answer(profile_of(source), job)


def profile_of(source: Source) -> Profile:
    """Estimate the profile of a model; limits this process.

    Raises
    ------
    EnplaceError
        One line with the file, the place in it and the fix.
    """
    from enplace.files.reading import naming
    from enplace.frameworks.onnx.graph import read_graph
    from enplace.frameworks.onnx.limits import limit_worker
    from enplace.frameworks.onnx.profile import estimated_profile

    limit_worker(source.path)
    with naming(source.path):
        try:
            sizes = dict(source.options.get("sizes", ()))
            graph = read_graph(source.path, source.batch_size, sizes, source.text("branch"))
            return estimated_profile(source.name, graph, GPUS[source.text("gpu") or DEFAULT_GPU])
        except MemoryError:
            raise FileError(
                "takes far more memory than its size, or than the limit of this shell (ulimit -v); "
                "do not trust it"
            ) from None
