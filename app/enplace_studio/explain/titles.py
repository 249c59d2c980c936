"""Titles for people: of models, methods and options."""

from __future__ import annotations

import re
from collections.abc import Mapping

from enplace.frameworks.framework import OPS
from enplace.option import Value

_SPELLINGS = {
    "bert": "BERT", "gpt": "GPT", "inception": "Inception", "lstm": "LSTM", "nasnet": "NASNet",
    "nmt": "NMT", "resnet": "ResNet", "rnnlm": "RNNLM", "transformer": "Transformer", "vgg": "VGG",
}  # fmt: skip
"""Names of well-known models as the literature spells them."""


def model_title(name: str) -> str:
    """Return a readable form of a profile's name: ``rnnlm-2-2048`` is ``RNNLM 2 × 2048``."""
    first, *rest = re.split("[-_]", name)
    if first not in _SPELLINGS:
        return name
    title = _SPELLINGS[first]
    if len(rest) == 1 and rest[0].isdigit():
        return f"{title}-{rest[0]}"
    for before, word in zip([first, *rest], rest, strict=False):
        joint = " × " if before.isdigit() and word.isdigit() else " "
        title += joint + word
    return title


def values_text(values: Mapping[str, Value]) -> str:
    """Summarise option values: a switch or number with its name, a choice by its value only."""
    texts = []
    for name, value in values.items():
        if value is True:
            texts.append(name)
        elif name == "rules":
            texts.append("by rules")
        else:
            texts.append(value if isinstance(value, str) else f"{name} {value}")
    return ", ".join(texts)


def grain_text(grain: str) -> str:
    """Say what stays whole: ``whole blocks``; nothing if no op stays with another."""
    return "" if grain == OPS else f"whole {grain}s"


def short_title(title: str) -> str:
    """Return the name of a method without its remark: ``Expert, by layer`` is ``Expert``."""
    return title.partition(",")[0]
