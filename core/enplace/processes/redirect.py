"""Lead what a process writes to a scratch folder, where no overlay can be mounted.

Python's common functions that take a path are replaced: what changes a file gets a copy of it in
the scratch folder, and what reads one gets that copy if there is one. ``_TABLE`` says which
argument of which function is what; a framework adds functions of its libraries with :func:`lead`.
Whatever else Python does to a file outside of the scratch is refused: Python tells a hook of each
such call before it does it (:func:`sys.addaudithook`), whichever function makes it. On Linux,
Landlock then refuses most of what native code and child processes write elsewhere.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import inspect
import io
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from enplace.processes.scratch import GONE, SHARED, UPPER, WAY, compiled_code, is_in
from enplace.text import UNPRINTABLE

_raw = {name: getattr(os, name) for name in dir(os) if callable(getattr(os, name))}
_open = io.open

_DEVICES = ("/dev", "/proc", "/sys")
_MOST_LINKS = 40
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_ADD_RULE, _RESTRICT, _CREATE = 445, 446, 444
_NO_NEW_PRIVILEGES = 38
_WRITES = 1 << 1 | sum(1 << bit for bit in range(4, 13))
_MOVES, _TRUNCATES = 1 << 13, 1 << 14
_REFUSES_TRUNCATION = 3
"""System calls, rights and a version of Landlock; see its manual page."""


def _lexists(path: str) -> bool:
    try:
        _raw["lstat"](path)
    except (OSError, ValueError):
        return False
    return True


def _isdir(path: str) -> bool:
    try:
        return stat.S_ISDIR(_raw["stat"](path).st_mode)
    except (OSError, ValueError):
        return False


class Copies:
    """A view of all files, in which some are copies, and some are gone.

    Parameters
    ----------
    folder : str
        Where the copies are.
    exempt : sequence of str
        Folders whose files are used as they are.
    """

    def __init__(self, folder: str, exempt: Sequence[str]) -> None:
        self._upper = folder
        self._exempt = (*exempt, *_DEVICES)
        self._gone: set[str] = set()

    def whole(self, path: Any) -> str | None:
        """Return the absolute path, through no link to a folder; None to use the file as it is."""
        if not isinstance(path, str | bytes | os.PathLike):  # an open file
            return None
        text = os.fsdecode(path)
        if "://" in text or text in ("", ":memory:") or text.startswith("file:"):
            return None
        found = self.original(os.path.normpath(os.path.join(_raw["getcwd"](), text)))
        if self.is_exempt(found):
            return None
        parent, name = os.path.split(found)
        found = os.path.join(self.followed(parent), name)
        return None if self.is_exempt(found) else found

    def is_exempt(self, path: str) -> bool:
        """Return whether a file is used as it is."""
        return is_in(path, self._exempt) and not is_in(path, [SHARED])

    def followed(self, path: str) -> str:
        """Return what a path leads to, with the links that this view has.

        Raises
        ------
        OSError
            If these are more than Linux follows: a folder may hold a link to itself.
        """
        links = 0
        drive, rest = os.path.splitdrive(path)
        found = drive + os.sep
        parts = [part for part in rest.split(os.sep) if part]
        while parts:
            found = os.path.join(found, parts.pop(0))
            target = self._target(found)
            if target is not None and not self.is_exempt(found):
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                whole = os.path.normpath(os.path.join(os.path.dirname(found), target))
                drive, rest = os.path.splitdrive(self.original(whole))
                found, parts = drive + os.sep, [p for p in rest.split(os.sep) if p] + parts
        return found

    def _target(self, path: str) -> str | None:
        try:
            return os.fsdecode(_raw["readlink"](self.seen(path)))
        except (OSError, ValueError):
            return None

    def original(self, path: str) -> str:
        """Return the path of which this is the copy: a script may stand in a folder that is one."""
        if not is_in(path, [self._upper]):
            return path
        rest = path.removeprefix(self._upper).lstrip(os.sep)
        drive, _, inner = rest.partition(os.sep) if os.name == "nt" else ("", "", rest)
        return f"{drive}:{os.sep}{inner}" if drive else f"{os.sep}{inner}"

    def copy_of(self, path: str) -> str:
        drive, rest = os.path.splitdrive(path)
        return os.path.join(self._upper, *filter(None, (drive.rstrip(":"), rest.lstrip("/\\"))))

    def is_hidden(self, path: str) -> bool:
        """Return whether the original is gone."""
        return any(is_in(path, [gone]) for gone in self._gone)

    def seen(self, path: str) -> str:
        """Return where a file is read."""
        copy = self.copy_of(path)
        return copy if _lexists(copy) or self.is_hidden(path) else path

    def made(self, path: str, content: bool = True) -> str:
        """Return where a file may be written: in its copy, which has the original's content."""
        copy, folder = self.copy_of(path), os.path.dirname(path)
        while not _isdir(self.seen(folder)):  # then whatever writes it fails, or makes that
            folder = os.path.dirname(folder)
        self._make_folder(folder)
        if content and not _lexists(copy) and not self.is_hidden(path) and _lexists(path):
            self._copy(path, copy)
        return copy

    def forget(self, path: str) -> None:
        """Hide the original."""
        if _lexists(path):
            self._gone.add(path)
            with _open(os.path.join(os.path.dirname(self._upper), GONE), "a") as file:
                file.write(f"{path}\0")

    def names(self, path: str) -> list[str]:
        """List what a folder holds."""
        copy = self.copy_of(path)
        has_copy = _isdir(copy)
        found = set(_raw["listdir"](copy)) if has_copy else set()
        if not has_copy or (_isdir(path) and not self.is_hidden(path)):
            old = _raw["listdir"](self.copy_of(path) if self.is_hidden(path) else path)
            found |= {name for name in old if not self.is_hidden(os.path.join(path, name))}
        return sorted(found)

    def _make_folder(self, path: str) -> None:
        copy = self.copy_of(path)
        if _isdir(copy):
            return
        if os.path.dirname(path) != path:
            self._make_folder(os.path.dirname(path))
        with suppress(FileExistsError):
            _raw["mkdir"](copy)

    def _copy(self, path: str, copy: str) -> None:
        status = _raw["lstat"](path)
        if stat.S_ISDIR(status.st_mode):
            with suppress(FileExistsError):
                _raw["mkdir"](copy)
            for name in self.names(path):
                inner = self.copy_of(os.path.join(path, name))
                if not _lexists(inner):
                    self._copy(os.path.join(path, name), inner)
        elif stat.S_ISLNK(status.st_mode):
            _raw["symlink"](os.path.realpath(path), copy)
        elif stat.S_ISREG(status.st_mode):
            with _open(path, "rb") as old, _open(copy, "wb") as new:
                shutil.copyfileobj(old, new)
            _raw["utime"](copy, ns=(status.st_atime_ns, status.st_mtime_ns))


