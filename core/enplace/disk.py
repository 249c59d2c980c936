"""Read and write bytes and JSON; every fault is one line.

Whether a file exists is asked with ``os.path``: ``Path`` raises where a folder may not be entered
or a name is too long.
"""

from __future__ import annotations

import errno
import glob
import gzip
import io
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from enplace.errors import FIXES, EnplaceError, FileError, ReaderGoneError
from enplace.system import LOCK_FLAGS, lock
from enplace.text import UNPRINTABLE, instead, size

MAX_FILE_BYTES, MAX_ARCHIVE_BYTES = 256 << 20, 512 << 20
"""Largest text and largest archive, measured after unpacking."""

MAX_RATIO, SMALL_BYTES, LARGE_RATIO = 100, 32 << 20, 20
"""How many times its packed size an input may have. Small ones may have more, because a constant
column packs a thousandfold; an archive of more than :data:`MAX_FILE_BYTES` may have less."""

MAX_MEMORY_BYTES, LITTLE_MEMORY_BYTES = 1200 << 20, 380 << 20
MAX_GROWTH, MAX_VALUE_GROWTH, MAX_PACKED_GROWTH = 24, 14, 20
"""Most memory that JSON may take, with its text and the arrays beside it. Above a little, also how
many times the size of the text, how many times that without characters, and how many times the
packed file. Plans need most: 20 times, where a character may take four bytes, and 13. Large
archives need 15 times."""

MAX_TEXT_LENGTH = 1 << 20
"""Most characters of one text."""

MAX_WIDE_BYTES = 256 << 20
"""Most memory for the characters of JSON that takes more than a byte for each."""

_OBJECT_BYTES, _LIST_BYTES, _TEXT_BYTES, _NUMBER_BYTES, _SLOT_BYTES = 240, 90, 56, 32, 8
_KEYS_OF_OBJECT, _KEY_BYTES = 16, 150
"""An object has room for so many keys; each further one takes this much more."""

GZIP_MAGIC, ZIP_MAGIC = b"\x1f\x8b", b"PK"
_MOST_LINKS = 40
_CHUNK_BYTES = 1 << 20
_STREAMS = re.compile(r"/proc/(?P<process>\d+)(/task/\d+)?/fd")
_TEMPORARY = ".tmp"
_TEMPORARY_NAME = re.compile(r"\..+\.(?P<process>\d+)\.[0-9a-f]{12}\.tmp", re.DOTALL)
_PREFIX, _LOCK = "enplace-", ".lock"
"""Of temporary folders; a process holds the lock of its folder for as long as it lives."""

_MARK = b"a temporary folder of Enplace; it may be removed: %d\n"
"""What the lock holds, with the folder's number on this disk, or else the folder is somebody's own:
one that was unpacked from an archive may look like ours."""

_T = TypeVar("_T")
_TYPE_NAMES = {str: "a text", dict: "an object", list: "a list", bool: "true or false"}


