"""TensorFlow: plans run on logical CPUs of this machine; measured and predicted step times.

Everything goes through the command line, as a user would do it: profile a model of
``resources/models``, place it with several methods, run each plan. Logical CPUs of one machine
share its cores and its memory, so these figures are emulated. They test that plans are applied
exactly and that the simulator adds up, not how fast several GPUs are.

With one thread for all (1/1 threads, on one core) only one logical CPU runs at a time, as in that
cluster, and an op takes as long as it did alone. With a core each they run at once, but slow each
other down: the machine model ignores what two cores share, such as caches and memory.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.report import Report, publish
from enplace.text import percent

MODELS = {
    "rnnlm": ("--batch", "64", "--hidden", "256"),
    "nmt": ("--batch", "32", "--hidden", "192"),
    "transformer": ("--batch", "16", "--hidden", "128", "--length", "32"),
    "vgg19": ("--batch", "16", "--width", "8"),
}
"""Large enough that most of a step is spent in kernels."""

METHODS = ("single", "expert", "m-topo", "heft", "enplace")
ALONE = {0}
CASES = ((2, ALONE), (4, ALONE), (2, None))
"""Number of logical CPUs, and the cores that they may use; None for all cores."""

STEPS = 20
EVERY_CORE = os.sched_getaffinity(0)
SCRIPTS = Path(__file__).parents[1] / "resources" / "models"


def main(report: Report) -> None:
    """Report all tables."""
    chosen = list(MODELS)[: report.pick(None, 1)]
    errors: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for model in chosen:
            for count, cores in CASES[: report.pick(None, 1)]:
                os.sched_setaffinity(0, cores or EVERY_CORE)
                what = "one at a time" if cores else "at once"
                found = _run_all(report, model, count, what, Path(folder))
                errors.setdefault(what, []).extend(found)
    os.sched_setaffinity(0, EVERY_CORE)
    report.title("All logical CPUs")
    for what, found in errors.items():
        off = [abs(error) for error in found]
        report.figure(f"{what}: mean error of the step time", percent(statistics.fmean(off)), "5 %")
        report.figure(f"{what}: worst error", percent(max(off)), "11 %")


def _run_all(report: Report, model: str, count: int, what: str, folder: Path) -> list[float]:
    """Profile one model on some logical CPUs and run the plan of every method there."""
    script = [str(SCRIPTS / f"{model}.py"), *_arguments(MODELS[model])]
    devices = ["--devices", f"cpu:{count}", "--trust"]
    profile, plan = str(folder / "profile.enplace"), str(folder / "plan.json")
    enplace("profile", *script, *devices, "-o", profile)
    report.title(f"{model} on {count} logical CPUs, {what}")
    errors: list[float] = []

    def rows() -> Iterator[list[str]]:
        for method in METHODS:
            where = ["--cluster", "local", "--method", method]
            enplace("place", profile, *where, "--time-limit", "5", "-o", plan)
            steps = ["--profile", profile, "--steps", str(STEPS)]
            done = enplace("run", *script, plan, *devices, *steps)
            errors.append(done["predicted_step_time_us"] / done["step_time_us"] - 1)
            yield [f"`{method}`", *_cells(done, errors[-1])]

    head = ("method", "predicted / measured (ms)", "error", "against the unplaced step")
    report.table((*head, "loss difference", "ops out of order", "ops where planned"), rows())
    return errors


def _cells(done: dict[str, Any], error: float) -> tuple[str, ...]:
    predicted, measured = done["predicted_step_time_us"] / 1e3, done["step_time_us"] / 1e3
    return (
        f"{predicted:.1f} / {measured:.1f}",
        percent(error, signed=True),
        percent(done["step_time_us"] / done["facts"]["unplaced_step_time_us"] - 1, signed=True),
        f"{done['loss_difference']:g}",
        str(done["order_violations"]),
        f"{done['ops_on_planned_device']} of {done['ops_checked']}",
    )


def _arguments(words: tuple[str, ...]) -> list[str]:
    """Write the script's own arguments as options of the command line."""
    return [f"--arg={word}" for word in words]


def enplace(*words: str) -> dict[str, Any]:
    """Run a command; return its JSON document."""
    command = [sys.executable, "-m", "enplace", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}: {done.stderr.strip()}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


if __name__ == "__main__":
    publish(
        main,
        "measured",
        "Simulator against logical CPUs",
        "Emulated: logical CPUs of one machine, by TensorFlow. Measured steps are medians of 20.",
    )