copies: Copies | None = None
"""The view of this process, if its files are led elsewhere."""

refuses = False
"""Whether the kernel then refuses other writes."""

may_shorten = True
"""Whether native code may then shorten a file: Landlock refuses that since Linux 6.2."""

_DENIED = re.compile(
    r"(?:^|[\s'\"])(/[^\n;]*?|[^\s'\";]+(?=;))['\"]?[;:,]? "
    r"(?:Permission denied|Operation not permitted)"
)
_NO_WRITE = ("Permission denied", "readonly database")
_LEAVES = "Enplace leaves your files as they are, and cannot lead"

ALLOW = "allow overlays (the manual's page on security says how)"
"""How to have no write refused."""


def why_refused(error: BaseException) -> str:
    """Say that Enplace has refused a write, and what to do; empty for other errors.

    It refuses what it cannot lead to a copy, which is no fault of the program's.
    """
    text = str(error)
    denied = isinstance(error, PermissionError) or any(each in text for each in _NO_WRITE)
    if copies is None or not denied:
        return ""
    named = _DENIED.search(text)
    path = getattr(error, "filename", None) or (named[1] if named else "")
    path = os.fsdecode(path) if isinstance(path, str | bytes) else ""
    if path and not _may_write(path):
        return ""
    said = str(getattr(error, "strerror", ""))
    reason = said if said.startswith(_LEAVES) else f"{_LEAVES} this write to a copy"
    place = f": {path}" if path else ""
    return UNPRINTABLE.sub(" ", f"{reason}{place}; {ALLOW}, or leave it out")


