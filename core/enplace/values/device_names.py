"""Names of devices in clusters of several hosts, such as ``/job:worker/task:0/device:GPU:1``.

The part before the device is the task that serves it. All files of clusters share this form, and
frameworks translate their names to it; a cluster on one host may use any names.
"""

from __future__ import annotations

import re

_TASK = re.compile(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)")
_PREFIX = re.compile(rf"{_TASK.pattern}/(?:device:)?")


def is_task(text: str) -> bool:
    """Return whether a text is the name of a task and nothing more."""
    return task_of(text) == text != ""


def task_of(device: str) -> str:
    """Return the task in a device's full name, ``/job:worker/task:1``; empty if there is none."""
    found = _TASK.match(device)
    return f"/job:{found[1]}/task:{found[2]}" if found else ""


def device_label(name: str) -> str:
    """Return a device's name on screen: ``GPU 0``, or on a host ``worker 1 GPU 0``.

    :func:`enplace.names.rules.find_device` accepts it, so that it can be copied to ``--pin``.
    """
    return _PREFIX.sub(r"\1 \2 ", name).replace(":", " ")
