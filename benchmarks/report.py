"""Measure, print, and write a benchmark's section of ``docs/benchmarks.md``.

A benchmark is a function of a :class:`Report`. What it reports is printed at once. In the end,
:func:`publish` writes its section of the page, which replaces the one with the same heading, and
its numbers and pictures into the folder beside the page. With ``--quick`` all of that goes to
``build/``, and benchmarks choose small sizes.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import platform
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import matplotlib.style
import numpy as np
import psutil
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from enplace.files.writing import write_atomically
from enplace.placers import placers

LOOK_S = 0.1
LONG_AXIS = 200
"""A logarithmic axis from 1 to so much has enough labels at the powers of ten."""

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("ENPLACE_BENCHMARK_INPUTS", ROOT.parent / "shared"))
"""Folder of inputs that are not part of the repository: measured profiles, the 2020 graphs."""

TITLE = "# Benchmarks\n"
matplotlib.style.use("tableau-colorblind10")

NEUTRAL = "#767c86"
"""Grey of texts and axes in pictures: it reads on a white page and on a dark one."""

_T = TypeVar("_T")
_Cell = str | float | int


class Report:
    """The section of a benchmark.

    Parameters
    ----------
    name : str
        The module's name; ``python -m benchmarks NAME`` repeats it.
    heading : str
        The heading of the section.
    how : str
        Whether the figures are simulated, measured or emulated, and what their spread is.
    quick : bool
        Whether sizes shall be small.
    """

    def __init__(self, name: str, heading: str, how: str, *, quick: bool = False) -> None:
        self.name, self.heading, self.how, self.quick = name, heading, how, quick
        self._parts: list[str] = []
        self._figures: list[tuple[str, str, str]] = []
        self._all_figures: list[tuple[str, str, str]] = []
        self._files: dict[str, bytes] = {}

    def pick(self, full: _T, quick: _T) -> _T:
        """Choose the size of a full or of a quick run."""
        return quick if self.quick else full

    def title(self, text: str) -> None:
        """Begin a subsection."""
        print(f"\n{text}\n{'-' * len(text)}", flush=True)
        self._add(f"### {text}")

    def text(self, text: str) -> None:
        """Add a paragraph."""
        print(text, flush=True)
        self._add(text)

    def figure(self, what: str, value: str, target: str = "") -> None:
        """Add one figure and its target to a table of them."""
        print(f"{what:<58} {value:>14}   {target}", flush=True)
        self._figures.append((what, value, target))
        self._all_figures.append((what, value, target))

    def table(self, head: Sequence[str], rows: Iterable[Sequence[_Cell]]) -> None:
        """Add a table; each row is printed as soon as it is there."""
        print(" | ".join(head))
        known = []
        for row in rows:
            known.append([str(cell) for cell in row])
            print(" | ".join(known[-1]), flush=True)
        self._add(markdown(head, known))

    def numbers(self, head: Sequence[str], rows: Iterable[Sequence[_Cell]], part: str = "") -> None:
        """Write raw numbers beside the page and link them."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)
        self._link(f"{self.name}{part}.csv", text.getvalue().encode(), "Raw numbers")

    def picture(self, image: Figure | str, alt: str, part: str = "") -> None:
        """Show a picture, drawn by matplotlib or as the text of an SVG file."""
        text = image if isinstance(image, str) else svg(image, self.name)
        name = f"{self.name}{part}.svg"
        self._files[name] = text.encode()
        self._add(f"![{alt}](benchmarks/{name})")

    def skip(self, reason: str) -> None:
        """End without a section, and say why."""
        print(f"{self.name}: {reason}")
        sys.exit()

    def write(self, seconds: float, others: float) -> None:
        """Write the section, the numbers and the pictures."""
        if self._all_figures and not any(name.endswith(".csv") for name in self._files):
            self.numbers(("what", "value", "target"), self._all_figures)
        folder = ROOT / "build" if self.quick else ROOT / "docs"
        (folder / "benchmarks").mkdir(parents=True, exist_ok=True)
        for name, content in self._files.items():
            write_atomically(folder / "benchmarks" / name, content)
        self._flush()
        command = f"python -m benchmarks {'--quick ' if self.quick else ''}{self.name}"
        about = (
            f"{self.how} `{command}` repeats it. On {machine()}, it took {_took(seconds)}; "
            f"meanwhile, other programs kept {others:.1f} cores busy."
        )
        page = folder / "benchmarks.md"
        old = page.read_text(encoding="utf-8") if page.exists() else TITLE
        new = with_section(old, self.heading, "\n\n".join([about, *self._parts]))
        write_atomically(page, new.encode())

    def _link(self, name: str, content: bytes, what: str) -> None:
        self._files[name] = content
        self._add(f"[{what}](benchmarks/{name})")

    def _add(self, part: str) -> None:
        self._flush()
        self._parts.append(part)

    def _flush(self) -> None:
        if self._figures:
            head = ("Figure", "Value", "Target")
            shown = 3 if any(target for _, _, target in self._figures) else 2
            self._parts.append(markdown(head[:shown], [row[:shown] for row in self._figures]))
            self._figures = []