def write_atomically(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write a whole file or leave the old one: temporary file, fsync, rename.

    Anything that is not a regular file, such as a pipe or ``/dev/null``, is written to directly.
    So is an open stream, such as ``/dev/stdout``. An old file keeps its permissions.

    Raises
    ------
    FileError
        If the folder cannot be written; :class:`ReaderGoneError` if it is a pipe without a reader.
    """
    content = data.encode() if isinstance(data, str) else data
    try:
        target = Path(path).resolve()
        if (found := _open_stream(Path(path))) is not None:
            with found as stream:
                stream.write(content)
        elif target.exists() and not target.is_file():
            with open(path, "ab") as stream:
                stream.write(content)
        else:
            _replace(target, content)
    except BrokenPipeError:
        raise ReaderGoneError(f"{path}: whoever read it has ended; write to a file") from None
    except (OSError, RuntimeError) as error:
        code = error.errno if isinstance(error, OSError) else errno.ELOOP
        fix = FIXES.get(code or 0, "choose a folder you may write to")
        raise FileError(f"{path}: cannot write: {os.strerror(code or 0)}; {fix}") from None


def find_files(folder: Path, pattern: str) -> list[Path]:
    """Return the files of a folder whose names match; none if it cannot be read."""
    return [folder / name for name in glob.glob(pattern, root_dir=folder)]


def make_private_folder(folder: Path) -> None:
    """Make a folder that only this user may enter; so may any file that is written there.

    Raises
    ------
    FileError
        If it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
    except OSError as error:
        raise FileError(f"{folder}: cannot make this folder: {error.strerror}") from None


def _open_stream(path: Path) -> BinaryIO | None:
    """Open again the stream that a path such as ``/dev/stdout`` names; None if it names none."""
    path = path.absolute()
    for _ in range(_MOST_LINKS):
        folder = _STREAMS.fullmatch(os.path.realpath(path.parent))
        if folder is not None and path.name.isdecimal():
            is_own = int(folder["process"]) == os.getpid()
            # A second handle of an own stream goes on where the stream is.
            return open(os.dup(int(path.name)) if is_own else path, "wb" if is_own else "ab")
        if not path.is_symlink():
            return None
        path = path.parent / path.readlink()
    return None


def _replace(target: Path, content: bytes) -> None:
    if target.exists() and not target.stat().st_mode & 0o222:
        raise OSError(errno.EACCES, "")  # renaming would replace it all the same
    name = f".{shortened_name(target.name)}"
    remove_abandoned_files(target.parent)
    temporary = target.with_name(f"{name}.{os.getpid()}.{secrets.token_hex(6)}{_TEMPORARY}")
    try:
        is_private = not target.parent.stat().st_mode & 0o077
        with open(temporary, "xb") as file:
            with suppress(OSError):  # not every file system has locks
                lock(file)
            if is_private:
                os.fchmod(file.fileno(), 0o600)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
        _sync(target.parent)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def shortened_name(name: str) -> str:
    """Cut a file's name so that something can be added: names have at most 255 bytes."""
    return name.encode(errors="surrogateescape")[:100].decode(errors="ignore")


def _sync(folder: Path) -> None:
    """Bring a folder's entries to the disk; not every file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_abandoned_files(folder: Path) -> None:
    """Remove the temporary files in a folder that killed processes have left.

    A living process holds a lock on its file: it may be one of another container, whose number
    says nothing here.
    """
    for path in find_files(folder, f".*{_TEMPORARY}"):
        name = _TEMPORARY_NAME.fullmatch(path.name)
        if name is None or Path("/proc", name["process"]).exists():
            continue
        with suppress(OSError), _taken(path):
            path.unlink(missing_ok=True)


def hold_lock(path: Path) -> int:
    """Make a lock, and hold it until the descriptor is closed or this process is killed.

    Returns
    -------
    int
        The descriptor.

    Raises
    ------
    FileError
        If it cannot be made, or another process holds it.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        lock(descriptor, wait=False)
    except OSError as error:
        raise FileError(f"{path}: cannot make this lock: {error.strerror}") from None
    return descriptor


def is_abandoned(path: Path) -> bool:
    """Return whether no living process holds a lock; so it is if the lock is gone.

    A process number would not tell: that of another container says nothing here.
    """
    try:
        with _taken(path):
            return True
    except FileNotFoundError:
        return True
    except OSError:
        return False


@contextmanager
def _taken(path: Path) -> Iterator[BinaryIO]:
    """Hold the lock of a file that exists."""
    with open(path, "rb", opener=_open_lock) as file:
        lock(file, wait=False)
        yield file


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder that is removed at the end or, if this process is killed, by a later one."""
    for path in find_files(Path(tempfile.gettempdir()), f"{_PREFIX}*"):
        with suppress(OSError), _taken(path / _LOCK) as file:  # ours
            mark = _mark_of(path)
            if file.read(len(mark) + 1) == mark:
                shutil.rmtree(path, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        with open(folder / _LOCK, "xb") as file:
            lock(file)
            file.write(_mark_of(folder))
            file.flush()
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _mark_of(folder: Path) -> bytes:
    return _MARK % folder.stat().st_ino


def _open_lock(path: str, flags: int) -> int:
    return os.open(path, flags | LOCK_FLAGS)


def open_to_read(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a file, but no named pipe: nobody may ever write to that.

    Raises
    ------
    OSError
        If it cannot be opened.
    FileError
        If it is a named pipe.
    """
    refuse_pipe(path)
    return open(path, "rb")


def refuse_pipe(path: str | os.PathLike[str]) -> None:
    """Refuse a named pipe: whoever opens it may wait for ever for somebody at its other end.

    Raises
    ------
    FileError
        If it is a named pipe.
    """
    try:
        is_pipe = stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:  # whoever opens it reports the fault
        return
    # A pipe that a shell names, as for <(zcat p.json.gz), leads to no file.
    if is_pipe and os.path.exists(os.path.realpath(path)):
        raise FileError(f"{path}: this is a named pipe; use a file instead")


def read_bytes(
    path: str | os.PathLike[str], most_bytes: int = MAX_FILE_BYTES, most_zip_bytes: int = 0
) -> bytes:
    """Read a file, and unpack it if it is gzip.

    Raises
    ------
    FileError
        If it cannot be read, or is larger than ``most_bytes`` and no zip of at most
        ``most_zip_bytes``; names the file.
    """
    with naming(path):
        try:
            with open_to_read(path) as file:
                n_bytes = os.fstat(file.fileno()).st_size or most_bytes  # a pipe has none
                if most_bytes < n_bytes <= most_zip_bytes and zipfile.is_zipfile(file):
                    most_bytes = most_zip_bytes
                    file.seek(0)
                # It takes that much memory at once.
                content = b"" if n_bytes > most_bytes else file.read(n_bytes + 1)
        except OSError as error:
            raise FileError(f"cannot read: {error.strerror}; check the path") from None
        if content.startswith(GZIP_MAGIC):
            content = _gunzip(content, most_bytes)
        if max(len(content), n_bytes) > most_bytes:
            raise FileError(
                f"larger than {most_bytes >> 20} MiB, unlike any real one; check the path"
            )
        return content


def _gunzip(packed: bytes, most_bytes: int) -> bytes:
    most = min(most_bytes, most_unpacked_bytes(len(packed)))
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as unpacked:
            content = gather(unpacked, most)
    except EOFError:
        raise FileError("the gzip data stops early; copy the file again") from None
    except (zlib.error, gzip.BadGzipFile):
        raise FileError("damaged gzip data; copy the file again") from None
    if len(content) > most:
        raise FileError(f"unpacks from {len(packed)} to over {most} bytes; do not trust it")
    if _JSON_START.match(content):  # a recorded trace has limits of its own
        check_memory(content, packed_bytes=len(packed), fix="unpack it first if you trust it")
    return content


def gather(stream: gzip.GzipFile | IO[bytes], most_bytes: int) -> bytes:
    """Read a stream to its end, or until it is longer than ``most_bytes``.

    Unlike ``read()``, this needs no memory beside the result.
    """
    found = io.BytesIO()
    while found.tell() <= most_bytes and (chunk := stream.read(_CHUNK_BYTES)):
        found.write(chunk)
    return found.getvalue()


def most_unpacked_bytes(packed_bytes: int) -> int:
    """Return how many bytes an honest file of this size unpacks to at most."""
    usual = min(MAX_FILE_BYTES, max(SMALL_BYTES, MAX_RATIO * packed_bytes))
    return max(usual, min(MAX_ARCHIVE_BYTES, LARGE_RATIO * packed_bytes))


def check_memory(
    *texts: bytes,
    array_bytes: int = 0,
    packed_bytes: int | None = None,
    most_bytes: int = MAX_MEMORY_BYTES,
    fix: str = "do not trust it",
) -> None:
    """Refuse JSON that would fill the memory, before it is parsed.

    Parameters
    ----------
    texts : bytes
        All JSON of a file.
    array_bytes : int
        What its arrays take in memory.
    packed_bytes : int, optional
        The size of the file, if it is compressed.
    most_bytes : int
        For a format of small files.
    fix : str
        What to do, for the message.

    Raises
    ------
    FileError
        If it takes more memory than any real profile.
    """
    n_bytes = sum(map(len, texts))
    growth = (MAX_VALUE_GROWTH * n_bytes, MAX_GROWTH * n_bytes)
    if packed_bytes is not None:
        growth = (MAX_PACKED_GROWTH * packed_bytes,) * 2
    most = [min(most_bytes, max(LITTLE_MEMORY_BYTES, each)) for each in growth]
    widths = list(map(_width, texts))
    found = np.full(2, array_bytes, dtype=np.int64)
    for text, width in zip(texts, widths, strict=True):
        found += _memory_bytes(len(text), width, _count_roughly(text))
    has_long = any(_may_have_long_texts(text) for text in texts)
    if (found <= most).all() and not has_long and _wide_bytes(found, widths) <= MAX_WIDE_BYTES:
        return
    found = more = np.full(2, array_bytes, dtype=np.int64)
    for text, width in zip(texts, widths, strict=True):
        for count in _counts(text):
            more = found + _memory_bytes(len(text), width, count)
            if (more > most).any() or _wide_bytes(more, widths) > MAX_WIDE_BYTES:
                raise FileError(
                    f"would take over {size(int(more[1]))} of memory, far more than a real file "
                    f"of this size; {fix}"
                )
        found = more


def _may_have_long_texts(text: bytes) -> bool:
    """Whether a text may be too long: quotes are far apart, or may be part of a text."""
    is_large = len(text) > _MOST_TEXT_BYTES
    return is_large and (b'\\"' in text or _LONG_GAP.search(text) is not None)


def _wide_bytes(found: NDArray[np.int64], widths: Sequence[int]) -> int:
    """Return how much memory the characters take if some of them take more than a byte."""
    values_bytes, all_bytes = found.tolist()
    return all_bytes - values_bytes if max(widths, default=1) > 1 else 0


class _Count(NamedTuple):
    """How much of what a JSON text holds: marks outside of its texts, texts, and bytes in these."""

    objects: int
    lists: int
    commas: int
    keys: int
    texts: int
    text_bytes: int


def _count_roughly(text: bytes) -> _Count:
    """Count from above: marks in texts as well, and every byte as part of a text."""
    return _Count(*_count_marks(text), text.count(b'"') // 2, len(text))


def _counts(text: bytes) -> Iterator[_Count]:
    """Count what makes up a JSON text, without a copy of it; yield what is found so far."""
    view, at, totals = memoryview(text), 0, np.zeros(len(_Count._fields), dtype=np.int64)
    yield _Count(*totals.tolist())
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None:
            raise FileError("not valid JSON (a text never ends); export the file again")
        part = view[at : piece.end()]
        if len(part) > _MOST_TEXT_BYTES and any(
            found.end() - found.start() > _MOST_TEXT_BYTES for found in _TEXT.finditer(part)
        ):
            raise FileError(f"a text of over {MAX_TEXT_LENGTH:,} characters; shorten it")
        bare, n_texts = _TEXT.subn(b'"', part)
        totals += [*_count_marks(bare), n_texts, piece.end() - at - len(bare)]
        at = piece.end()
        yield _Count(*totals.tolist())


def _count_marks(text: bytes) -> tuple[int, int, int, int]:
    return text.count(b"{"), text.count(b"["), text.count(b","), text.count(b":")


_MOST_TEXT_BYTES = 6 * MAX_TEXT_LENGTH
"""A character takes up to six bytes: ``\\u20ac``."""

_LONG_GAP = re.compile(rb'"[^"]{%d}' % _MOST_TEXT_BYTES)

_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_PIECE = re.compile(rb'(?:[^"]{1,4096}+|"(?:[^"\\]++|\\.)*+"){1,4096}+', re.DOTALL)
"""Some texts and what stands between them."""


def _memory_bytes(n_bytes: int, width: int, count: _Count) -> tuple[int, int]:
    """Estimate from above how much memory JSON takes while it is parsed: its values, and all.

    Its characters are there three times: as bytes, as a text and in values. ``width`` is how many
    bytes each takes in the latter two.
    """
    n_containers = count.objects + count.lists
    n_numbers = max(0, count.commas + n_containers - (count.texts - count.keys))
    values_bytes = (
        _OBJECT_BYTES * count.objects
        + _LIST_BYTES * count.lists
        + _TEXT_BYTES * count.texts
        + _NUMBER_BYTES * n_numbers
        + _SLOT_BYTES * (count.commas + n_containers)
        + _KEY_BYTES * max(0, count.keys - _KEYS_OF_OBJECT * count.objects)
    )
    return values_bytes, values_bytes + n_bytes + width * (n_bytes + count.text_bytes)


def _width(text: bytes) -> int:
    """Return how many bytes each character of a text takes, if all are in one text with it."""
    if text.isascii() and b"\\u" not in text:
        return 1
    return next((width for width, needs in _WIDTHS if needs.search(text)), 1)


_WIDTHS = (
    (4, re.compile(rb"[\xf0-\xff]|\\u[dD][89abAB]")),
    (2, re.compile(rb"[\xc4-\xef]|\\u")),
)


def parse_json(
    content: bytes, packed_bytes: int | None = None, most_bytes: int = MAX_MEMORY_BYTES
) -> Any:
    """Parse JSON; faults name line and column.

    Parameters
    ----------
    packed_bytes : int, optional
        The size of the compressed file that it was in.
    most_bytes : int
        Most memory that it may take; :data:`LITTLE_MEMORY_BYTES` for a format of small files.

    Raises
    ------
    FileError
        If it is not JSON in UTF-8, or takes more memory than any real profile.
    """
    try:
        if not _JSON_START.match(content):
            raise json.JSONDecodeError("it begins with neither { nor [", "", 0)
        if _LONG_NUMBER.search(content):
            raise ValueError  # before Python copies it
        check_memory(content, packed_bytes=packed_bytes, most_bytes=most_bytes)
        text = content.decode("utf-8-sig")
        value = json.loads(text, object_pairs_hook=_object)
        if _HALF_CHARACTER.search(text):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise FileError(f"a text holds half of a character ({half!a}); write it whole") from None
    except json.JSONDecodeError as error:
        raise FileError(
            f"line {error.lineno}, column {error.colno}: not valid JSON ({error.msg}); "
            f"export the file again"
        ) from None
    except UnicodeDecodeError:
        raise FileError("neither text nor a file of Enplace; check the path") from None
    except (ValueError, RecursionError):
        raise FileError("a number is too long or the nesting too deep; export it again") from None


_JSON_START = re.compile(rb"(\xef\xbb\xbf)?[ \t\r\n]*[\[{]")
_LONG_NUMBER = re.compile(rb"[^0-9][0-9]{%d}" % MAX_TEXT_LENGTH)
"""A number longer than any text; a search begins once in each, so it takes linear time."""
_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        double, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise FileError(f"an object holds {shown(double)} twice; keep one of them")
    return found


ITEMS_AT_ONCE = 500


def dump_json(value: Any, *, indent: int | None = None) -> str:
    """Write plain data, which may hold numpy numbers, as JSON.

    Without ``indent``, long lists are written in pieces: a call of the encoder holds up every other
    thread until it ends.
    """
    try:
        return _dump_in_pieces(value) if indent is None else _dump(value, indent=indent)
    except RecursionError:
        raise FileError("something in it is nested too deeply to be written; flatten it") from None


def encode_items(items: Iterable[Any], encode: Callable[[list[Any]], str]) -> Iterator[str]:
    """Encode the items of a list in pieces, without brackets, so that other threads get a turn."""
    rest = iter(items)
    while some := list(islice(rest, ITEMS_AT_ONCE)):
        yield encode(some)[1:-1]


def _dump_in_pieces(value: Any) -> str:
    if isinstance(value, dict) and value:
        pairs = (f"{_dump({key: 0})[1:-2]}{_dump_in_pieces(each)}" for key, each in value.items())
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, list | tuple) and len(value) > ITEMS_AT_ONCE:
        return f"[{','.join(encode_items(value, _dump))}]"
    return _dump(value)


def _dump(value: Any, indent: int | None = None) -> str:
    separators = (",", ":") if indent is None else None
    return json.dumps(
        value, indent=indent, separators=separators, ensure_ascii=False, default=_plain
    )


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be written to a file")


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Put the file's name before the message of every error raised inside, unless it is there."""
    try:
        yield
    except EnplaceError as error:
        if str(error).startswith(f"{path}: "):
            raise
        raise type(error)(f"{path}: {error}") from None


def take(
    obj: dict[str, Any], key: str, kind: type[_T], where: str, default: _T | None = None
) -> _T:
    """Take a value of an object, and check its type.

    Parameters
    ----------
    where : str
        Place of ``obj`` in the file, for the message; may be empty.
    default : optional
        The value of an absent key, or null; without a default, the key is required.

    Raises
    ------
    FileError
        If the key is absent or its value has another type.
    """
    value = obj.get(key)
    if value is None and default is not None:
        return default
    if value is None:
        raise FileError(f"{_at(where)}'{key}' is missing; add it")
    if isinstance(value, str) and len(value) > MAX_TEXT_LENGTH:
        raise FileError(f"{_at(where, key)}a text of {len(value):,} characters; shorten it")
    if isinstance(value, str) and UNPRINTABLE.search(value):
        raise FileError(f"{_at(where, key)}must be printable text, not {shown(value)}; correct it")
    if not isinstance(value, kind):
        raise FileError(
            f"{_at(where, key)}must be {_TYPE_NAMES[kind]}, not {shown(value)}; correct it"
        )
    return value


def number(
    obj: dict[str, Any],
    key: str,
    where: str,
    default: float | None = None,
    *,
    low: float = 0,
    high: float = 1e18,
) -> float:
    """Take a finite number of an object, between ``low`` and ``high``; see :func:`take`.

    Raises
    ------
    FileError
        If it is absent, not a number, not finite or out of range.
    """
    value: Any = obj.get(key)
    value = default if value is None else value
    if value is None:
        raise FileError(f"{_at(where)}'{key}' is missing; add it")
    usable = isinstance(value, int | float) and not isinstance(value, bool)
    if not (usable and low <= value <= high):
        raise FileError(
            f"{_at(where, key)}must be a number from {low:g} to {high:g}, not {shown(value)}"
        )
    return cast("float", value)


def whole(
    obj: dict[str, Any], key: str, where: str, default: int | None = None, **limits: Any
) -> int:
    """Take a whole number of an object; see :func:`number`.

    Raises
    ------
    FileError
        Also if it has a fraction.
    """
    value = number(obj, key, where, default, **limits)
    if value != int(value):
        raise FileError(f"{_at(where, key)}must be a whole number, not {shown(value)}")
    return int(value)


def only(obj: dict[str, Any], known: set[str], where: str) -> None:
    """Refuse unknown keys, which are usually misspelt.

    Raises
    ------
    FileError
        With the first unknown key and the known ones.
    """
    if unknown := sorted(set(obj) - known):
        raise FileError(
            f"{_at(where)}'{unknown[0]}' means nothing here; {instead(unknown[0], sorted(known))}"
        )


def is_object(value: Any, where: str) -> dict[str, Any]:
    """Check that a value is an object, and return it.

    Raises
    ------
    FileError
        If it is anything else.
    """
    if not isinstance(value, dict):
        raise FileError(f"{_at(where)}must be an object, not {shown(value)}")
    return value


def shown(value: Any) -> str:
    """Show a value from a file in one short line."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def check_format(obj: dict[str, Any], name: str, version: int) -> None:
    """Refuse a file of another format, or of a newer version than this program reads.

    Raises
    ------
    FileError
        If ``format`` names another kind of file or a newer version.
    """
    found = obj.get("format", f"{name}/{version}")
    if not isinstance(found, str) or not found.startswith(f"{name}/"):
        raise FileError(
            f"'format' is {shown(found)}, not \"{name}/{version}\"; choose another file"
        )
    number_text = found.removeprefix(f"{name}/")
    if not number_text.isascii() or not number_text.isdigit() or len(number_text) > 6:
        raise FileError(f"'format' is {shown(found)}; it should be {name}/{version}")
    if int(number_text) > version:
        raise FileError(
            f"written by a newer Enplace (format {number_text}, this one reads up to {version}); "
            f"update Enplace"
        )


def _at(where: str, key: str = "") -> str:
    place = ".".join(part for part in (where, key) if part)
    return f"{place}: " if place else ""
