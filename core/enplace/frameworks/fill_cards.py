"""How accelerate fills cards with the modules of a model (``infer_auto_device_map``)."""

from __future__ import annotations

from collections.abc import Sequence

BUFFER = 1.25
"""What accelerate adds to an equal share of the weights, in largest blocks."""


def fill_cards(sizes: Sequence[int], share_bytes: int, capacity_bytes: Sequence[int]) -> list[int]:
    """Return the number of the card of each module if cards are filled in turn.

    The first card keeps room for the largest module that is still to come.

    Parameters
    ----------
    sizes : sequence of int
        Bytes of each module, in the order of the model.
    share_bytes : int
        What each card but the last takes at most.
    capacity_bytes : sequence of int
        Of each card.

    Returns
    -------
    list of int
        The number of cards stands for what fits on none.

    >>> fill_cards([2, 2, 2, 9, 1], 5, [16, 16, 9])
    [1, 1, 2, 3, 3]
    """
    room = [*(min(share_bytes, each) for each in capacity_bytes[:-1]), capacity_bytes[-1]]
    cards: list[int] = []
    at, held = 0, 0
    for number, size in enumerate(sizes):
        while at < len(room) and held + size > room[at] - (
            max(sizes[number + 1 :], default=0) if at == 0 else 0
        ):
            at, held = at + 1, 0
        held += size
        cards.append(at)
    return cards
