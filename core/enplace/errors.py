"""Errors that a person can act on: each names the place, the op or device, and the fix."""

from __future__ import annotations

import errno
import os
import sys
from traceback import walk_tb
from types import TracebackType

FIXES = {
    errno.EACCES: "change its permissions, or choose another file or folder",
    errno.ENOSPC: "free some space on the disk",
    errno.EFBIG: "allow larger files (ulimit -f)",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "choose a file that is not part of a cycle of links",
}
"""What to do about a fault of the system, by its number."""


NO_MEMORY = "not enough memory; choose a smaller input, or raise the limit (ulimit -v)"
FOLDER_IS_GONE = "the current folder is gone; change to one that exists"


_NO_MEMORY_WORDS = ("can't start new thread", "failed to map segment", "cannot allocate memory")
"""How the system says it where Python has no MemoryError for it, in lower case."""


def lacks_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that it comes from, says that memory does not suffice."""
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        if any(words in str(error).lower() for words in _NO_MEMORY_WORDS):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


class EnplaceError(Exception):
    """Base of all errors that are caused by the input, not by a fault of the program."""


class ProfileError(EnplaceError):
    """The graph or its costs cannot be used."""


class EmptyProfileError(ProfileError):
    """The graph has no ops."""


class NameTooLongError(ProfileError):
    """An op name, or another text of the profile, is longer than frameworks allow."""


class DuplicateOpError(ProfileError):
    """Two ops have the same name."""


class DanglingEdgeError(ProfileError):
    """An edge leads from or to an op that does not exist."""


class TensorMismatchError(ProfileError):
    """Edges of one tensor disagree about its bytes."""


class CycleError(ProfileError):
    """The graph has a cycle, whose ops ``cycle`` names."""

    def __init__(self, message: str, cycle: str = "") -> None:
        super().__init__(message)
        self.cycle = cycle


class CostError(ProfileError):
    """A time or a byte count is NaN, negative or absurd."""


class ClusterError(EnplaceError):
    """The description of the machine cannot be used."""


class ProblemError(EnplaceError):
    """Profile, cluster and constraints do not fit together."""


class UnplaceableOpError(ProblemError):
    """An op cannot run on any device of the cluster."""


class PinConflictError(ProblemError):
    """Pins contradict each other, a colocation group or a forbidden device."""


class OrderError(ProblemError):
    """Ops cannot run in the order that a person wants."""


class DoesNotFitError(ProblemError):
    """No placement fits in memory."""


class PlanError(EnplaceError):
    """A plan does not belong to the problem or breaks one of its constraints."""


class SplitError(PlanError):
    """An op cannot be split as a plan asks."""


class PipelineError(PlanError):
    """A model cannot run as a pipeline of micro-batches."""


class DeadlockError(PlanError):
    """The order of a plan makes ops wait for each other in a cycle."""


class FileError(EnplaceError):
    """A file cannot be read or written."""


def file_error(error: OSError, place: str = "") -> FileError:
    """Say in one line which file the system refused, why, and what to do.

    Parameters
    ----------
    place : str
        Named where the system names no file.
    """
    place = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else place
    why = error.strerror or str(error) or type(error).__name__
    fix = FIXES.get(error.errno or 0, "check the file and its folder")
    return FileError(f"{place}: {why}; {fix}" if place else f"{why}; {fix}")


def check_name(path: str | os.PathLike[str], name: str = "path") -> None:
    """Refuse what no file can be called.

    Raises
    ------
    EnplaceError
        The line names the argument.
    """
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        encoded = b""
    if not encoded or b"\0" in encoded:
        raise EnplaceError(f"{name} is {os.fspath(path)!r:.60}; use a file's name")


class ReaderGoneError(FileError):
    """The program at the other end of a pipe has ended."""


class CancelledError(EnplaceError):
    """The user stopped the work before there was a result."""


class EnplaceWarning(UserWarning):
    """A fact to know about a file that can be read nevertheless."""


def show_in_one_line() -> None:
    """Let an :class:`EnplaceError` that ends a script show as one line, without a traceback.

    A script, or a library, that shows errors in a way of its own keeps it.
    """
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, EnplaceError):
        sys.__excepthook__(kind, error, trace)
        return
    script = getattr(sys.modules["__main__"], "__file__", None)
    lines = [n for frame, n in walk_tb(trace) if frame.f_code.co_filename == script]
    place = f"{os.path.basename(script)}, line {lines[-1]}: " if script and lines else ""
    text = str(error)
    if text:  # else another process has told it
        print(f"enplace: {'' if text.startswith(place) else place}{text}", file=sys.stderr)
