"""Long files: lists, objects and texts of a valid file, repeated, so that counts meet; bombs."""

from __future__ import annotations

import copy
import gzip
import io
import json
import random
import zipfile
from typing import Any

import numpy as np

COUNTS = (300, 3_000, 30_000)
WHOLE = (0, 2, 100, 5_000, 1_000_000, 1 << 40)
LENGTHS = (200, 4_000, 100_000)
MOST_BYTES = 20_000_000
MANY = (1_000, 100_000, 1_000_000)
FILLINGS = (b'"",', b'"ab",', b"1.5,", b"[],", b"{},", b'{"a":1},')
VALUES, NOISE_BYTES = (1_000_000, 10_000_000, 100_000_000), 1 << 20
"""Values of a long array, and what does not pack, so that the file may hold so many."""
PACKED, SWOLLEN = 0.3, 0.3
"""How often a file is packed, and how often it is a bomb."""


def multiply(content: bytes, draw: random.Random) -> bytes:
    """Lengthen one to four values of a JSON file, or of a JSON member of a zip."""
    if not content.startswith(b"PK"):
        longer = _multiply(content, draw)
        return gzip.compress(longer, 1, mtime=0) if draw.random() < PACKED else longer
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    if draw.random() < SWOLLEN:
        _lengthen_array(members, draw)
    else:
        name = draw.choice(sorted(name for name in members if name.endswith(".json")))
        members[name] = _multiply(members[name], draw)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, text in members.items():
            archive.writestr(member, text)
    return packed.getvalue()


def _lengthen_array(members: dict[str, bytes], draw: random.Random) -> None:
    """Make an array long whose values take a byte in the file and eight in memory."""
    name = draw.choice(sorted(name for name in members if name.endswith(".npz")))
    with np.load(io.BytesIO(members[name])) as arrays:
        found = dict(arrays)
    found[draw.choice(sorted(found))] = np.zeros(draw.choice(VALUES), np.uint8)
    packed = io.BytesIO()
    np.savez(packed, **found)  # type: ignore[arg-type]
    profile = json.loads(members["profile.json"])
    profile["measured"] = {"noise": draw.randbytes(NOISE_BYTES).hex()[: NOISE_BYTES - 1]}
    members |= {name: packed.getvalue(), "profile.json": json.dumps(profile).encode()}


def _multiply(content: bytes, draw: random.Random) -> bytes:
    data = [json.loads(content)]
    for _ in range(draw.randint(1, 4)):
        holder, key = draw.choice(list(_places(data, 6)))
        holder[key] = _longer(holder[key], draw)
    text = json.dumps(data[0]).encode()
    return _swell(text, draw) if draw.random() < SWOLLEN and text.startswith(b"{") else text


def _swell(text: bytes, draw: random.Random) -> bytes:
    """Add what takes little room in a packed file and much memory: an unknown key, and blanks."""
    values = [draw.choice(FILLINGS) * draw.choice(MANY) for _ in range(draw.randint(1, 3))]
    wide = draw.choice((b'"a"', b'"\xf0\x9f\x99\x82"', b'"\\ud83d\\ude42"'))
    blanks = b" " * draw.choice((0, 0, 60 * MANY[-1]))
    return b'{"swollen": [' + b"".join(values) + wide + b"]," + blanks + text[1:]


def _longer(value: Any, draw: random.Random) -> Any:
    if isinstance(value, list) and value:
        return [_another(draw.choice(value), i) for i in range(_count(value, draw))]
    if isinstance(value, dict) and value:
        keys = list(value)
        more = [f"{draw.choice(keys)}{i}" for i in range(_count(value, draw))]
        return value | {each: copy.deepcopy(value[draw.choice(keys)]) for each in more}
    if isinstance(value, str):
        unit = value + draw.choice(("x", "/", "\u00e9", "\U0001f642"))
        return unit * max(1, draw.choice(LENGTHS) // len(unit))
    if isinstance(value, int):
        return draw.choice(WHOLE)
    return value


def _count(value: Any, draw: random.Random) -> int:
    """Return how many values a longer list may have: few if each of them is large."""
    return max(1, min(draw.choice(COUNTS), MOST_BYTES // len(json.dumps(value))))


def _another(value: Any, number: int) -> Any:
    """Copy a value of a list; names in it differ from those of other copies."""
    if isinstance(value, str):
        return f"{value}{number}"
    if isinstance(value, dict):
        return {
            key: f"{each}{number}" if key == "name" else copy.deepcopy(each)
            for key, each in value.items()
        }
    return copy.deepcopy(value)


def _places(data: Any, depth: int) -> Any:
    """Yield the container and the key of every value down to some depth."""
    if isinstance(data, dict | list) and depth:
        for key in range(len(data)) if isinstance(data, list) else list(data):
            yield data, key
            yield from _places(data[key], depth - 1)