def publish(benchmark: Callable[[Report], None], name: str, heading: str, how: str) -> None:
    """Run a benchmark as a command and write its section."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--quick", action="store_true", help="small sizes, written to build/")
    report = Report(name, heading, how, quick=parser.parse_args().quick)
    print(f"\n## {heading}", flush=True)
    others, start = _others_s(), time.perf_counter()
    benchmark(report)
    seconds = time.perf_counter() - start
    report.write(seconds, max(0.0, _others_s() - others) / seconds)


def _others_s() -> float:
    """Return how long other programs have kept the cores of this machine busy, in seconds."""
    every, own = psutil.cpu_times(), psutil.Process().cpu_times()
    idle_s = every.idle + getattr(every, "iowait", 0.0)
    guest_s = getattr(every, "guest", 0.0) + getattr(every, "guest_nice", 0.0)  # counted twice
    return float(sum(every) - idle_s - guest_s - sum(own[:4]))


def _took(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} minutes"


def with_section(page: str, heading: str, body: str) -> str:
    """Replace the section with a heading of the second level, or add it at the end."""
    section = f"## {heading}\n\n{body.strip()}\n"
    parts = re.split(r"^(?=## )", page.rstrip() + "\n", flags=re.MULTILINE)
    place = [n for n, part in enumerate(parts) if part.splitlines()[0] == f"## {heading}"]
    parts = [part.rstrip() + "\n" for part in parts]
    if place:
        parts[place[0]] = section
    else:
        parts.append(section)
    return "\n".join(parts)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table in Markdown; columns of numbers are right-aligned.

    Headings begin with a capital, but for names of methods.
    """
    head = [
        name if name.split(" ")[0] in placers() else name[:1].upper() + name[1:] for name in head
    ]
    lines = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    right = [bool(lines) and all(_is_number(row[n]) for row in lines) for n in range(len(head))]
    rule = ["---:" if number else "---" for number in right]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *lines))


def _is_number(cell: str) -> bool:
    return not cell or bool(re.match(r"[-+−]?\d", cell))


def svg(figure: Figure, name: str) -> str:
    """Draw a figure as SVG for light and dark pages; the same figure gives the same text."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() != "linear":
                low, high = axis.get_view_interval()
                if high < LONG_AXIS * low:
                    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axis.set_major_formatter("{x:g}")
                axis.set_minor_formatter(NullFormatter())
    image = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(image, format="svg", metadata={"Date": None})
    text = "\n".join(line.rstrip() for line in image.getvalue().splitlines()) + "\n"
    return without_ground(text)


def without_ground(text: str) -> str:
    """Take matplotlib's white grounds out of an SVG picture, and draw what is black in grey."""
    text = text.replace(
        '<style type="text/css">*{', f'<style type="text/css">text{{fill: {NEUTRAL}}} *{{', 1
    )
    return text.replace("fill: #ffffff", "fill: none").replace("#000000", NEUTRAL)


def machine() -> str:
    """Describe this machine in a few words."""
    cores = len(os.sched_getaffinity(0))
    memory = psutil.virtual_memory().total / 2**30
    return f"{cores} cores of {_processor()}, {memory:.0f} GiB, Python {platform.python_version()}"


def _processor() -> str:
    with suppress(OSError):
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if found:
            return re.sub(r"\((R|TM)\)|\bCPU\b", "", found[1]).replace("  ", " ").strip()
    return platform.machine()


def seconds_of(work: Callable[[], object], repeats: int = 15) -> list[float]:
    """Return the wall times of warm runs in seconds; one run before them is not counted."""
    work()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return seconds


def median_s(work: Callable[[], object], repeats: int = 15) -> float:
    """Return the median wall time of warm runs in seconds."""
    return float(np.median(seconds_of(work, repeats)))


def spread(values: Sequence[float], form: str = ".1f") -> str:
    """Write the median of some values, and their quartiles in brackets."""
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return f"{middle:{form}} ({low:{form}} to {high:{form}})"


@contextmanager
def watched_memory() -> Iterator[list[float]]:
    """Watch this process and its children, such as solvers; yield a list: the peak so far in MiB.

    Memory that processes share counts once.
    """
    own, over, peak_mib = psutil.Process(), threading.Event(), [0.0]

    def look() -> None:
        while not over.wait(LOOK_S):
            total = 0
            for process in (own, *own.children(recursive=True)):
                with suppress(psutil.Error):  # the process has just ended
                    total += process.memory_full_info().pss
            peak_mib[0] = max(peak_mib[0], total / 2**20)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield peak_mib
    finally:
        over.set()
        watcher.join()
