"""Progress of the default method on 36,000 ops."""

from __future__ import annotations

from matplotlib.figure import Figure

from benchmarks.report import Report, publish, watched_memory
from benchmarks.synthetic import HEADS, transformer
from enplace.placers import DEFAULT_METHOD, PlaceOptions, Progress, Stop, place
from enplace.readers.clusters import presets
from enplace.values.problem import Problem

CLUSTERS = {"celeritas": "4 GPUs behind a switch", "pesto": "2 GPUs with NVLink"}
LOOKS_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
QUICK_LOOKS_S = (1.0, 2.0, 5.0)

Look = tuple[float, float]
"""After how many seconds a plan was found, and its step time in us."""


def main(report: Report) -> None:
    """Report the best plan so far at several moments, and its distance to the bound."""
    looks_s = report.pick(LOOKS_S, QUICK_LOOKS_S)
    profile = transformer(report.pick(69, 8), HEADS)
    drawing = Figure(figsize=(8, 3.2), layout="constrained")
    raw = []
    for axes, cluster in zip(drawing.subplots(1, len(CLUSTERS)), CLUSTERS, strict=True):
        problem = Problem(profile, presets()[cluster])
        report.text(f"{profile.n_ops:,} ops, {profile.n_edges:,} edges on {CLUSTERS[cluster]}:")
        with watched_memory() as peak_mib:
            found, bound_us = _watch(problem, looks_s[-1])
        report.figure("first plan after", f"{found[0][0]:.2f} s", "under 1 s")
        for look_s in looks_s:
            known = [step_us for at_s, step_us in found if at_s <= look_s]
            if known:
                report.figure(f"step time after {look_s:.0f} s", f"{known[-1] / 1e3:.1f} ms")
        report.figure("proven not below", f"{bound_us / 1e3:.1f} ms")
        report.figure("memory of all processes", f"{peak_mib[0]:.0f} MiB", "under 1.5 GB")
        raw += [(cluster, f"{at:.2f}", f"{us:.0f}", f"{bound_us:.0f}") for at, us in found]
        last = (looks_s[-1], found[-1][1])
        seconds, steps_us = zip(*found, last, strict=True)
        axes.step(seconds, [us / 1e3 for us in steps_us], where="post", label="best plan so far")
        axes.axhline(bound_us / 1e3, color="grey", linestyle="--", label="proven bound")
        axes.set(xscale="log", xlabel="seconds", ylabel="step time, ms", title=CLUSTERS[cluster])
        axes.legend(fontsize="small")
    report.picture(drawing, "Best plan so far and the proven bound over time")
    report.numbers(("cluster", "seconds", "step_us", "bound_us"), raw)


def _watch(problem: Problem, limit_s: float) -> tuple[list[Look], float]:
    """Solve; return the plans found and the bound in us."""
    found: list[Look] = []

    def listen(progress: Progress) -> None:
        if progress.objective_us is not None:
            found.append((progress.seconds, progress.objective_us))

    options = PlaceOptions(stop=Stop(limit_s), progress=listen)
    bound_us = place(problem, DEFAULT_METHOD, options=options).bound_us or 0.0
    return found, bound_us


if __name__ == "__main__":
    publish(
        main,
        "search",
        "Progress of the search on 36,000 ops",
        "Simulated step times at measured moments. One run on each cluster.",
    )
