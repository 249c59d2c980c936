"""Plans and schedules as files for other people and programs."""

from collections.abc import Callable

from enplace.exports.pipeline_json import pipeline_document
from enplace.exports.python_snippet import python_snippet
from enplace.exports.report import report_html
from enplace.exports.schedule_json import schedule_json
from enplace.exports.table_csv import table_csv
from enplace.exports.timeline_svg import timeline_svg
from enplace.exports.trace import chrome_trace
from enplace.schedule import Schedule

__all__ = ["EXPORTERS", "chrome_trace", "pipeline_document", "schedule_json"]

EXPORTERS: dict[str, Callable[[Schedule], str]] = {
    "python": python_snippet,
    "csv": table_csv,
    "trace": chrome_trace,
    "html": report_html,
    "svg": timeline_svg,
}
"""What ``enplace export --format`` offers: a schedule in, the text of a file out."""
