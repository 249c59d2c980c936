"""The GPUs of this machine, as NVIDIA's management library (NVML) reports them.

Nothing here starts a GPU, so a framework may still be told which ones to use. NVML comes with the
driver; the package ``nvidia-ml-py`` (the extra ``gpu``) reads it and is optional.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Card:
    """A GPU, or a slice of one (MIG), that programs of this user can see.

    Attributes
    ----------
    name : str
        The model.
    free_bytes : int
        What other processes leave of its memory.
    nvlinks : frozenset of str
        The ``uuid`` of every card to which NVLink leads, also through an NVSwitch.
    """

    name: str
    uuid: str
    total_bytes: int
    free_bytes: int
    is_slice: bool = False
    nvlinks: frozenset[str] = frozenset()


def visible_cards() -> list[Card]:
    """Return the GPUs that CUDA shows to this process; empty if NVML cannot be asked.

    ``CUDA_VISIBLE_DEVICES`` chooses them by number or by the start of their UUID, up to the first
    that does not exist. CUDA shows a single slice, and no other GPU beside it.
    """
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    return _ask(lambda nvml: _shown(_cards(nvml), shown), [])


def driver_version() -> str:
    """Return the version of NVIDIA's driver; empty if NVML cannot be asked."""
    return _ask(lambda nvml: _text(nvml.nvmlSystemGetDriverVersion()), "")


def matched(cards: Sequence[Card], names: Sequence[str]) -> list[Card]:
    """Order cards as a framework numbers them, by the names that it gives.

    CUDA puts the fastest card first, NVML the first slot. Empty if they do not name the same cards.
    """
    if len(cards) == len(names) and len({card.name for card in cards}) == 1:
        return list(cards)  # whatever a framework calls them
    left, found = list(cards), []
    for name in names:
        card = next((card for card in left if card.name == name), None)
        if card is None:
            return []
        left.remove(card)
        found.append(card)
    return [] if left else found


def _ask(question: Callable[[Any], Answer], unknown: Answer) -> Answer:
    """Ask NVML; the answer is unknown without its package or a driver, or if it refuses."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return unknown
    try:
        nvml.nvmlInit()
        try:
            return question(nvml)
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError:
        return unknown


def _cards(nvml: Any) -> list[list[Card]]:
    """List every GPU: itself, or its slices if it is cut into some."""
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    return [
        [_card(nvml, each, True) for each in _slices(nvml, handle)]
        if _is_cut(nvml, handle)
        else [_card(nvml, handle, False, _nvlinks(nvml, handle, handles))]
        for handle in handles
    ]


def _card(nvml: Any, handle: Any, is_slice: bool, nvlinks: frozenset[str] = frozenset()) -> Card:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    name, uuid = _text(nvml.nvmlDeviceGetName(handle)), _text(nvml.nvmlDeviceGetUUID(handle))
    return Card(name, uuid, int(memory.total), int(memory.free), is_slice, nvlinks)


def _is_cut(nvml: Any, handle: Any) -> bool:
    """Return whether a GPU is in MIG mode, in which programs see only its slices."""
    with suppress(nvml.NVMLError):  # most cards do not know this mode
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    return False


def _slices(nvml: Any, handle: Any) -> Iterator[Any]:
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with suppress(nvml.NVMLError):  # this place is empty
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)


def _nvlinks(nvml: Any, handle: Any, handles: Sequence[Any]) -> frozenset[str]:
    """Find the cards with which a card exchanges memory over NVLink."""
    found = set()
    for other in handles:
        if other is not handle:
            with suppress(nvml.NVMLError):
                index = nvml.NVML_P2P_CAPS_INDEX_NVLINK
                if nvml.nvmlDeviceGetP2PStatus(handle, other, index) == nvml.NVML_P2P_STATUS_OK:
                    found.add(_text(nvml.nvmlDeviceGetUUID(other)))
    return frozenset(found)


def _text(value: str | bytes) -> str:
    """Decode a text; old versions of the package return bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _shown(gpus: Sequence[Sequence[Card]], wanted: str | None) -> list[Card]:
    if wanted is None:
        chosen = [card for cards in gpus for card in cards]
    else:
        chosen = []
        for word in wanted.split(","):
            card = _find(gpus, word.strip())
            if card is None or card in chosen:
                break
            chosen.append(card)
    if chosen and chosen[0].is_slice:
        return chosen[:1]
    return [card for card in chosen if not card.is_slice]


def _find(gpus: Sequence[Sequence[Card]], word: str) -> Card | None:
    """Find a card by the number of its GPU, or by the start of its UUID."""
    if word.isdigit():
        return next(iter(gpus[int(word)]), None) if int(word) < len(gpus) else None
    named = (card for cards in gpus for card in cards if card.uuid.startswith(word or "?"))
    return next(named, None)
