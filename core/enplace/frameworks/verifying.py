"""Verify a machine: profile bundled models on it, place them, run every plan, and judge.

Each step is the job that ``profile``, ``place`` and ``run`` do; the models are ours, so nobody is
asked to trust them.
"""

from __future__ import annotations

import math
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from enplace.errors import CancelledError, ClusterError, EnplaceError
from enplace.frameworks import wishes
from enplace.frameworks.framework import Framework
from enplace.frameworks.jobs import Replicas, RunRequest, measure_profile
from enplace.frameworks.measured import SHARED_CACHES, SHARED_TURNS, MeasuredRun, median_us
from enplace.frameworks.microbatches import find_microbatches
from enplace.frameworks.nvml import driver_version, visible_cards
from enplace.frameworks.registry import framework_of
from enplace.frameworks.source import Source, source_of
from enplace.frameworks.tuning_process import runs_as, solves_as
from enplace.machine import simulate
from enplace.option import Value
from enplace.placers import DEFAULT_METHODS, PlaceOptions, Progress, Stop
from enplace.placers.data_parallel import mirrored
from enplace.placers.references import verdict
from enplace.processes.worker import Report, ignore, never
from enplace.readers.clusters import cluster_from, presets
from enplace.system import count_cores
from enplace.text import count, percent, size
from enplace.values.cluster import Cluster
from enplace.values.problem import THROUGHPUT, Problem
from enplace.values.profile import Profile
from enplace.values.schedule import Schedule

METHODS = ("single", "round-robin", "heft", "enplace")
"""One device, the most transfers, a list schedule, and a search."""

PROFILED_STEPS, WARM_UPS, MEASURED_STEPS = 30, 5, 20
LABELLED_STEPS = 3
"""Enough on labels, where nothing is timed."""

SEARCH_S = 4.0

STAGED, MICROBATCHES = "1f1b", 4
"""The pipeline that is run where devices are labels: its stages are processes, and take time."""

LABELLED = (
    "Labels of one CPU show where ops run and what they compute, but measure no step time. The "
    f"{STAGED} pipelines measure theirs, in processes."
)

POOR = 0.15
"""A median error of the predictions above this is worth a remark."""


@dataclass(frozen=True)
class DeviceFigures:
    """One device during a plan's step, predicted and measured.

    Attributes
    ----------
    measured_peak_bytes : int or None
        None if the device's allocator does not report it.
    """

    name: str
    capacity_bytes: int
    busy_us: float
    measured_busy_us: float
    peak_bytes: int
    measured_peak_bytes: int | None


@dataclass(frozen=True, eq=False)
class PlanCheck:
    """The plan of one method for one model.

    Attributes
    ----------
    schedule : Schedule or None
        The prediction; None if there is no plan.
    run : MeasuredRun or None
        None if it did not run.
    why_not : str
        Why there is no plan or no run; empty if it ran.
    """

    model: str
    method: str
    schedule: Schedule | None = None
    run: MeasuredRun | None = None
    why_not: str = ""

    @property
    def as_planned(self) -> bool:
        """Whether it ran, with every op in its place and in order, and with the same result."""
        return self.run is not None and self.run.as_planned

    @property
    def error(self) -> float | None:
        """The difference of the predicted step time, as a share of the measured one.

        None if it did not run, or on labels, which measure no step time.
        """
        if self.run is None or not self.run.step_time_us or self.run.on_labels:
            return None
        return self.run.predicted_step_time_us / self.run.step_time_us - 1

    @property
    def faults(self) -> str:
        """How it did not run as planned; empty if it did."""
        return self.why_not or ", ".join(self.run.faults if self.run else ())

    @property
    def devices(self) -> list[DeviceFigures]:
        """The figures of each device; empty if it did not run."""
        if self.schedule is None or self.run is None or self.run.on_labels:
            return []
        predicted, run = self.schedule, self.run
        if run.pipeline:
            return [_stage_figures(run, row) for row in run.pipeline["devices"]]
        figures = zip(
            run.cluster.devices,
            predicted.busy_us.tolist(),
            run.busy_us.tolist(),
            predicted.peak_bytes.tolist(),
            strict=True,
        )
        return [
            DeviceFigures(
                device.name,
                int(device.capacity_bytes),
                busy_us,
                measured_us,
                peak_bytes,
                run.allocator_peak_bytes.get(device.name),
            )
            for device, busy_us, measured_us, peak_bytes in figures
        ]


