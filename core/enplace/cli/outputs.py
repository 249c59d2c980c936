"""Check the files that a command is to write, before its work."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from enplace.errors import FileError


def check_outputs(outputs: Sequence[str | None], *inputs: str | None) -> None:
    """Refuse, before the work, a file that cannot be written, is an input, or is named twice.

    Raises
    ------
    FileError
        With the file and the fix.
    """
    given = [output for output in outputs if output is not None]
    for number, output in enumerate(given):
        _check_output(output, [i for i in inputs if i is not None])
        again = os.path.realpath(output) in map(os.path.realpath, given[:number])
        if again and (os.path.isfile(output) or not os.path.exists(output)):
            raise FileError(f"{output}: is named for two outputs; write them to two files")


def _check_output(output: str, inputs: Sequence[str]) -> None:
    if output in ("", "-"):
        raise FileError(f"'{output}' is not a file; name one, or /dev/stdout for the terminal")
    path = Path(output)
    if not path.parent.is_dir():
        raise FileError(f"{output}: there is no folder '{path.parent}'; create it first")
    if path.is_dir():
        raise FileError(f"{output}: is a folder; name a file in it")
    if not os.access(path.parent, os.W_OK):
        raise FileError(f"{output}: cannot write there; choose a folder you may write to")
    if any(path.exists() and os.path.exists(i) and path.samefile(i) for i in inputs):
        raise FileError(f"{output}: is also an input; write to another file")
