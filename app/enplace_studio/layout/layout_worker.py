"""The handler that lays out a graph.

It is outside the graph pane's folder, whose code imports Qt, so that it starts quickly.
"""

from __future__ import annotations

import numpy as np

from enplace.processes.main import Connection
from enplace.processes.wire import DONE, Message
from enplace_studio.layout.layering import lay_out


def serve(connection: Connection) -> Message:
    """Lay out the received graph.

    Its arrays are ``edges``, ``sizes`` and ``side``, as
    :func:`~enplace_studio.layout.layering.lay_out` takes them.
    """
    job = connection.receive()
    middles, routes = lay_out(gap=job.details["gap"], **job.arrays)
    ends = np.cumsum([len(route) for route in routes], dtype=np.int64)
    points = np.concatenate([np.zeros((0, 2)), *routes])
    return Message(DONE, {}, {"middles": middles, "points": points, "ends": ends})
