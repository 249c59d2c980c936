"""TensorFlow's errors in one line: they begin with where the error happened."""

from __future__ import annotations

import re

from enplace.text import UNPRINTABLE

_HEADING = re.compile(
    r"Graph execution error:|Detected at node|Node: |File \"|<stack traces|in user code:|"
    r"\d+ root error\(s\) found|Exception encountered when calling|Arguments received by|•"
)
"""Lines that do not state the error."""

_MARK = re.compile(r"\x1b\[\d*m|\{\{function_node [^}]*\}\} ?")
"""Text that is not for people: codes for bold letters, TensorFlow's internal function names."""


def first_line(error: BaseException) -> str:
    """Find the first line that is neither a heading nor part of a listing; empty if there is none.

    AutoGraph lists lines of the user's code first, and the error last. Names from the model may
    hold characters that control a terminal; these become spaces.
    """
    lines = [line.strip() for line in _MARK.sub("", str(error)).strip().splitlines()]
    if lines and lines[0].startswith("in user code"):
        lines.reverse()
    found = next((line for line in lines if line and not _HEADING.match(line)), "")
    return UNPRINTABLE.sub(" ", found)