def _stage_figures(run: MeasuredRun, row: Mapping[str, Any]) -> DeviceFigures:
    """Return the figures of a device that has a stage."""
    return DeviceFigures(
        row["device"],
        int(run.cluster.capacity_bytes[run.cluster.index[row["device"]]]),
        row["predicted_busy_share"] * run.predicted_step_time_us,
        row["busy_share"] * run.step_time_us,
        row["predicted_peak_bytes"],
        row["peak_bytes"],
    )


@dataclass(frozen=True)
class DataParallel:
    """A model with a replica on each device.

    Attributes
    ----------
    measured_us : float
        NaN if it was not timed; ``why_not`` says why.
    called : str
        What the framework's people call it.
    """

    model: str
    predicted_us: float
    measured_us: float
    why_not: str
    called: str = "data parallel"

    @property
    def error(self) -> float | None:
        """The difference of the predicted step time, as a share of the measured one."""
        return self.predicted_us / self.measured_us - 1 if self.measured_us > 0 else None


@dataclass(frozen=True, eq=False)
class Verification:
    """What verifying a machine found.

    Attributes
    ----------
    devices : str
        As ``--devices`` names them.
    profiles : tuple of Profile
        Of the models that could be profiled.
    checks : tuple of PlanCheck
        Each model with each method.
    """

    devices: str
    profiles: tuple[Profile, ...]
    checks: tuple[PlanCheck, ...]

    @property
    def n_as_planned(self) -> int:
        """How many plans ran as planned."""
        return sum(check.as_planned for check in self.checks)

    @property
    def n_bit_equal(self) -> int:
        """How many of them gave the result of the run without the plan, to the last bit."""
        return sum(c.as_planned and c.run is not None and c.run.is_bit_equal for c in self.checks)

    @property
    def as_planned(self) -> bool:
        """Whether all plans did."""
        return self.n_as_planned == len(self.checks)

    @property
    def error(self) -> float | None:
        """Median difference between predicted and measured steps, in shares of the measured."""
        errors = [abs(check.error) for check in self.checks if check.error is not None]
        return statistics.median(errors) if errors else None

    @property
    def verdict(self) -> str:
        """The whole finding in one sentence."""
        start = "Runs as planned" if self.as_planned else "Does not run as planned"
        found = f"{start}: {self.n_as_planned} of {count(len(self.checks), 'plan')}"
        found += f", {self.n_bit_equal} bit-equal" * bool(self.n_as_planned)
        rounded = sum(c.as_planned and c.run is not None and c.run.differs for c in self.checks)
        found += f", {rounded} within rounding" * bool(rounded)
        if self.error is None:
            return f"{found}."
        return f"{found}, median |predicted − measured| {percent(self.error)} of the measured step."

    @property
    def advice(self) -> list[str]:
        """What to do about it: a line for each plan that failed, and a remark on predictions."""
        lines = [f"{c.model}, {c.method}: {c.faults}." for c in self.checks if not c.as_planned]
        if lines:
            lines.append("Send this report with your bug report.")
        if any(check.run and check.run.on_labels for check in self.checks):
            lines.append(LABELLED)
        if self.error is not None and self.error > POOR:
            lines.append(self._about_predictions)
        return lines

    @property
    def _about_predictions(self) -> str:
        caveats = [c.run.caveat for c in self.checks if c.run and c.run.caveat and c.error]
        first = f"Predictions are more than {100 * POOR:.0f} % off."
        stop = "Stop whatever else uses these devices, and verify again."
        if not caveats:
            return f"{first} {stop}"
        if caveats[0].startswith(SHARED_TURNS):
            return f"{first} {stop} {SHARED_TURNS}"
        if caveats[0] != SHARED_CACHES:
            return f"{first} {stop} {caveats[0]}"
        cores = count_cores()
        return (
            f"{first} {caveats[0]} Logical CPUs that take turns are predicted better: there are "
            f"more of them than cores, as with --devices cpu:{2 * cores} here."
        )

    @property
    def data_parallel(self) -> list[DataParallel]:
        """Data parallelism for each model for which it was timed, or is known not to work."""
        found = []
        for check in self.checks:
            run, schedule = check.run, check.schedule
            if run is None or schedule is None:
                continue
            shared = mirrored(schedule.problem, evenly=True)
            if shared and (run.about_replicas or math.isfinite(run.replicas_us)):
                times_us = shared.step_time_us, run.replicas_us
                say = framework_of(schedule.problem.measured_profile).in_own_words
                about, called = say(run.about_replicas), say(DataParallel.called)
                found.append(DataParallel(check.model, *times_us, about, called))
        return found

    @property
    def best(self) -> dict[str, str]:
        """For each model that ran, whether its fastest plan is worth it, in a sentence."""
        found = {}
        for model in dict.fromkeys(check.model for check in self.checks):
            run_by = [
                (check.method, check.run)
                for check in self.checks
                if check.model == model and check.run and not check.run.on_labels
            ]
            runs = [run for _, run in run_by]
            if runs:
                method, fastest = min(run_by, key=lambda each: each[1].step_time_us)
                rivals = (
                    [run.one_device_us for run in runs],
                    [run.stock_step_time_us for run in runs],
                    [run.replicas_us for run in runs],
                )
                alone_us, stock_us, replicas_us = map(median_us, rivals)
                said = verdict(fastest.step_time_us, alone_us, stock_us, replicas_us=replicas_us)
                named = f"Fastest: {method}." if len(runs) > 1 else f"Timed: {method}."
                found[model] = f"{named} {fastest.framework.in_own_words(said)}".strip()
        return found