def _may_write(path: str) -> bool:
    """Return whether somebody could write a file, if Enplace let them."""
    place = path if _lexists(path) else os.path.dirname(os.path.abspath(path))
    return bool(_raw["access"](place, os.W_OK))


def redirect_files(folder: str) -> None:
    """Lead what this process writes to a folder, for as long as it lives."""
    global copies, refuses, may_shorten
    room = os.path.join(folder, "files")
    upper = os.path.join(room, UPPER)
    os.makedirs(upper)
    Path(room, WAY).write_text("/")
    private = [os.environ["TMPDIR"], os.path.dirname(folder), *compiled_code()]
    exempt = [os.path.realpath(path) for path in private] + private
    copies = Copies(upper, exempt)
    _replace_python_functions(copies)
    with suppress(ImportError):
        lead(importlib.import_module("sqlite3"), "connect", "change")
    sys.addaudithook(_refusing(copies))
    if sys.platform == "linux":  # elsewhere, these numbers are other system calls
        with suppress(OSError):
            may_shorten = _refuse_the_rest([*exempt, *_DEVICES]) < _REFUSES_TRUNCATION
            refuses = True


def lead(owner: Any, name: str, *how: str) -> None:
    """Let a function that takes paths see this process's view of them.

    Parameters
    ----------
    owner : module or class
        Where callers find the function.
    how : {"read", "write", "change", "look", "make", ""}
        For each of its first arguments: read, written anew, changed, or no path. A link is looked
        at or made itself; else, what it leads to counts.
    """
    assert copies is not None
    setattr(owner, name, _led(copies, getattr(owner, name), how))


def led_path(view: Copies, path: Any, way: str) -> Any:
    """Return a path as the view has it, of the type that was given."""
    whole = view.whole(path) if way else None
    if whole is None:
        return path
    if way in ("read", "write", "change"):
        whole = view.followed(whole)
    if way in ("read", "look"):
        found = view.seen(whole)
    else:
        found = view.made(whole, content=way == "change")
    return os.fsencode(found) if isinstance(path, bytes) else found


def _in_places(
    names: Sequence[str], n_paths: int, words: Sequence[Any], options: dict[str, Any]
) -> list[Any]:
    """Return arguments with the paths in their places, not by name nor from an open folder.

    Takes these out of ``options``.
    """
    paths = names[len(words) : n_paths]
    found = [*words, *(options.pop(name) for name in paths if name in options)]
    for key, at in (("src_dir_fd", 0), ("dst_dir_fd", 1), ("dir_fd", n_paths - 1)):
        folder = options.pop(key, None)
        if folder is not None and at < len(found):
            found[at] = os.path.join(_path_of(folder), os.fsdecode(found[at]))
    return found


def _names(usual: Any) -> list[str]:
    try:
        return [*inspect.signature(usual).parameters]
    except (TypeError, ValueError):  # it does not say
        return ["path"]


def _path_of(descriptor: int) -> str:
    return str(_raw["readlink"](f"/proc/self/fd/{descriptor}"))


_TABLE = {
    **dict.fromkeys(("access", "statvfs", "getxattr", "listxattr"), ("read",)),
    **dict.fromkeys(("lstat", "readlink"), ("look",)),
    **dict.fromkeys(("chmod", "utime", "truncate", "setxattr", "chown"), ("change",)),
    **dict.fromkeys(("mkfifo", "mknod"), ("make",)),
    "link": ("change", "make"),
    "symlink": ("", "make"),
}
"""What simple functions of ``os`` do with their paths."""


_OWN = ("posix", "nt", "importlib._bootstrap_external", "_frozen_importlib_external", __name__)
"""Modules that keep the usual functions: imports use them."""


