"""Scripts that use TensorFlow, each in a process of its own that need not import it.

One process imports TensorFlow, and starts nothing of it; every script runs in a fork of that
process. Tests of what happens before TensorFlow is imported start Python anew instead.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from types import ModuleType
from typing import NoReturn


class WarmPython:
    """A process that has imported TensorFlow, Keras and ``enplace.apply``; ends with a context."""

    def __enter__(self) -> WarmPython:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """Do what Python does with these words: ``-c``, code; or a script."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(folder), *words]) + "\n")
        self._process.stdin.flush()
        return subprocess.CompletedProcess(words, *json.loads(self._process.stdout.readline()))


def serve() -> None:
    """Run a script for each line of standard input; answer with its status and its output."""
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    import enplace.frameworks.tensorflow.apply  # noqa: F401

    for line in sys.stdin:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            child = os.fork()
            if not child:
                os.dup2(out.fileno(), 1)
                os.dup2(errors.fileno(), 2)
                _run(*json.loads(line))
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            texts = []
            for file in (out, errors):
                file.seek(0)
                texts.append(file.read().decode())
            print(json.dumps([status, *texts]), flush=True)


def _run(folder: str, *words: str) -> NoReturn:
    os.chdir(folder)
    is_script = words[0] != "-c"
    code = Path(words[0]).read_text(encoding="utf-8") if is_script else words[1]
    sys.path[0] = str(Path(words[0]).parent) if is_script else ""
    sys.argv = [words[0]]
    main = ModuleType("__main__")
    if is_script:
        main.__file__ = words[0]
    sys.modules |= {"__main__": main, "warm": sys.modules["__main__"]}
    status = 0
    try:
        exec(compile(code, words[0] if is_script else "<string>", "exec"), vars(main))
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve()
