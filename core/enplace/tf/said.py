"""What an error of TensorFlow says, in one line."""

from __future__ import annotations

import re

_HEADING = re.compile(r"Graph execution error:|Detected at node|Node: |File \"|<stack traces")
"""Lines of an error that do not say what is wrong."""


def what_it_says(error: BaseException) -> str:
    """The first line that is neither a heading nor part of a listing; empty if there is none."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line and not _HEADING.match(line)), "")