def _replace_python_functions(view: Copies) -> None:
    """Replace functions in all modules that have them, as ``from os import rename`` does."""
    look, read = (("lexists", "islink"), ("exists", "isfile", "isdir", "getsize", "getmtime"))
    led = {name: _led(view, _raw[name], how) for name, how in _TABLE.items() if name in _raw}
    led |= {name: _led(view, getattr(os.path, name), ("look",)) for name in look}
    led |= {name: _led(view, getattr(os.path, name), ("read",)) for name in read}
    questions = (*look, "exists", "isfile", "isdir")
    led |= {name: _false_if_unreachable(led[name]) for name in questions}
    led |= {"stat": _led_stat(view), "open": _led_os_open(view), "scandir": _led_scandir(view)}
    led |= {name: _seeing(view, function, _raw[name]) for name, function in _FUNCTIONS.items()}
    usual = {id(_raw.get(name) or getattr(os.path, name)): each for name, each in led.items()}
    usual |= {id(_open): _led_open(view), id(_raw["getcwd"]): _led_getcwd(view)}
    for module in [*sys.modules.values()]:
        if getattr(module, "__name__", "") not in _OWN:
            for name, value in [*getattr(module, "__dict__", {}).items()]:
                if id(value) in usual:
                    setattr(module, name, usual[id(value)])
    importlib.reload(tempfile)  # its functions have them as defaults
    # What removes a tree by descriptors cannot be led.
    shutil._use_fd_functions = False  # type: ignore[attr-defined]


def _led_getcwd(view: Copies) -> Callable[[], str]:
    return lambda: view.original(_raw["getcwd"]())


def _led(view: Copies, usual: Any, how: Sequence[str]) -> Any:
    names = _names(usual)

    @wraps(usual, updated=())
    def led(*words: Any, **options: Any) -> Any:
        given = _in_places(names, len(how), words, options)
        first = [led_path(view, *pair) for pair in zip(given, how, strict=False)]
        return usual(*first, *given[len(how) :], **options)

    return led


def _false_if_unreachable(led: Any) -> Any:
    @wraps(led)
    def asked(*words: Any, **options: Any) -> Any:
        try:
            return led(*words, **options)
        except OSError:
            return False

    return asked


def _led_stat(view: Copies) -> Any:
    ways = {follow: _led(view, _raw["stat"], ("read" if follow else "look",)) for follow in (0, 1)}

    @wraps(_raw["stat"])
    def led(*words: Any, follow_symlinks: bool = True, **options: Any) -> Any:
        return ways[bool(follow_symlinks)](*words, follow_symlinks=follow_symlinks, **options)

    return led


