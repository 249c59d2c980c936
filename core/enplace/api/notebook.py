"""What a notebook shows of a value on the last line of a cell: its facts, and pictures.

A name from a file can neither write into the page nor run there: texts are escaped, and a picture
is an image.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from html import escape

from enplace.pictures.cluster_svg import cluster_svg
from enplace.pictures.memory_svg import memory_svg
from enplace.pictures.profile_svg import profile_svg
from enplace.pictures.timeline_svg import timeline_svg
from enplace.text import factor, size
from enplace.values.cluster import Cluster
from enplace.values.profile import Profile
from enplace.values.result import Result
from enplace.values.schedule import Schedule


def profile_html(profile: Profile) -> str:
    """Show a profile's size, and where its time goes."""
    return preformatted(str(profile)) + image("time of its parts", profile_svg(profile), 760)


def cluster_html(cluster: Cluster) -> str:
    """Show a cluster's devices, and the bandwidth of its links."""
    rows = [
        (
            device.label,
            size(device.capacity_bytes),
            factor(device.speed),
            str(device.lanes),
        )
        for device in cluster.devices
    ]
    about = f"{cluster.name}: {cluster.description}" if cluster.description else cluster.name
    devices = html_table(("device", "memory", "speed", "lanes"), rows)
    return f"<p>{escape(about)}</p>{devices}" + image("bandwidth", cluster_svg(cluster), 760)


def schedule_html(schedule: Schedule) -> str:
    """Show when everything runs, and the memory over time."""
    timeline = image("timeline", timeline_svg(Result(schedule)))
    return preformatted(repr(schedule)) + timeline + image("memory", memory_svg(schedule))


def show_values_in_notebooks() -> None:
    """Teach the plain values to show themselves: they know no pictures, and notebooks ask them."""
    Profile._repr_html_ = profile_html  # type: ignore[attr-defined]
    Cluster._repr_html_ = cluster_html  # type: ignore[attr-defined]
    Schedule._repr_html_ = schedule_html  # type: ignore[attr-defined]


def preformatted(text: str) -> str:
    """Write text with its columns aligned."""
    return f'<pre style="line-height:1.35">{escape(text)}</pre>'


def html_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Write a table whose cells are texts."""
    lines = ["".join(f"<th>{escape(cell)}</th>" for cell in head)]
    lines += ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def image(title: str, svg: str, width: int = 1200) -> str:
    """Embed a picture as an image: its style cannot change the rest of the notebook."""
    data = base64.b64encode(svg.encode()).decode()
    return (
        f'<img alt="{title}" style="width:100%;max-width:{width}px;margin:4px 0" '
        f'src="data:image/svg+xml;base64,{data}">'
    )
