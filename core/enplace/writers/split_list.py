"""A plan's splits, see :mod:`enplace.readers.split_list`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from enplace.values.splits import Split


def splits_to_json(splits: tuple[Split, ...]) -> list[dict[str, Any]]:
    """Write splits as plain data, one object each."""
    return [{k: v for k, v in sorted(asdict(split).items()) if v} for split in splits]
