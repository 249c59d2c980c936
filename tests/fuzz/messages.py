"""Mutations of a protobuf message: a few fields of it change, at any depth."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from tests.fuzz.mutate import mutate

TEXTS = (
    *("", "\x00", "\x9b2J", "\u202e", "a" * 5000, "[][]" * 2000, "/_1" * 2000, "/" * 500),
    *("^", ":", "^^a", "a:-1", "a:-2", "a:x", f"a:{1 << 63}", f"a:{'9' * 5000}", "/_1", "^/_1"),
    *("loc:@", "loc:@a", "/device:GPU:0", "/job:worker/task:1/device:CPU:0", "_SOURCE"),
    *("a = Add(a)", "a = Add(a:-2, ^a)", "[a] = Add()", "a/_1 = Add(a/_1)"),
    *("NoOp", "Placeholder", "Identity", "_Recv", "_Send", "_Arg", "VarHandleOp"),
)
WHOLE = (0, 1, -1, 2, 20, 22, 100, 120, 9999, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63))
REAL = (0.0, -1.0, 1e308, float("nan"), float("inf"))
PLAIN_SHARE = 0.2
MOST_COPIES, MOST_BYTES = 50, 1 << 20
"""Protobuf crashes where it gets no memory, so a mutant stays small."""

Mutate = Callable[[bytes, random.Random], bytes]


def mutate_messages(kind: type[Message]) -> Mutate:
    """Return a function that breaks a valid message of this kind, in binary or text form."""

    def change(content: bytes, draw: random.Random) -> bytes:
        if draw.random() < PLAIN_SHARE:
            return mutate(content, draw)
        message = kind()
        is_text = content[:1].isalpha()
        if is_text:
            text_format.Parse(content, message)
        else:
            message.ParseFromString(content)
        for _ in range(draw.randint(1, 3)):
            _change_field(message, draw)
        if is_text:
            return text_format.MessageToString(message).encode()
        return message.SerializeToString(deterministic=True)

    return change


def _change_field(message: Message, draw: random.Random) -> None:
    every = list(_messages(message))
    holder = draw.choice([each for each in every if each.DESCRIPTOR.fields])
    there = [field for field, _ in holder.ListFields()]
    field = draw.choice(there * 5 + list(holder.DESCRIPTOR.fields))
    with suppress(ValueError, TypeError):  # a number beyond the range of the field
        if draw.randrange(5) == 0:
            holder.ClearField(field.name)
        elif _is_map(field):
            _change_map(getattr(holder, field.name), every, field, draw)
        elif field.is_repeated:
            _change_list(getattr(holder, field.name), every, field, draw)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            getattr(holder, field.name).CopyFrom(_value(every, field, draw))
        else:
            setattr(holder, field.name, _value(every, field, draw))


def _change_list(values: Any, every: list[Message], field: Any, draw: random.Random) -> None:
    """Remove a value, replace it, repeat it, or add one."""
    at = draw.randrange(len(values)) if values else None
    new = _value(every, field, draw)
    way = draw.randrange(4)
    if at is None or way == 0:
        values.extend([new])
    elif way == 1:
        size = values[at].ByteSize() if isinstance(values[at], Message) else 0
        values.extend(
            [values[at]] * min(draw.choice((1, 2, MOST_COPIES)), 1 + MOST_BYTES // (size + 1))
        )
    elif way == 2:
        del values[at]
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        values[at].CopyFrom(new)
    else:
        values[at] = new


def _change_map(values: Any, every: list[Message], field: Any, draw: random.Random) -> None:
    """Remove an entry, or give it another value."""
    key, value = field.message_type.fields
    keys = sorted(values)
    name = draw.choice([*keys, _value(every, key, draw)])
    if name in values and draw.randrange(3) == 0:
        del values[name]
    elif value.type == FieldDescriptor.TYPE_MESSAGE:
        values[name].CopyFrom(_value(every, value, draw))
    else:
        values[name] = _value(every, value, draw)


def _value(every: list[Message], field: Any, draw: random.Random) -> Any:
    """Draw a value: another one of the message, or a hostile one."""
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        same = [each for each in every if each.DESCRIPTOR is field.message_type]
        # A copy: protobuf crashes where a message becomes a part of itself.
        return copy.deepcopy(draw.choice(same)) if same else draw.choice(every)
    if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        texts = [
            each for holder in draw.sample(every, min(50, len(every))) for each in _texts(holder)
        ]
        text = draw.choice(texts or TEXTS) if draw.randrange(2) else draw.choice(TEXTS)
        return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return draw.choice(REAL)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return bool(draw.randrange(2))
    return draw.choice(WHOLE)


def _messages(message: Message) -> Iterator[Message]:
    """Yield a message and every message in it."""
    yield message
    for field, value in message.ListFields():
        if _is_map(field):
            if field.message_type.fields[1].type == FieldDescriptor.TYPE_MESSAGE:
                for key in sorted(value):
                    yield from _messages(value[key])
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for each in value if field.is_repeated else [value]:
                yield from _messages(each)


def _texts(holder: Message) -> Iterator[str]:
    for field, value in holder.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            yield from value if field.is_repeated else [value]


def _is_map(field: Any) -> bool:
    return bool(
        field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type.GetOptions().map_entry
    )
