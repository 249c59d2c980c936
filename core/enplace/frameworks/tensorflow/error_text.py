"""What an error says, in one line: those of TensorFlow begin with where it happened."""

from __future__ import annotations

import re

_HEADING = re.compile(
    r"Graph execution error:|Detected at node|Node: |File \"|<stack traces|in user code:|"
    r"\d+ root error\(s\) found|Exception encountered when calling|Arguments received by|•"
)
"""Lines of an error that do not say what is wrong."""

_MARK = re.compile(r"\x1b\[\d*m|\{\{function_node [^}]*\}\} ?")
"""What no person reads: bold letters on and off, and TensorFlow's own name of a function."""


def first_line(error: BaseException) -> str:
    """The first line that is neither a heading nor part of a listing; empty if there is none.

    AutoGraph lists lines of the person's code before it; there it is the last.
    """
    lines = [line.strip() for line in _MARK.sub("", str(error)).strip().splitlines()]
    if lines and lines[0].startswith("in user code"):
        lines.reverse()
    return next((line for line in lines if line and not _HEADING.match(line)), "")