def _led_open(view: Copies) -> Any:
    signature = inspect.signature(_open)

    @wraps(_open)
    def led(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        mode = given.get("mode", "r")
        if "x" in mode and (whole := view.whole(given["file"])) and _lexists(view.seen(whole)):
            raise FileExistsError(17, os.strerror(17), given["file"])
        way = "write" if "w" in mode or "x" in mode else "change"
        path = led_path(view, given["file"], "read" if mode.strip("btU") == "r" else way)
        return _open(**{**given, "file": path})

    return led


def _led_os_open(view: Copies) -> Any:
    usual = _raw["open"]

    @wraps(usual)
    def led(*words: Any, **options: Any) -> Any:
        return opened(*_in_places(("path",), 1, words, options), **options)

    def opened(path: Any, flags: int, mode: int = 0o777) -> int:
        whole = view.whole(path)
        if whole is None:
            return int(usual(path, flags, mode))
        if flags & os.O_EXCL and _lexists(view.seen(whole)):
            raise FileExistsError(17, os.strerror(17), path)
        if not flags & getattr(os, "O_NOFOLLOW", 0):
            whole = view.followed(whole)
        if not flags & _WRITING:
            return int(usual(view.seen(whole), flags, mode))
        is_there = flags & os.O_CREAT or _lexists(view.seen(whole))
        content = not flags & os.O_TRUNC
        found = view.made(whole, content) if is_there else whole
        return int(usual(found, flags | os.O_CREAT, mode))

    return led


def _seeing(view: Copies, function: Callable[..., Any], usual: Any) -> Any:
    """Give a function the view and the whole path, unless the file is used as it is."""
    n_paths, names = 2 if function is _rename else 1, _names(usual)

    @wraps(usual)
    def led(*words: Any, **options: Any) -> Any:
        path, *rest = _in_places(names, n_paths, words, options) or ["."]
        path = "." if path is None else path
        whole = view.whole(path)
        if whole is None and function is not _rename:
            return usual(path, *rest, **options)
        return function(view, path if whole is None else whole, *rest, **options)

    return led


def _missing(path: str) -> OSError:
    return FileNotFoundError(2, os.strerror(2), path)


def _mkdir(view: Copies, path: str, mode: int = 0o777) -> None:
    if _lexists(view.seen(path)):
        raise FileExistsError(17, os.strerror(17), path)
    _raw["mkdir"](view.made(path, content=False), mode)


def _rmdir(view: Copies, path: str) -> None:
    if not _isdir(view.seen(path)):
        raise _missing(path)
    if view.names(path):
        raise OSError(39, os.strerror(39), path)
    with suppress(FileNotFoundError):
        _raw["rmdir"](view.copy_of(path))
    view.forget(path)


def _remove(view: Copies, path: str) -> None:
    if not _lexists(view.seen(path)):
        raise _missing(path)
    if _isdir(view.seen(path)) and not stat.S_ISLNK(_raw["lstat"](view.seen(path)).st_mode):
        raise IsADirectoryError(21, os.strerror(21), path)
    with suppress(FileNotFoundError):
        _raw["remove"](view.copy_of(path))
    view.forget(path)


def _rename(view: Copies, path: str, to: Any) -> None:
    if (inside := view.whole(path)) and not _lexists(view.seen(inside)):
        raise _missing(path)
    source = view.made(inside) if inside else path
    _raw["replace"](source, led_path(view, to, "make"))
    if inside:
        view.forget(inside)


def _listdir(view: Copies, path: str) -> list[str]:
    path = view.followed(path)
    if not _isdir(view.seen(path)):
        raise _missing(path)
    return view.names(path)


def _chdir(view: Copies, path: str) -> None:
    path = view.followed(path)
    _raw["chdir"](path if _isdir(path) and not view.is_hidden(path) else view.seen(path))


@dataclass(frozen=True)
class _Entry:
    """An entry of a folder, as ``os.scandir`` gives it.

    Attributes
    ----------
    path : str
        The path by which the folder was asked for, and the name.
    usual : os.DirEntry
        The entry where the file is read.
    """

    path: str
    usual: Any

    @property
    def name(self) -> str:
        return str(self.usual.name)

    def __fspath__(self) -> str:
        return self.path

    def inode(self) -> int:
        return int(self.usual.inode())

    def is_symlink(self) -> bool:
        return bool(self.usual.is_symlink())

    def is_junction(self) -> bool:
        return False

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        if follow_symlinks and self.is_symlink():
            return os.path.isdir(self.path)
        return bool(self.usual.is_dir(follow_symlinks=follow_symlinks))

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        if follow_symlinks and self.is_symlink():
            return os.path.isfile(self.path)
        return bool(self.usual.is_file(follow_symlinks=follow_symlinks))

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path, follow_symlinks=follow_symlinks)


