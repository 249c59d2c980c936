"""Check the files that a command is to write, before its work."""

from __future__ import annotations

import os
from collections.abc import Sequence

from enplace.errors import FileError, file_error


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


def check_folder(output: str) -> None:
    """Refuse, before the work, a folder that cannot be made, or that has other files in it.

    Raises
    ------
    FileError
        With the folder and the fix.
    """
    parent = os.path.dirname(os.path.abspath(output))
    if not output or not os.path.isdir(parent):
        raise FileError(f"{output}: there is no folder '{parent}'; create it first")
    if os.path.isdir(output) and not os.path.islink(output) and not os.listdir(output):
        return
    if os.path.lexists(output):
        raise FileError(f"{output}: is there already; name a new folder, or an empty one")
    if not os.access(parent, os.W_OK):
        raise FileError(f"{output}: cannot write there; choose a folder you may write to")


def _check_output(output: str, inputs: Sequence[str]) -> None:
    if output in ("", "-"):
        raise FileError(f"'{output}' is not a file; name one, or /dev/stdout for the terminal")
    folder = os.path.dirname(output) or "."
    if not os.path.isdir(folder):
        raise FileError(f"{output}: there is no folder '{folder}'; create it first")
    if os.path.isdir(output):
        raise FileError(f"{output}: is a folder; name a file in it")
    if not os.access(folder, os.W_OK):
        raise FileError(f"{output}: cannot write there; choose a folder you may write to")
    try:
        os.stat(output)
    except FileNotFoundError:
        return
    except OSError as error:
        raise file_error(error) from None
    if any(os.path.exists(i) and os.path.samefile(output, i) for i in inputs):
        raise FileError(f"{output}: is also an input; write to another file")
