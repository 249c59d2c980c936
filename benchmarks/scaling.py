"""Time and memory of every stage, from reading to writing, from 1,000 to 1,000,000 ops.

Each size runs in a process of its own. A stage's memory is the largest resident memory of that
process while the stage runs; it includes the model. A stage that passes its bound ends its process,
and another goes on with the next stage.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.report import Report, publish, spread
from benchmarks.synthetic import HEADS, transformer
from enplace.bounds import lower_bound_us
from enplace.bounds.step_time import MOST_OPS_WITH_HEADS
from enplace.coarsen import fuse, merge_batches
from enplace.machine import simulate
from enplace.placers import DEFAULT_METHOD, PlaceOptions, Progress, Stop, place
from enplace.placers.enplace.starts import LARGE
from enplace.placing.settle import natural_position, settle
from enplace.readers import read_profile
from enplace.readers.clusters import presets
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.writers import write_profile

LAYERS = (2, 6, 19, 58, 192, 576, 1920)
"""Each layer has about 520 ops."""

QUICK_LAYERS = LAYERS[:4]
CLUSTER, VERTICES = "celeritas", 200
CAPACITY_BYTES = 1 << 40
"""Memory of each GPU: enough for every size, so that no plan is repaired."""

LISTS = ("m-topo", "heft", "m-etf", "dpos")
RUNS, LONG_S = 3, 2.0
"""Each stage runs three times, or once if it takes longer than this."""

MOST_S = 60
"""A stage is stopped after this long, and left out at larger sizes."""

FROM_OPS = 9_000
"""Exponents are fitted from here on: below, fixed costs count."""

Measured = dict[str, list[float]]
"""Of a stage: the times of its runs (``seconds``) and its peak memory (``mib``)."""


def main(report: Report) -> None:
    """Report times, memory and exponents of all stages."""
    report.text(
        "A training step of stacked layers with 64 heads, 1.7 edges per op, on 4 GPUs "
        f"(`{CLUSTER}`, with {CAPACITY_BYTES >> 40} TiB of memory each, so that every plan fits). "
        f"Each stage ran {RUNS} times at each size, or once where it took over {LONG_S:.0f} s; the "
        "fastest and slowest are in the raw numbers. Exponents are fitted from "
        f"{FROM_OPS:,} ops on, by least squares of the logarithms. A stage is stopped after "
        f"{MOST_S} s, and left out of larger sizes."
    )
    report.text(
        f"Two stages change on the way, so their exponents say little. Above {LARGE:,} ops, the "
        "search begins with the methods that gain most, below with the quickest. Above "
        f"{MOST_OPS_WITH_HEADS:,} ops, the heads and tails of the lower bound only follow paths."
    )
    found: dict[int, dict[str, Measured]] = {}
    late: dict[str, str] = {}
    for layers in report.pick(LAYERS, QUICK_LAYERS):
        n_ops, stages, stopped = _run(layers, list(late))
        found[n_ops] = stages
        late |= dict.fromkeys(stopped, f"over {MOST_S} s at {n_ops:,} ops")
    sizes = list(found)
    names = list(found[sizes[0]])
    head = ["stage", *(f"{n_ops:,} ops" for n_ops in sizes), "exponent"]
    report.title("Time of each stage, in seconds")
    report.table(head, [_row(name, found, "seconds", late.get(name, "")) for name in names])
    report.picture(_picture(found, names), "Time of every stage against the number of ops")
    report.title("Memory of each stage, in MiB")
    report.text(
        "The largest resident memory of the process while the stage runs; it includes Python, the "
        f"libraries and the model. Exponents are of what is added to that of {sizes[0]:,} ops."
    )
    report.table(head, [_row(name, found, "mib", late.get(name, "")) for name in names])
    report.numbers(
        ("ops", "stage", "least_s", "median_s", "most_s", "runs", "peak_mib"),
        (
            (
                n_ops,
                name,
                *_quantiles(measured["seconds"]),
                len(measured["seconds"]),
                *measured["mib"],
            )
            for n_ops, stages in found.items()
            for name, measured in stages.items()
        ),
    )


def _quantiles(seconds: list[float]) -> tuple[str, ...]:
    return tuple(f"{value:.5f}" for value in np.quantile(seconds, (0, 0.5, 1)))


def _row(name: str, found: dict[int, dict[str, Measured]], what: str, why_not: str) -> list[str]:
    known = {n: float(np.median(at[name][what])) for n, at in found.items() if name in at}
    cells = [_cell(known[n], what) if n in known else why_not for n in found]
    base = known[min(known)] if what == "mib" else 0.0
    fitted = [(n, value - base) for n, value in known.items() if n >= FROM_OPS and value > base]
    if len(fitted) < 2:
        return [name, *cells, ""]
    ops, values = np.log(np.array(fitted)).T
    return [name, *cells, f"{np.polyfit(ops, values, 1)[0]:.2f}"]


def _cell(value: float, what: str) -> str:
    if what == "mib":
        return f"{value:,.0f}"
    return f"{value:.3f}" if value >= 0.01 else f"{value:.5f}"


def _picture(found: dict[int, dict[str, Measured]], names: list[str]) -> Figure:
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name in names:
        sizes = [n for n in found if name in found[n]]
        seconds = [float(np.median(found[n][name]["seconds"])) for n in sizes]
        axes.plot(sizes, seconds, marker="o", markersize=3, label=name)
    axes.set(xscale="log", yscale="log", xlabel="ops", ylabel="seconds")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _run(layers: int, leave_out: list[str]) -> tuple[int, dict[str, Measured], list[str]]:
    """Measure one size, and print each stage as it ends.

    Returns
    -------
    n_ops : int
    stages : dict of str to dict
        What each stage took.
    stopped : list of str
        The stages that passed their bound.
    """
    stages: dict[str, Measured] = {}
    stopped: list[str] = []
    n_ops, name = 0, ""
    while True:
        words = ["-c", "from benchmarks.scaling import child; child()", str(layers)]
        words += [*leave_out, *stages, *stopped]
        with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            for line in run.stdout:
                n_ops, name, measured = json.loads(line)
                if measured:
                    stages[name] = measured
                    print(_told(n_ops, name, measured), flush=True)
        if run.returncode == 0:
            return n_ops, stages, stopped
        if run.returncode != -signal.SIGALRM:
            raise subprocess.CalledProcessError(run.returncode, run.args)
        stopped.append(name)
        print(f"{n_ops:>10,} {name:<40}over {MOST_S} s, stopped", flush=True)


def _told(n_ops: int, name: str, measured: Measured) -> str:
    seconds, mib = spread(measured["seconds"], ".3f"), measured["mib"][0]
    return f"{n_ops:>10,} {name:<40}{seconds} s {mib:,.0f} MiB"


def child() -> None:
    """Measure one size; arguments are the layers and stages to leave out.

    A line of JSON says that a stage begins, and another what it took.
    """
    layers, leave_out = int(sys.argv[1]), set(sys.argv[2:])
    with tempfile.TemporaryDirectory() as folder:
        # Once in small, which loads what is compiled.
        _stages(LAYERS[0], Path(folder), leave_out, runs=1, tell=lambda *said: None)
        _stages(
            layers, Path(folder), leave_out, RUNS, lambda *said: print(json.dumps(said), flush=True)
        )


def _stages(
    layers: int,
    folder: Path,
    leave_out: set[str],
    runs: int,
    tell: Callable[[int, str, Measured], None],
) -> None:
    path = folder / f"{layers}.enplace"
    write_profile(path, transformer(layers, HEADS))
    profile = read_profile(path)
    gpus = presets()[CLUSTER]
    roomy = [replace(device, capacity_bytes=CAPACITY_BYTES) for device in gpus.devices]
    problem = Problem(profile, replace(gpus, devices=tuple(roomy)))

    def measure(stage: str, work: Callable[[], object]) -> None:
        if stage not in leave_out:
            tell(profile.n_ops, stage, {})
            tell(profile.n_ops, stage, _measured(work, runs))

    measure("read", lambda: read_profile(path))
    measure(
        f"coarsen, to {VERTICES} vertices (Pesto)", lambda: merge_batches(_new(problem), VERTICES)
    )
    measure("coarsen, fusion (Celeritas)", lambda: fuse(_new(problem)))
    for name in LISTS:
        measure(f"list schedule, {name}", partial(_place, problem, name))
    if (stage := "simulate, once the problem is laid out") not in leave_out:
        plan = _in_blocks(problem)
        simulate(problem, plan)
        measure(stage, lambda: simulate(problem, plan))
    measure("lower bound", lambda: lower_bound_us(_new(problem)))
    measure("search, to its first plan", lambda: _first_plan(_new(problem)))
    measure("write", lambda: write_profile(folder / "again.enplace", profile))


def _in_blocks(problem: Problem) -> Plan:
    """Give each GPU a stretch of the graph's own order."""
    gpus, n_ops = np.array(problem.cluster.gpus), problem.profile.n_ops
    position = natural_position(problem)
    return Plan(settle(problem, gpus[position * len(gpus) // n_ops]), position, "blocks")


def _place(problem: Problem, method: str) -> object:
    return place(_new(problem), method)


def _new(problem: Problem) -> Problem:
    """Return the same problem without anything derived from it, so that this counts too."""
    return Problem(problem.profile, problem.cluster)


class _FoundError(Exception):
    """A plan was found."""


def _first_plan(problem: Problem) -> None:
    """Search until the first plan is there."""

    def listen(progress: Progress) -> None:
        if progress.objective_us is not None:
            raise _FoundError

    with suppress(_FoundError):
        options = PlaceOptions(stop=Stop(MOST_S), progress=listen)
        place(problem, DEFAULT_METHOD, options=options)


def _measured(work: Callable[[], object], runs: int) -> dict[str, list[float]]:
    """Run up to a few times, each within the bound; Linux tells the peak of the memory."""
    seconds: list[float] = []
    Path("/proc/self/clear_refs").write_text("5")
    while len(seconds) < runs and not (seconds and seconds[0] > LONG_S):
        signal.alarm(MOST_S)  # ends this process, even in compiled code
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
        signal.alarm(0)
    status = Path("/proc/self/status").read_text()
    peak_kib = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    return {"seconds": seconds, "mib": [round(int(peak_kib) / 1024)]}


if __name__ == "__main__":
    publish(
        main,
        "scaling",
        "Scaling from 1,000 to 1,000,000 ops",
        "Measured. Medians of three runs.",
    )