def devices_to_verify(framework: Framework) -> str:
    """Return the usual devices; two logical GPUs if there may be one card, so that plans split.

    Without NVML, the number of cards is unknown. Two labels of a CPU, if it has no logical devices.
    """
    usual = framework.usual_devices()
    if framework.has_labels and usual == "cpu:1":
        return "cpu:2"
    may_be_one = usual == "gpu:all" and len(visible_cards()) < 2
    return "gpu:2" if framework.has_logical_devices and may_be_one else usual


def verify(
    framework: Framework,
    devices: str,
    scripts: Sequence[Path] = (),
    methods: Sequence[str] = METHODS,
    steps: int = MEASURED_STEPS,
    report: Report = ignore,
    cancelled: Callable[[], bool] = never,
) -> Verification:
    """Profile, place and run the framework's bundled models on some devices.

    A model or a plan that fails is part of the answer, unless it is the very first profile: then
    nothing can be measured here.

    Raises
    ------
    EnplaceError
        If the framework is missing, or the first model cannot be profiled.
    CancelledError
        If cancelled.
    """
    framework.check_devices(devices, for_run=True)
    on_labels = framework.uses_labels(devices)
    if not framework.is_installed:
        raise EnplaceError(f"verify runs models, but {framework.state}")
    if on_labels and _preset_of(devices) not in presets():
        raise ClusterError(f"'{devices}': verify labels two CPUs or four; use cpu:2 or cpu:4")
    profiles: list[Profile] = []
    checks: list[PlanCheck] = []
    scripts = scripts or framework.bundled
    if not scripts:
        raise EnplaceError(f"no models for {framework.name} ship with Enplace")
    methods = [*methods, STAGED] if on_labels else methods
    jobs = len(scripts) * (1 + len(methods))
    for script in scripts:
        shown = _share(report, len(checks) + len(profiles), jobs, script.stem)
        try:
            source = source_of(str(script))
            profile = _measure(source, devices, shown, cancelled)
        except CancelledError:
            raise
        except EnplaceError as error:
            if not profiles:
                raise
            why = f"the model cannot be profiled: {error}"
            checks += [PlanCheck(script.stem, method, why_not=why) for method in methods]
            continue
        profiles.append(profile)
        for method in methods:
            name = f"{script.stem}, {method}"
            shown = _share(report, len(checks) + len(profiles), jobs, name)
            # It is the same for all.
            shared: Replicas = "always" if method == methods[0] else ""
            check = _check(source, profile, method, devices, steps, shared, shown, cancelled)
            checks.append(check)
    return Verification(devices, tuple(profiles), tuple(checks))


