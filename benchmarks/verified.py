"""TensorFlow: ``enplace verify`` on logical CPUs, its time, and how far its predictions are off.

With more logical CPUs than cores, they take turns, as they do in the machine model.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from benchmarks.measured import enplace
from benchmarks.report import Report, publish
from enplace.text import percent


def main(report: Report) -> None:
    """Report the figures for a core each, and for two on each core."""
    cores = len(os.sched_getaffinity(0))
    for devices in ("cpu:2", f"cpu:{2 * cores}"):
        report.title(f"`enplace verify --devices {devices}` on {cores} cores")
        with tempfile.TemporaryDirectory() as folder:
            found = enplace("verify", "--devices", devices, "-o", str(Path(folder, "report.html")))
        report.figure("plans that ran exactly as planned", f"{found['exact']}", f"{found['plans']}")
        report.figure("median error of the step time", percent(found["median_error"]), "15 %")
        report.figure("time", f"{found['seconds']:.0f} s", "300 s")


if __name__ == "__main__":
    publish(
        main,
        "verified",
        "Verification on logical CPUs",
        "Emulated: logical CPUs of one machine, by TensorFlow. One run.",
    )
