"""TensorFlow: plans run on logical CPUs of this machine, measured beside their prediction.

Everything goes through the command line, as a person would do it: profile a model of
``resources/models``, place it with several methods, run each plan. Logical CPUs of one machine
share its cores and its memory, so these figures are emulated: they test that plans are applied
exactly and that the simulator adds up, not how fast several GPUs are.

Usage: python -m benchmarks.measured [MODEL ...]
"""

from __future__ import annotations

import json
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
COUNTS = (2, 4)
STEPS = 20
SCRIPTS = Path(__file__).parents[1] / "resources" / "models"


def main() -> None:
    """Print the table."""
    chosen = sys.argv[1:] or list(MODELS)
    errors = []
    with tempfile.TemporaryDirectory() as folder:
        for model in chosen:
            for count in COUNTS:
                errors += _run_all(model, count, Path(folder))
    title("All of these")
    absolute = [abs(error) for error in errors]
    figure("mean error of the step time", f"{statistics.fmean(absolute):.1%}", "5 % or less")
    figure("worst error", f"{max(absolute):.1%}", "11 % or less")


def _run_all(model: str, count: int, folder: Path) -> list[float]:
    """Profile one model on some logical CPUs and run the plan of every method there."""
    script = [str(SCRIPTS / f"{model}.py"), *_arguments(MODELS[model])]
    devices = ["--devices", f"cpu:{count}", "--trust"]
    profile, plan = str(folder / "profile.enplace"), str(folder / "plan.json")
    _enplace("profile", *script, *devices, "-o", profile)
    title(
        f"{model} on {count} logical CPUs: predicted / measured ms, error, losses, order, devices"
    )
    errors = []
    for method in METHODS:
        where = ["--cluster", "local", "--method", method]
        _enplace("place", profile, *where, "--time-limit", "5", "-o", plan)
        done = _enplace("run", *script, plan, *devices, "--profile", profile, "--steps", str(STEPS))
        errors.append(done["predicted_step_time_us"] / done["step_time_us"] - 1)
        figure(method, *_cells(done, errors[-1]))
    return errors


def _cells(done: dict[str, Any], error: float) -> tuple[str, str]:
    predicted, measured = done["predicted_step_time_us"] / 1e3, done["step_time_us"] / 1e3
    kept = f"{done['ops_on_planned_device']} of {done['ops_checked']} ops where planned"
    return (
        f"{predicted:.1f} / {measured:.1f}  {error:+.1%}",
        f"loss difference {done['loss_difference']:g}, "
        f"{done['order_violations']} out of order, {kept}",
    )


def _arguments(words: tuple[str, ...]) -> list[str]:
    """The script's own arguments, as options of the command line."""
    return [f"--arg={word}" for word in words]


def _enplace(*words: str) -> dict[str, Any]:
    """Run a command; its JSON document."""
    command = [str(Path(sys.executable).with_name("enplace")), *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}: {done.stderr.strip()}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


if __name__ == "__main__":
    main()
