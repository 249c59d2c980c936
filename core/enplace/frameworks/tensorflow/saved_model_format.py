"""The export of a plan as a SavedModel with its devices; does not import TensorFlow."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from enplace.errors import FileError
from enplace.values.result import Result

_OTHER = ("saved_model.pb", "saved_model.pbtxt", "fingerprint.pb")
"""Files of a SavedModel that tell of its functions."""


def why_no_saved_model(result: Result) -> str:
    """Say why a plan is not one for a signature of a SavedModel."""
    source = result.schedule.problem.measured_profile.measured.source
    if source.get("kind") != "saved-model":
        return "this writes a SavedModel, and the profile is not one of a SavedModel"
    if source.get("loss"):
        return (
            "the plan is for a training step, and a SavedModel serves its signature; profile the "
            "folder without --loss"
        )
    return ""


def write_saved_model(result: Result, path: str) -> list[str]:
    """Have a worker copy the SavedModel with the plan's devices; return lines for people.

    Raises
    ------
    TrustError
        If the user has not allowed the model's code to run.
    FileError
        If the folder cannot be written.
    """
    from enplace.frameworks.jobs import do_work, export_job
    from enplace.frameworks.source import source_from_json
    from enplace.frameworks.trust import TrustError, may_run

    problem, plan = result.schedule.problem, result.plan
    source = source_from_json(problem.measured_profile.measured.source)
    if not may_run(source, brought=False):
        raise TrustError(
            f"{source.path}: this opens the model, which may run code; if you trust it, add --trust"
        )
    done = do_work(source, export_job(source, problem, plan))
    folder, content = Path(os.path.abspath(path)), done.arrays["saved_model"].tobytes()
    try:
        _copy(Path(source.path), content, folder)
    except OSError as error:
        raise FileError(f"{path}: cannot write: {error.strerror}; choose another folder") from None
    return ["The server needs the plan's devices, and chooses the order of the ops."]


def _copy(original: Path, content: bytes, folder: Path) -> None:
    """Copy the folder beside its place with other content, then move it there as a whole."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as beside:
        copy = Path(beside) / folder.name
        shutil.copytree(original, copy, ignore=shutil.ignore_patterns(*_OTHER))
        (copy / "saved_model.pb").write_bytes(content)
        if folder.is_dir():
            folder.rmdir()  # it is empty
        copy.rename(folder)
