"""Plans and schedules as files for other people and programs."""

from collections.abc import Callable

from enplace.values.schedule import Schedule
from enplace.writers.archive import write_project
from enplace.writers.pipeline_json import pipeline_document
from enplace.writers.plans import write_plan
from enplace.writers.profile_file import write_profile
from enplace.writers.python_snippet import python_snippet
from enplace.writers.report import report_html
from enplace.writers.schedule_json import schedule_json
from enplace.writers.table_csv import table_csv
from enplace.writers.timeline_svg import timeline_svg
from enplace.writers.trace import chrome_trace

__all__ = [
    "EXPORTERS",
    "chrome_trace",
    "pipeline_document",
    "schedule_json",
    "write_plan",
    "write_profile",
    "write_project",
]

EXPORTERS: dict[str, Callable[[Schedule], str]] = {
    "python": python_snippet,
    "csv": table_csv,
    "trace": chrome_trace,
    "html": report_html,
    "svg": timeline_svg,
}
"""What ``enplace export --format`` offers: a schedule in, the text of a file out."""
