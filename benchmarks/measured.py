"""TensorFlow: plans run on logical CPUs of this machine; measured and predicted step times.

Everything goes through the command line, as a user would do it: profile a model of
``resources/models``, place it with several methods, run each plan. Logical CPUs of one machine
share its cores and its memory, so these figures are emulated. They test that plans are applied
exactly and that the simulator adds up, not how fast several GPUs are.

With one thread for all (1/1 threads, on one core) only one logical CPU runs at a time, as in that
cluster, and an op takes as long as it did alone. With a core each they run at once, but slow each
other down: the machine model ignores what two cores share, such as caches and memory.

Usage: python -m benchmarks.measured [MODEL ...]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.report import figure, title

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


def main() -> None:
    """Print the table."""
    chosen = sys.argv[1:] or list(MODELS)
    errors: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for model in chosen:
            for count, cores in CASES:
                os.sched_setaffinity(0, cores or EVERY_CORE)
                what = "one at a time" if cores else "at once"
                errors.setdefault(what, []).extend(_run_all(model, count, what, Path(folder)))
    title("All of these")
    for what, found in errors.items():
        off = [abs(error) for error in found]
        figure(f"error of the step time, {what}: mean", f"{statistics.fmean(off):.1%}", "5 %")
        figure("  and worst", f"{max(off):.1%}", "11 %")


def _run_all(model: str, count: int, what: str, folder: Path) -> list[float]:
    """Profile one model on some logical CPUs and run the plan of every method there."""
    script = [str(SCRIPTS / f"{model}.py"), *_arguments(MODELS[model])]
    devices = ["--devices", f"cpu:{count}", "--trust"]
    profile, plan = str(folder / "profile.enplace"), str(folder / "plan.json")
    enplace("profile", *script, *devices, "-o", profile)
    title(f"{model} on {count} logical CPUs {what}: predicted / measured ms, error, overhead")
    errors = []
    for method in METHODS:
        where = ["--cluster", "local", "--method", method]
        enplace("place", profile, *where, "--time-limit", "5", "-o", plan)
        done = enplace("run", *script, plan, *devices, "--profile", profile, "--steps", str(STEPS))
        errors.append(done["predicted_step_time_us"] / done["step_time_us"] - 1)
        figure(method, *_cells(done, errors[-1]))
    return errors


def _cells(done: dict[str, Any], error: float) -> tuple[str, str]:
    predicted, measured = done["predicted_step_time_us"] / 1e3, done["step_time_us"] / 1e3
    kept = f"{done['ops_on_planned_device']} of {done['ops_checked']} ops where planned"
    return (
        f"{predicted:.1f} / {measured:.1f}  {error:+.1%}",
        f"{done['step_time_us'] / done['facts']['unplaced_step_time_us'] - 1:+.1%} of unplaced, "
        f"loss difference {done['loss_difference']:g}, "
        f"{done['order_violations']} out of order, {kept}",
    )


def _arguments(words: tuple[str, ...]) -> list[str]:
    """Write the script's own arguments as options of the command line."""
    return [f"--arg={word}" for word in words]


def enplace(*words: str) -> dict[str, Any]:
    """Run a command; return its JSON document."""
    command = [str(Path(sys.executable).with_name("enplace")), *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}: {done.stderr.strip()}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


if __name__ == "__main__":
    main()
