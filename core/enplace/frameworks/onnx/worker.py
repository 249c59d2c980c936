"""The handler that reads an ONNX model, in a worker: the library may crash on a hostile file."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from enplace.errors import EnplaceError, FileError
from enplace.frameworks.onnx.exports import STAGES
from enplace.frameworks.onnx.framework import FRAMEWORK
from enplace.frameworks.roofline import find_gpu
from enplace.frameworks.source import Source, source_from_json
from enplace.frameworks.work import profile_answer, receive_job
from enplace.processes.main import Connection, done
from enplace.processes.wire import Message
from enplace.values.profile import Profile


def work(connection: Connection) -> Message:
    """Do the job that is received, see :mod:`enplace.frameworks.jobs`: a profile or an export."""
    _, job = receive_job(connection)
    source = source_from_json(job.details["source"])
    if job.do not in ("profile", "export"):
        raise EnplaceError(f"{source.path}: {FRAMEWORK.kind(source.kind).why_no_run}")
    if importlib.util.find_spec("onnx") is None:
        raise EnplaceError(f"ONNX is not installed; run: {FRAMEWORK.install_command}")
    connection.report("Reading the graph", None)
    if job.do == "export":
        return done(notes=export(source, job.details))
    return profile_answer(profile_of(source), job)


def export(source: Source, details: Mapping[str, Any]) -> list[str]:
    """Write a model with a plan, see :mod:`enplace.frameworks.onnx.exports`; limits this process.

    Raises
    ------
    EnplaceError
        One line with the file and the fix.
    """
    from enplace.frameworks.onnx.exporting import Export
    from enplace.frameworks.onnx.limits import EXPORT_CPU_S, limit_reader

    limit_reader(source.path, EXPORT_CPU_S)
    plan = (details[key] for key in ("sizes", "ops", "devices", "names"))
    made = Export(source.path, source.text("branch"), *plan)
    output = Path(details["output"])
    if details["format"] == STAGES:
        return made.write_stages(output, Path(details["folder"]))
    return made.write_model(output)


def profile_of(source: Source) -> Profile:
    """Estimate the profile of a model; limits this process.

    Raises
    ------
    EnplaceError
        One line with the file, the place in it and the fix.
    """
    from enplace.files.reading import naming
    from enplace.frameworks.onnx.graph import read_graph
    from enplace.frameworks.onnx.limits import limit_reader
    from enplace.frameworks.onnx.profile import estimated_profile

    limit_reader(source.path)
    with naming(source.path):
        try:
            sizes = dict(source.options.get("sizes", ()))
            graph = read_graph(source.path, source.batch_size, sizes, source.text("branch"))
            gpu, notes = find_gpu(source.text("gpu"), "--device")
            found = estimated_profile(source.name, graph, gpu)
            measured = replace(found.measured, notes=(*found.measured.notes, *notes))
            return replace(found, measured=measured)
        except MemoryError:
            raise FileError(
                "takes far more memory than its size, or than the limit of this shell (ulimit -v); "
                "do not trust it"
            ) from None