def _measure(
    source: Source, devices: str, report: Report, cancelled: Callable[[], bool]
) -> Profile:
    where = "cpu:1" if source.framework.uses_labels(devices) else devices
    return measure_profile(source, where, PROFILED_STEPS, WARM_UPS, (), report, cancelled)


def _check(
    source: Source,
    profile: Profile,
    method: str,
    devices: str,
    steps: int,
    data_parallel: Replicas,
    report: Report,
    cancelled: Callable[[], bool],
) -> PlanCheck:
    """Make the plan of one method and run it."""

    def on_progress(progress: Progress) -> None:
        report("Placing", progress.fraction)

    schedule = None
    options = PlaceOptions(stop=Stop(SEARCH_S, cancelled=cancelled), progress=on_progress)
    wished: dict[str, Value] = {}
    if method == STAGED:
        wished = {wishes.PIPELINE.key: STAGED, wishes.MICROBATCHES.key: MICROBATCHES}
    elif source.framework.uses_labels(devices):
        steps = min(steps, LABELLED_STEPS)
    request = RunRequest(source, devices, steps, wished, data_parallel=data_parallel)
    wanted = find_microbatches(wished)
    try:
        if wanted is not None:  # a small step rarely takes its share of a large one
            cut = {**source.options, wishes.CUT_BATCH.key: wanted.number}
            source = replace(source, options=cut)
            profile = _measure(source, devices, report, cancelled)
        problem = Problem(profile, _cluster(source, devices, profile))
        chosen = method if wanted is None else DEFAULT_METHODS[THROUGHPUT]
        solve, _ = solves_as(wanted, chosen, lambda: options)
        schedule = simulate(problem, solve(problem))
        run = runs_as(request, report, cancelled)(problem, schedule.plan)
    except CancelledError:
        raise
    except EnplaceError as error:
        return PlanCheck(source.name, method, schedule, why_not=str(error))
    return PlanCheck(source.name, method, schedule, run)


def _cluster(source: Source, devices: str, profile: Profile) -> Cluster:
    """Return this machine, or as many labels of its CPU as were asked for."""
    if not source.framework.uses_labels(devices):
        return cluster_from("local", profile)
    return presets()[_preset_of(devices)]


def _preset_of(devices: str) -> str:
    return devices.strip().lower().replace(":", "-")


def _share(report: Report, done: int, jobs: int, name: str) -> Report:
    """Report the progress of one job as that of all; when its next part begins, none is lost."""
    most = 0.0

    def report_share(message: str, fraction: float | None) -> None:
        nonlocal most
        most = max(most, fraction or 0.0)
        report(f"{name}: {message}", (done + most) / jobs)

    return report_share


def machine_facts(found: Verification, version: str) -> dict[str, str]:
    """Describe the machine and the versions, Enplace's too, without names of machine or user."""
    versions = {
        f"{framework_of(profile).name} {profile.measured.framework_version}".strip()
        for profile in found.profiles
    }
    gpus = [f"{card.name}, {size(card.total_bytes)}" for card in visible_cards()]
    facts = {
        "devices": found.devices,
        "GPUs": "; ".join(gpus),
        "driver": driver_version(),
        "cores": str(count_cores()),
        "system": platform.platform(),
        "Python": platform.python_version(),
        "framework": ", ".join(sorted(versions)),
        "Enplace": version,
    }
    return {name: value for name, value in facts.items() if value}
