"""Have transformers make a mask for each batch that may have padding.

It leaves the mask out where no token of a batch is padding, so that a kernel without masks can run.
A pipeline makes the calls of the first micro-batch for all, and others may have padding.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

_MODULE = "transformers.masking_utils"
_SKIPS = ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa")
"""What says whether a mask may be left out; the first argument is where tokens are padding."""


@contextmanager
def masks_for_padding() -> Iterator[None]:
    """Have a mask made within the block wherever the model is told what is padding."""
    module = sys.modules.get(_MODULE)
    with ExitStack() as stack:
        for name in _SKIPS:
            if (skips := getattr(module, name, None)) is not None:
                stack.enter_context(patch.object(module, name, _unless_padded(skips)))
        yield


def _unless_padded(skips: Callable[..., Any]) -> Callable[..., Any]:
    def answer(padding_mask: Any = None, *args: Any, **kwargs: Any) -> Any:
        return padding_mask is None and skips(padding_mask, *args, **kwargs)

    return answer
