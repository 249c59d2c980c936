"""No worker runs code from the current folder."""

import os
import subprocess
import sys

import pytest

from enplace.frameworks import tuning_process
from enplace.frameworks.tensorflow.framework import FRAMEWORK
from enplace.processes.worker import handler_program, python_module, safe_environment
from evil_folder import EVIL, end_of, evil_folder

SOLVERS = (
    "cpsat_process:solve",
    *(f"program_process:solve_by_{name}" for name in ("highs", "cp_sat", "pulp")),
)
PROGRAMS = {
    **{name: handler_program(f"enplace.solvers.{name}", "solver") for name in SOLVERS},
    "worker": FRAMEWORK.worker,
    "server": FRAMEWORK.server,
    "tuning": tuning_process.PROGRAM,
}

__all__ = ["evil_folder"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_worker_imports_nothing_from_the_current_folder(name, evil_folder):
    """The job is invalid, so each handler is imported and then fails."""
    job = {"batch_sizes": [1], "source": {}}
    answer, lines = end_of(PROGRAMS[name], job, job)
    assert EVIL not in lines
    assert answer.do == "failed"
    assert "Error: " in answer.details["why"] or "source" in answer.details["why"]
    assert not evil_folder.exists()


def test_plain_python_does_import_from_the_current_folder(evil_folder):
    """This shows that the other tests can fail."""
    subprocess.run([sys.executable, "-m", "this"], capture_output=True, check=False)
    subprocess.run([sys.executable, "-c", "import numpy"], capture_output=True, check=False)
    assert evil_folder.exists()


def test_numba_takes_no_settings_from_the_current_folder(tmp_path):
    (tmp_path / ".numba_config.yaml").write_text("cache_dir: cache\n")
    shown = {}
    for module in ("numba", "enplace.compiling"):
        code = f"import {module}; from numba.core import config; print(repr(config.CACHE_DIR))"
        command = [sys.executable, "-P", "-c", code]
        environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        shown[module] = done.stdout.strip()
    assert shown == {"numba": "'cache'", "enplace.compiling": "''"}


@pytest.mark.parametrize("content", ["a: [", "- 1", "!!python/object/apply:os.abort []"])
def test_a_broken_settings_file_of_numba_does_no_harm(tmp_path, content):
    (tmp_path / ".numba_config.yaml").write_text(content)
    command = [sys.executable, "-P", "-c", "import enplace.placers"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_a_module_is_started_in_isolation(evil_folder):
    command = python_module("enplace", "--version")
    done = subprocess.run(command, env=safe_environment(), capture_output=True, text=True)
    assert done.stdout.startswith("enplace")
    assert not evil_folder.exists()


def test_only_absolute_folders_are_kept_in_pythonpath(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ":/usr/lib/mine:.:there")
    monkeypatch.setenv("PYTHONHOME", "here")
    monkeypatch.setenv("PYTHONSTARTUP", "startup.py")
    monkeypatch.setenv("PYTHONWARNINGS", "ignore::evil.Warning")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert safe_environment()["PYTHONPATH"] == "/usr/lib/mine"
    assert safe_environment()["PYTHONHASHSEED"] == "7"
    for name in ("PYTHONHOME", "PYTHONSTARTUP", "PYTHONWARNINGS"):
        assert name not in safe_environment()
    monkeypatch.setenv("PYTHONPATH", ".")
    assert "PYTHONPATH" not in safe_environment()
