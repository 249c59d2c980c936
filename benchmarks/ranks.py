"""PyTorch: pipelines of two processes on this machine, measured and predicted.

Everything goes through the command line: profile a decoder, place it for throughput, run the stages
as 1F1B. The uneven decoder has a head that takes as long as most of its layers together, so that
stages of equally many layers are poor.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measured import enplace
from benchmarks.report import Report, publish
from enplace.text import percent

SCRIPT = Path(__file__).with_name("staged.py")
DECODERS = {"even": (6, 192, 1024, 32, 64), "uneven": (6, 192, 8192, 32, 64)}
"""Layers, width, words, samples of a batch, length of a sample."""

MICROBATCHES, STEPS = 8, 10


def main(report: Report) -> None:
    """Report the time per micro-batch, and stages of a plan against even layers."""
    if importlib.util.find_spec("torch") is None:
        report.skip("needs torch")
    found: dict[str, dict[str, Any]] = {}

    def rows() -> Iterator[list[str]]:
        for name in report.pick([*DECODERS], ["uneven"]):
            with tempfile.TemporaryDirectory() as folder:
                for stages, done in _measure(name, Path(folder)):
                    found[f"{name}, {stages}"] = done
                    yield [name, stages, *_cells(done)]

    head = ("decoder", "stages", "predicted / measured (ms per micro-batch)", "error")
    report.table((*head, "busy, measured", "busy, predicted", "first step differs by"), rows())
    errors = [_error(done) for done in found.values()]
    report.figure("worst error of the time", percent(max(map(abs, errors))), "15 %")
    plan, even = (found[f"uneven, {stages}"]["step_time_us"] for stages in ("plan", "even layers"))
    report.figure(
        "uneven: the plan's stages against even layers", percent(plan / even - 1), "−10 %"
    )


def _measure(name: str, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Profile a decoder, and run its stages."""
    sizes = DECODERS[name]
    script = [str(SCRIPT), "--trust", *(f"--arg={size}" for size in sizes)]
    profile, plan = str(folder / "profile.enplace"), str(folder / "plan.json")
    cut = ["--cut-batch", str(MICROBATCHES)]
    enplace("profile", *script, *cut, "--devices", "cpu:1", "--steps", str(STEPS), "-o", profile)
    first, second = (
        "|".join(f"layers_{layer}/" for layer in half)
        for half in (range(sizes[0] // 2), range(sizes[0] // 2, sizes[0]))
    )
    even = ["--pin", f"embedding|{first}=CPU:0", "--pin", f"{second}|head|loss=CPU:1"]
    for stages, pins in (("plan", []), ("even layers", even)):
        if name == "even" and pins:
            continue  # these are the plan's
        where = ["--cluster", "cpu-2", "--objective", "throughput", "--time-limit", "5"]
        enplace("place", profile, *where, *pins, "-o", plan, "--force")
        run = ["--pipeline", "1f1b", "--microbatches", str(MICROBATCHES), "--steps", str(STEPS)]
        yield (
            stages,
            enplace("run", *script, plan, "--devices", "cpu:2", *run, "--profile", profile),
        )


def _cells(done: dict[str, Any]) -> list[str]:
    rows = done["facts"]["pipeline"]["devices"]
    per_ms = [done[name] / MICROBATCHES / 1e3 for name in _TIMES]
    return [
        f"{per_ms[0]:.1f} / {per_ms[1]:.1f}",
        percent(_error(done), signed=True),
        ", ".join(percent(row["busy_share"]) for row in rows),
        ", ".join(percent(row["predicted_busy_share"]) for row in rows),
        f"{done['first_step_difference']:.1g}",
    ]


_TIMES = ("predicted_step_time_us", "step_time_us")


def _error(done: dict[str, Any]) -> float:
    predicted, measured = (float(done[name]) for name in _TIMES)
    return predicted / measured - 1


if __name__ == "__main__":
    publish(
        main,
        "ranks",
        "Pipelines of PyTorch on two processes",
        "Emulated: processes of one machine on its CPU, with a thread each. Measured steps are "
        "medians of 10.",
    )
