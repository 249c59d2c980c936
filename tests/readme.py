"""The commands in the README, for tests that run them."""

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
TENSORFLOW = "\n### TensorFlow\n"
PROGRESS = re.compile(r"enplace: .*, [\d.]+( min \d+)? s")


def commands(with_tensorflow: bool) -> list[str]:
    """Return the ``enplace`` lines before, or in, the section on TensorFlow, without comments."""
    before, _, after = README.read_text(encoding="utf-8").partition(TENSORFLOW)
    lines = (after if with_tensorflow else before).splitlines()
    typed = [line.partition("#")[0].strip() for line in lines if line.startswith("    enplace ")]
    return [line for line in typed if not line.startswith("enplace studio")]


def limit_search(command: str) -> str:
    """End a search of the default method after one round instead of its time limit."""
    searches = command.startswith("enplace place ") and "--method" not in command
    return f"{command} --rounds 1" if searches else command


def without_progress(stderr: str) -> str:
    """Return what a command wrote to stderr besides progress, of which slow machines see more."""
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if not PROGRESS.fullmatch(line.rstrip("\n")))


def shell(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess:
    """Run a command in a shell."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