class _Entries:
    """The entries of a folder, as ``os.scandir`` gives them."""

    def __init__(self, entries: Sequence[_Entry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[_Entry]:
        return self._entries

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def _led_scandir(view: Copies) -> Any:
    usual = _raw["scandir"]

    @wraps(usual)
    def led(path: Any = ".") -> Any:
        given = "." if path is None else path
        whole = view.whole(given)
        if whole is None:
            return usual(given)
        return _scandir(view, view.followed(whole), os.fsdecode(given))

    return led


def _scandir(view: Copies, path: str, given: str) -> _Entries:
    names, found = set(_listdir(view, path)), dict[str, Any]()
    for folder in (path, view.copy_of(path)):
        if _isdir(folder):
            with _raw["scandir"](folder) as entries:
                found |= {entry.name: entry for entry in entries if entry.name in names}
    return _Entries([_Entry(os.path.join(given, name), each) for name, each in found.items()])


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "mkdir": _mkdir,
    "rmdir": _rmdir,
    "remove": _remove,
    "unlink": _remove,
    "rename": _rename,
    "replace": _rename,
    "listdir": _listdir,
    "chdir": _chdir,
}
"""What other functions of ``os`` do instead."""

_CHANGES: dict[str, tuple[tuple[int, int, bool], ...]] = {
    "open": ((0, -1, True),),
    "os.chflags": ((0, -1, True),),
    "os.chmod": ((0, 2, True),),
    "os.chown": ((0, 3, True),),
    "os.link": ((0, 2, True), (1, 3, False)),
    "os.mkdir": ((0, 2, False),),
    "os.remove": ((0, 1, False),),
    "os.removexattr": ((0, -1, True),),
    "os.rename": ((0, 2, False), (1, 3, False)),
    "os.rmdir": ((0, 1, False),),
    "os.setxattr": ((0, -1, True),),
    "os.symlink": ((1, 2, False),),
    "os.truncate": ((0, -1, True),),
    "os.utime": ((0, 3, True),),
    "sqlite3.connect": ((0, -1, True),),
}
"""Calls of which Python tells its hooks: which arguments are a path that is changed, the folder
that it starts from if any, and whether what a link leads to counts."""


def _refusing(view: Copies) -> Callable[[str, tuple[Any, ...]], None]:
    """Return a hook that refuses what changes a file outside of the scratch."""

    def hook(event: str, words: tuple[Any, ...]) -> None:
        if event not in _CHANGES or _only_reads(event, words):
            return
        for at, folder_at, follows in _CHANGES[event]:
            folder = words[folder_at] if 0 <= folder_at < len(words) else -1
            place = _real_place(words[at], folder, follows)
            if os.path.isabs(place) and not view.is_exempt(place):
                raise PermissionError(
                    errno.EPERM,
                    f"{_LEAVES} {event} to a copy",
                    place,
                )

    return hook


def _only_reads(event: str, words: tuple[Any, ...]) -> bool:
    if event == "open":
        path, mode, flags = words
        return isinstance(path, int) or not (flags & _WRITING or {*"wax+"} & {*(mode or "")})
    if event == "sqlite3.connect":
        text = os.fsdecode(words[0])
        query = urlsplit(text).query.split("&") if text.startswith("file:") else []
        return text in ("", ":memory:") or not {"mode=ro", "mode=memory"}.isdisjoint(query)
    return False


def _real_place(path: Any, folder: int, follows: bool) -> str:
    """Return the path by which the system knows a file, whether or not it exists."""
    if isinstance(path, int):
        try:
            return _path_of(path)
        except OSError:  # a system that does not tell
            return os.path.abspath(f"descriptor {path}")
    text = os.fsdecode(path)
    if text.startswith("file:"):
        text = unquote(urlsplit(text).path)
    whole = os.path.join(_raw["getcwd"]() if folder < 0 else _path_of(folder), text)
    parent, name = os.path.split(whole.rstrip(os.sep))
    real = os.path.join(_realpath(parent), name)
    return _realpath(real) if follows else real


def _realpath(path: str) -> str:
    """Return a path without links; Python's own function would follow those of the view."""
    if not sys.platform.startswith("linux"):
        return os.path.realpath(path)
    try:
        descriptor = _raw["open"](path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return path
    try:
        return _path_of(descriptor)
    finally:
        _raw["close"](descriptor)


def _refuse_the_rest(folders: Sequence[str]) -> int:
    """Have Landlock refuse what this process, and what it starts, writes outside of some folders.

    Returns its version.

    Raises
    ------
    OSError
        If this kernel does not know it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE, None, 0, 1)
    rights = _WRITES | _MOVES * (version >= 2) | _TRUNCATES * (version >= _REFUSES_TRUNCATION)
    handled = ctypes.c_uint64(rights)
    rules = libc.syscall(_CREATE, ctypes.byref(handled), 8, 0)
    if version < 1 or rules < 0:
        raise OSError(ctypes.get_errno(), "no Landlock")
    for folder in folders:
        with suppress(OSError):
            descriptor = _raw["open"](folder, os.O_PATH | os.O_CLOEXEC)
            rule = rights.to_bytes(8, "little") + descriptor.to_bytes(4, "little")
            libc.syscall(_ADD_RULE, rules, 1, rule, 0)
            _raw["close"](descriptor)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    refused = libc.syscall(_RESTRICT, rules, 0)
    _raw["close"](rules)
    if refused:
        raise OSError(ctypes.get_errno(), "no Landlock")
    return int(version)
