"""Texts of a model that are not UTF-8.

Protobuf hands them out as bytes, where all that follows expects text.
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import Message
from onnx import ModelProto

from enplace.errors import FileError

_PARTS = {"node": "node", "input": "input", "output": "output", "initializer": "weight"}
"""What lies in the graph by number, in words."""

_TEXTS = {
    "name": "its name",
    "op_type": "its type",
    "input": "the name of an input",
    "output": "the name of an output",
}


def check_texts(model: ModelProto) -> None:
    """Refuse a model with a text that is not UTF-8.

    Raises
    ------
    FileError
        With the number of the node, counted from 1, or of what else has the text.
    """
    for name, parts in _fields(model.graph):
        for number, part in enumerate(parts, 1):
            if isinstance(part, Message):
                _check(part, f"{_PARTS.get(name, f'{name} entry')} {number}")
    for name, parts in _fields(model):
        if name != "graph":
            _check_parts(name, parts, "the model")
    for name, parts in _fields(model.graph):
        if not isinstance(parts[0], Message):
            _check_parts(name, parts, "the graph")


def _check(part: Message, place: str) -> None:
    for name, parts in _fields(part):
        _check_parts(name, parts, place)


def _check_parts(name: str, parts: list[object], place: str) -> None:
    for each in parts:
        if isinstance(each, Message):
            _check(each, place)
        elif isinstance(each, bytes):
            text = _TEXTS.get(name, f"its {name.replace('_', ' ')}")
            raise FileError(f"{place}: {text} is not UTF-8; export it again")


def _fields(part: Message) -> Iterator[tuple[str, list[object]]]:
    """Iterate over the fields that hold texts or messages, each as a list."""
    for field, value in part.ListFields():
        if field.type == field.TYPE_STRING:
            yield field.name, [value] if isinstance(value, str | bytes) else list(value)
        elif field.type == field.TYPE_MESSAGE:
            yield field.name, [value] if isinstance(value, Message) else list(value)
