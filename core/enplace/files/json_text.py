"""Parse and write JSON; every fault is one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from enplace.errors import FileError
from enplace.files.fields import shown
from enplace.text import size

MAX_MEMORY_BYTES, LITTLE_MEMORY_BYTES = 1200 << 20, 380 << 20
"""Most memory that JSON may take, with its text; a little for formats of small files."""

SMALL_JSON_BYTES = 10 << 20
"""JSON of this size takes little memory whatever it holds: up to 36 times its size was measured,
for objects that hold an empty object."""

_PARSE = """
import json, resource, sys
with open("/proc/self/statm") as file:
    used_bytes = int(file.read().split()[0]) * resource.getpagesize()
most, hard = used_bytes + int(sys.argv[1]), resource.getrlimit(resource.RLIMIT_AS)[1]
if hard == resource.RLIM_INFINITY or most < hard:
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
try:
    json.loads(sys.stdin.buffer.read().decode("utf-8-sig"), object_pairs_hook=dict)
except MemoryError:
    sys.exit(1)
except (ValueError, RecursionError):
    pass
"""
"""A program that fails only if JSON takes too much memory."""


def parse_json(content: bytes, most_bytes: int = MAX_MEMORY_BYTES) -> Any:
    """Parse JSON; faults name line and column.

    Parameters
    ----------
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
        if len(content) > SMALL_JSON_BYTES:
            _check_memory(content, most_bytes)
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


def _check_memory(content: bytes, most_bytes: int) -> None:
    """Parse JSON in a process with little memory first; only Linux can limit it.

    It is no worker: without modules of its own, it starts in 15 ms, and ends with its input.
    """
    if sys.platform != "linux":
        return
    command = [sys.executable, "-I", "-S", "-c", _PARSE, str(most_bytes)]
    # In another session, Ctrl-C does not end it, which would look as if it took too much memory.
    done = subprocess.run(
        command, input=content, capture_output=True, check=False, start_new_session=True
    )
    if done.returncode:
        raise FileError(
            f"would take over {size(most_bytes)} of memory, far more than any real file; "
            f"do not trust it"
        )


_JSON_START = re.compile(rb"(\xef\xbb\xbf)?[ \t\r\n]*[\[{]")
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
