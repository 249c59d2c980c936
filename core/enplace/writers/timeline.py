"""The timeline of a plan as a picture."""

from __future__ import annotations

from enplace.pictures.timeline_svg import timeline_svg
from enplace.values.result import Result
from enplace.writers.registry import exporter


@exporter(
    "svg",
    title="timeline as SVG",
    suffix=".svg",
    shows_bound=True,
    mark=r"<title>.*: .*</title><style>\.bg\{",
)
def timeline(result: Result) -> str:
    """Draw the timeline of a plan."""
    return timeline_svg(result)
