"""Scripts that use TensorFlow, each in a process of its own that need not import it.

One process imports TensorFlow, and starts nothing of it; every script runs in a fork of that
process, and workers that it starts are forks too. Tests of what happens before TensorFlow is
imported start Python anew instead, and so do pages of the manual that measure a script.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

from forking import end_after, fork_workers

QUIET = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
}
"""TensorFlow on the CPU, with the kernels that a graph names."""

LONGEST_S = 300
"""A script that takes longer hangs."""


class WarmPython:
    """A process that has imported TensorFlow, Keras and ``enplace.apply``; ends with a context."""

    def __enter__(self) -> WarmPython:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | QUIET,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """Do what Python does with these words: ``-c``, code; ``-m``, a module; or a script."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(folder), os.environ | QUIET, *words]) + "\n")
        self._process.stdin.flush()
        return subprocess.CompletedProcess(words, *json.loads(self._process.stdout.readline()))


def serve() -> None:
    """Run a script for each line of standard input; answer with its status and its output."""
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    import enplace.frameworks.tensorflow.apply.apply_plan
    import enplace.placers  # noqa: F401

    fork_workers(pytest.MonkeyPatch(), nested=True)
    gc.freeze()  # or each fork would copy all that is imported when it collects garbage
    for line in sys.stdin:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            child = os.fork()
            if not child:
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(out.fileno(), 1)
                os.dup2(errors.fileno(), 2)
                _run(*json.loads(line))
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            texts = []
            for file in (out, errors):
                file.seek(0)
                texts.append(file.read().decode())
            print(json.dumps([status, *texts]), flush=True)
    os._exit(0)  # to take all that apart takes a second


def _run(folder: str, environment: dict[str, str], *words: str) -> NoReturn:
    signal.alarm(LONGEST_S)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    sys.argv = [*words[words[0] == "-m" :]]
    sys.path[0] = "" if words[0].startswith("-") else str(Path(words[0]).parent)

    def run() -> None:
        if words[0] == "-m":
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            _run_code(*words)

    end_after(run, atexit._run_exitfuncs)


def _run_code(name: str, *words: str) -> None:
    main = ModuleType("__main__")
    code, title = words[0] if name == "-c" else Path(name).read_text(encoding="utf-8"), "<string>"
    if name != "-c":
        main.__file__ = title = name
    sys.modules |= {"__main__": main, "warm": sys.modules["__main__"]}
    exec(compile(code, title, "exec"), vars(main))


if __name__ == "__main__":
    serve()
