"""No process of the studio runs code from the current folder."""

import subprocess

from enplace.processes.worker import python_module, safe_environment
from enplace_studio.jobs import solver as jobs
from evil_folder import evil_folder, first_message

__all__ = ["evil_folder"]


def test_the_solver_runs_no_code_from_the_current_folder(evil_folder):
    assert first_message(jobs.PROGRAM).do == "hello"
    assert not evil_folder.exists()


def test_the_studio_runs_no_code_from_the_current_folder(evil_folder):
    command = python_module("enplace_studio", "--help")
    done = subprocess.run(command, env=safe_environment(), capture_output=True, text=True)
    assert "enplace-studio" in done.stdout
    assert not evil_folder.exists()
