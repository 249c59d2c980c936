"""Truth check: compare simulated and measured step times on the GPU profiles.

In the measurements, two logical GPUs share one chip. The simulator runs one of them at a time; in
truth their kernels run side by side and slow each other down, so splits that are mostly serial are
the fair test. Costs come from the run on one GPU (``*_gt_all0``), devices are those recorded. Below
each error are the time that the step waits for transfers, and how much longer the kernels took than
on one GPU.

Usage: python -m benchmarks.truth [FOLDER with profiles]
"""

from __future__ import annotations

import statistics
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.report import figure, title
from enplace.machine import critical_path, simulate
from enplace.readers import read_profile, recorded_plan, with_costs_of
from enplace.readers.clusters import cluster_from
from enplace.values.problem import Problem
from enplace.values.profile import KINDS, IntArray, Profile

EXTERNAL = Path(__file__).parents[2] / "shared" / "workloads" / "gpu-profiles"
FAIR = ("softmax1", "timehalf", "encdec")


@dataclass(frozen=True)
class Case:
    """A measured run and its simulation."""

    name: str
    measured_ms: float
    simulated_ms: float
    transfer_ms: float

    @property
    def error(self) -> float:
        """Relative error of the simulated step."""
        return self.simulated_ms / self.measured_ms - 1


def main() -> None:
    """Print the tables."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else EXTERNAL
    paths = sorted(folder.glob("*.json.gz"))
    if not paths:
        sys.exit(f"no profiles in {folder}: the truth check needs the measured runs")
    profiles = {path.name.split(".")[0]: _read(path) for path in paths}
    single = {n: p for n, p in profiles.items() if "_gt_" not in n or n.endswith("all0")}
    _one_device(single)
    _memory(single)
    placed = [n for n in profiles if "_gt_" in n and not n.endswith("all0")]
    _two_devices([n for n in placed if n.endswith(FAIR)], profiles, fair=True)
    _two_devices([n for n in placed if not n.endswith(FAIR)], profiles, fair=False)


def _read(path: Path) -> Profile:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read_profile(path)


def _one_device(profiles: dict[str, Profile]) -> None:
    """Simulate each profile with its own launch gap, and with the median gap of all others."""
    title("One GPU: error of the simulated step, own launch gap / the other profiles' gap")
    gaps = {name: _gap_us(profile) for name, profile in profiles.items()}
    own, held_out = [], []
    for name, profile in profiles.items():
        others = statistics.median(gap for other, gap in gaps.items() if other != name)
        own.append(_simulated(name, profile).error)
        moved = _with_gap(profile, others)
        held_out.append(_simulated(name, moved).error)
        figure(
            f"{name} (gap {gaps[name]:.2f} us, {_measured_ms(profile):.1f} ms)",
            f"{own[-1]:+.1%} / {held_out[-1]:+.1%}",
        )
    _summary("own gap (fitted to this step)", own)
    _summary("held-out gap (nothing fitted)", held_out)


def _memory(profiles: dict[str, Profile]) -> None:
    """Compare the first GPU's peak with the one that TensorFlow's allocator reported."""
    title("One GPU: simulated peak memory against the allocator's")
    ratios = []
    for name, profile in profiles.items():
        cluster = cluster_from("local", profile)
        schedule = simulate(Problem(profile, cluster), recorded_plan(profile, cluster))
        gpu = cluster.index["GPU:0"]
        ratios.append(int(schedule.peak_bytes[gpu]) / profile.measured.peak_bytes["GPU:0"])
        figure(name, f"{ratios[-1] - 1:+.1%}")
    figure(
        "lowest / median / highest",
        " / ".join(
            f"{ratio - 1:+.1%}" for ratio in (min(ratios), statistics.median(ratios), max(ratios))
        ),
    )


def _with_gap(profile: Profile, gap_us: float) -> Profile:
    """Replace the launch gap of a profile's kernels."""
    kernels = _kernels(profile)
    time_us = profile.time_us.copy()
    time_us[:, KINDS.index("gpu")] += (gap_us - _gap_us(profile)) * kernels
    return profile.with_costs(np.where(time_us < 0, 0, time_us))


def _two_devices(names: list[str], profiles: dict[str, Profile], fair: bool) -> None:
    """Simulate the recorded devices with the costs of the run on one GPU."""
    what = "mostly serial: the fair test" if fair else "overlapping: not a test, one chip runs both"
    title(f"Two logical GPUs, {what}; simulated / measured step, error")
    errors = []
    for name in names:
        base = profiles.get(name.rsplit("_gt_", 1)[0] + "_gt_all0")
        if base is None:
            print(f"{name}: no run on one GPU to take the costs from")
            continue
        case = _simulated(name, with_costs_of(profiles[name], base))
        errors.append(case.error)
        slowed = _kernel_ms(profiles[name]) - _kernel_ms(base)
        figure(
            name,
            f"{case.simulated_ms:.1f} / {case.measured_ms:.1f} ms  {case.error:+.1%}",
        )
        print(
            f"    waiting for transfers {case.transfer_ms:.1f} ms; "
            f"kernels ran {slowed:+.1f} ms against one GPU"
        )
    if errors and fair:
        _summary("all of these", errors)


def _gap_us(profile: Profile) -> float:
    """Return the measured gap between two kernels."""
    assert profile.measured.launch_gap_us is not None
    return profile.measured.launch_gap_us


def _measured_ms(profile: Profile) -> float:
    assert profile.measured.step_time_us is not None
    return profile.measured.step_time_us / 1e3


def _kernels(profile: Profile) -> IntArray:
    """Count each op's kernels, shape (n_ops,)."""
    counts = profile.measured.op_kernels
    return np.array([counts.get(name, 0) for name in profile.op_names], dtype=np.int64)


def _kernel_ms(profile: Profile) -> float:
    kernels = _kernels(profile)
    total = np.nansum(profile.time_us[:, KINDS.index("gpu")])
    return float(total - _gap_us(profile) * kernels.sum()) / 1e3


def _simulated(name: str, run: Profile) -> Case:
    cluster = cluster_from("local", run)
    schedule = simulate(Problem(run, cluster), recorded_plan(run, cluster))
    path = critical_path(schedule)
    return Case(
        name,
        _measured_ms(run),
        schedule.makespan_us / 1e3,
        path.transfer_us / 1e3,
    )


def _summary(what: str, errors: list[float]) -> None:
    sizes = [abs(error) for error in errors]
    figure(f"{what}: mean error", f"{statistics.mean(sizes):.1%}", "5 % or less")
    figure(f"{what}: worst error", f"{max(sizes):.1%}", "11 % or less")


if __name__ == "__main__":
    main()
