"""Mutations of a file: its bytes, its JSON values, the members of a zip."""

from __future__ import annotations

import copy
import gzip
import io
import json
import random
import zipfile
from contextlib import suppress
from typing import Any

HOSTILE: list[Any] = [
    None,
    True,
    -1,
    0,
    1e308,
    -1e-300,
    1 << 63,
    10**400,
    float("nan"),
    "",
    "a" * 5000,
    "a" * 70_000,
    "7" * 5000,
    "a_1" * 20_000,
    "a/1/" * 5000,
    "\x00",
    "\x9b2J",
    "\u202e",
    "\ud800",
    "=1+1",
    "../../etc/passwd",
    "{batch}",
    [],
    {},
    [[]],
    {"": {}},
]
BYTES = (b"\x00", b"\xff", b"PK\x03\x04", b"\x1f\x8b", b"{", b"[", b'"', b"\xf0\x9f\x99\x82")
MOST_NESTED = 3000


def mutate(content: bytes, draw: random.Random) -> bytes:
    """Break a valid file in one to three places."""
    for _ in range(draw.randint(1, 3)):
        with suppress(RecursionError):  # nested by an earlier mutation
            content = draw.choice(_ways(content))(content, draw)
    return content


def _ways(content: bytes) -> list[Any]:
    if content.startswith(b"PK"):
        return [*[_change_member] * 18, _change_bytes, _cut]
    if content.lstrip().startswith((b"{", b"[")):
        return [_change_json, _change_json, _change_json, _change_bytes, _cut, _pack, _nest]
    return [_change_bytes, _change_bytes, _cut, _repeat, _pack]


def _change_bytes(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 8))):
        at = draw.randrange(len(changed) + 1)
        end = at + draw.choice((0, 1, 1, 4))
        changed[at:end] = draw.choice((*BYTES, draw.randbytes(1), draw.randbytes(4)))
    return bytes(changed)


def _cut(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def _repeat(content: bytes, draw: random.Random) -> bytes:
    at, end = sorted(draw.randrange(len(content) + 1) for _ in range(2))
    return content[:end] + content[at:end] * draw.choice((1, 2, 50)) + content[end:]


def _pack(content: bytes, draw: random.Random) -> bytes:
    return gzip.compress(content, mtime=0)[: draw.choice((None, None, -4))]


def _nest(content: bytes, draw: random.Random) -> bytes:
    depth = draw.randrange(1, MOST_NESTED)
    return b'{"ops":' * depth + content + b"}" * draw.choice((depth, depth - 1))


def _change_json(content: bytes, draw: random.Random) -> bytes:
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return _change_bytes(content, draw)
    places = list(_places(data))
    if not places:
        return _change_bytes(content, draw)
    holder, key = draw.choice(places)
    others = [holder_[key_] for holder_, key_ in draw.sample(places, min(3, len(places)))]
    way = draw.randrange(4)
    if way == 0:
        del holder[key]
    elif way == 1 and isinstance(holder, dict):
        holder[draw.choice((f"{key}s", "", "format"))] = holder[key]
    else:
        holder[key] = copy.deepcopy(draw.choice([*HOSTILE, *others]))
    return json.dumps(data).encode(errors="surrogatepass")


def _places(data: Any) -> Any:
    """Yield the container and the key of every value, at any depth."""
    if isinstance(data, dict | list):
        for key in range(len(data)) if isinstance(data, list) else list(data):
            yield data, key
            yield from _places(data[key])


def _change_member(content: bytes, draw: random.Random) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
    except Exception:  # broken by an earlier mutation
        return _change_bytes(content, draw)
    if not members:
        return _cut(content, draw)
    name = draw.choice(sorted(members))
    way = draw.randrange(20)
    if way == 0:
        del members[name]
    elif way == 1:
        members[draw.choice(("../x", "", "extra", f"{name}\x00"))] = members[name]
    else:
        members[name] = mutate(members[name], draw)
    packed = io.BytesIO()
    usual = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED] * 9
    how = draw.choice([*usual, zipfile.ZIP_LZMA])
    with zipfile.ZipFile(packed, "w", how) as archive:
        for member, text in members.items():
            archive.writestr(zipfile.ZipInfo(member), text, how)
    return packed.getvalue()
