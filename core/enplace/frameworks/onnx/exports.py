"""The formats that hold a plan for an ONNX model as ONNX files; does not import ``onnx``.

The worker writes them, from the file that the model was imported from.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from enplace.errors import FIXES, FileError
from enplace.files.writing import temporary_name
from enplace.processes.wire import Message
from enplace.values.result import Result
from enplace.values.splits import rewriting
from enplace.writers.registry import Exporter

if TYPE_CHECKING:
    from enplace.frameworks.source import Source

MODEL, STAGES = "onnx", "onnx-stages"


def why_not(result: Result) -> str:
    """Say what the format cannot hold, or that the model's file is gone; empty if all is well."""
    plan, measured = result.plan, result.schedule.problem.measured_profile.measured
    path = measured.source.get("path", "")
    if plan.splits:
        return f"the plan {rewriting(plan.splits)}, and the file has each once and whole"
    if plan.replicas:
        return "several devices share a stage of the plan, and an ONNX file knows one for each op"
    if not path or not os.path.isfile(path):
        named = path or "that it was imported from"
        return f"the model's file {named} is needed, and not there; import the model again"
    return ""


def save_model(result: Result, path: str) -> Sequence[str]:
    """Write the model with the device and the stage of each node."""
    source = _source(result)
    if os.path.exists(path) and os.path.samefile(path, source.path):
        raise FileError(f"{path}: is the model itself, which stays as it is; name another file")
    return _write(result, source, {"format": MODEL, "output": os.path.abspath(path)})


def save_stages(result: Result, path: str) -> Sequence[str]:
    """Write a folder with a model for each stage, and ``stages.json``."""
    folder = Path(os.path.abspath(path))
    with _new_folder(folder) as place:
        details = {"format": STAGES, "output": str(place), "folder": str(folder)}
        return _write(result, _source(result), details)


def _source(result: Result) -> Source:
    from enplace.frameworks.source import source_from_json

    return source_from_json(dict(result.schedule.problem.measured_profile.measured.source))


def _write(result: Result, source: Source, details: dict[str, str]) -> Sequence[str]:
    from enplace.frameworks.jobs import do_work

    problem = result.schedule.problem
    job = {
        **details,
        "source": source.to_json(),
        "sizes": dict(problem.measured_profile.measured.config.get("sizes", {})),
        "ops": list(problem.profile.op_names),
        "devices": result.plan.device.tolist(),
        "names": [device.name for device in problem.cluster.devices],
    }
    notes: Sequence[str] = do_work(source, (Message("export", job),)).details["notes"]
    return notes


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Fill a folder under another name, and give it its own when all is there."""
    place = folder.with_name(temporary_name(folder.name))
    try:
        place.mkdir()
        yield place
        os.replace(place, folder)  # an empty folder may be there
    except OSError as error:
        fix = FIXES.get(error.errno or 0, "name a new folder, in one that you may write to")
        raise FileError(f"{folder}: cannot write: {error.strerror}; {fix}") from None
    finally:
        shutil.rmtree(place, ignore_errors=True)


EXPORTERS = (
    Exporter(
        MODEL, "ONNX model with devices", ".onnx", save=save_model, why_not=why_not, mark="enplace"
    ),
    Exporter(
        STAGES,
        "ONNX model for each stage",
        ".stages",
        save=save_stages,
        is_folder=True,
        why_not=why_not,
    ),
)
