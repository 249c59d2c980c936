"""What ``run`` and ``tune`` measured, as text and as figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from enplace.text import change_text, count, finite, listed_ops, ms, percent, size, table

if TYPE_CHECKING:
    from enplace.frameworks.measured import MeasuredRun
    from enplace.frameworks.tuning import Trial, Tuning

CHANGED = (
    "The result differs from the run without the plan. A plan changes no arithmetic; a model "
    "that draws random numbers (in Python, or without a seed) differs from run to run."
)

CHANGED_BY_MORE = (
    "After the first step, the loss or the weights differ from those without the plan by more than "
    "rounding, and splits, hosts and micro-batches change no more than that."
)


def run_numbers(run: MeasuredRun) -> dict[str, Any]:
    """Return the figures of a run; null for unknown ones."""
    names = {"profile": run.profile.name, "method": run.plan.method}
    return names | run.to_json() | {"as_planned": run.as_planned}


def describe_run(run: MeasuredRun, devices: str) -> str:
    """Return the figures of a run as text."""
    from enplace.frameworks.measured import quartiles_us

    steps = count(len(run.step_times_us), "step")
    head = f"{run.profile.name} on {devices}, {run.plan.method}, {steps}"
    in_place = [f"{run.checked}s where planned", f"{run.in_place[0]:,}", f"of {run.in_place[1]:,}"]
    if run.on_labels:
        rows = [in_place, *_on_labels(run), *_result_rows(run), *_held(run)]
    else:
        rows = [
            ["step time", ms(run.step_time_us), _prediction(run)],
            ["", *_spread(quartiles_us(run.step_times_us))],
            *_input(run),
            *_in_ops(run),
            *_rivals(run),
            in_place,
            ["out of order", _shown(run.order_violations), ""],
            *_result_rows(run),
            *_per_sample(run),
        ]
    changed = (CHANGED_BY_MORE if run.rounds else CHANGED) * run.changes_result
    first = f"{head}\n\n{run.verdict}".strip()
    remarks = (
        run.about_batches,
        _caveat(run),
        run.about_stock,
        run.about_replicas,
        run.about_comparison,
        run.drift,
        changed,
    )
    ends = [f"\n\n{text}" for text in remarks if text]
    own_words = run.framework.in_own_words
    rows = [[*map(own_words, row)] for row in rows]
    return f"{first}\n\n{table(rows, 'lrl')}{_stages(run)}{own_words(''.join(ends))}"


def _on_labels(run: MeasuredRun) -> list[list[str]]:
    """Say what was sent, and what is predicted."""
    from enplace.frameworks.measured import NOT_SEEN

    facts = run.facts
    by_module = facts["placed_by_module"]
    moved = f"{size(facts['moved_bytes'])} in a step"
    rows = [["transfers", f"{facts['transfers']:,}", moved]]
    unseen = (run.op_device == NOT_SEEN).nonzero()[0]
    if len(unseen):
        such = f"of {run.profile.n_ops:,} in the plan, such as {run.profile.op_names[unseen[0]]}"
        rows.insert(0, ["ops not seen", f"{len(unseen):,}", such])
    if by_module:
        rows.insert(0, ["ops of other names", f"{by_module:,}", "where their module is"])
    if added := [run.profile.index[each.added] for each in run.plan.splits]:
        ran = f"{int((run.op_device[added] != NOT_SEEN).sum()):,} of {len(added):,}"
        rows.append(["ops added by the plan", ran, "computed again or fetched"])
    if math.isfinite(run.predicted_step_time_us):
        used = count(len({*run.plan.device.tolist()}), "device")
        rows.append(["predicted step", ms(run.predicted_step_time_us), f"on {used}"])
    return rows


def _held(run: MeasuredRun) -> list[list[str]]:
    """Show the most that each label held, beside the prediction."""
    from enplace.values.device_names import device_label

    predicted = run.facts.get("predicted_peak_bytes", {})
    return [
        [
            f"most held by {device_label(name)}",
            size(held),
            f"predicted {size(predicted[name])}" if name in predicted else "",
        ]
        for name, held in run.facts["placed_peak_bytes"].items()
    ]


def _shown(violations: int | None) -> str:
    return "not checked" if violations is None else f"{violations:,}"


def _per_sample(run: MeasuredRun) -> list[list[str]]:
    """Show the mean time of a micro-batch and of a sample of the batch."""
    if not run.pipeline:
        return []
    rows = []
    for what, number in (
        ("micro-batch", run.pipeline["microbatches"]),
        ("sample of the batch", run.pipeline["samples"]),
    ):
        predicted_us = run.predicted_step_time_us / number
        about = f"predicted {ms(predicted_us)}" if math.isfinite(predicted_us) else ""
        rows.append([f"mean time per {what}", ms(run.step_time_us / number), about])
    return rows


def _stages(run: MeasuredRun) -> str:
    """Compare each device of a pipeline with its prediction."""
    from enplace.machine.pipelines.words import about_waiting

    if not run.pipeline:
        return ""
    kind, number = run.pipeline["schedule"], run.pipeline["microbatches"]
    rows = [["", "busy", "predicted", "memory", "predicted", "in flight", "planned"]]
    for row in run.pipeline["devices"]:
        known = "predicted_busy_share" in row
        rows.append(
            [
                row["device"],
                percent(row["busy_share"]),
                percent(row["predicted_busy_share"]) if known else "",
                size(row["peak_bytes"]),
                size(row["predicted_peak_bytes"]) if known else "",
                str(row["in_flight"]),
                str(row.get("planned_in_flight", "")),
            ]
        )
    hint = "" if known else "\nGive --profile to see what was predicted."
    head = f"Pipeline: {kind}, {number} micro-batches"
    if "stages" in run.pipeline:
        head += f", {count(run.pipeline['stages'], 'stage')}"
    if "ops_cut" in run.pipeline:
        head += f", {run.pipeline['ops_cut']:,} ops cut"
    if shared := run.pipeline.get("shared_parameters"):
        head += f", {count(shared, 'parameter')} exchanged between stages"
    about = "\nDropout is off in both runs." * run.pipeline.get("without_dropout", False)
    if elsewhere := run.pipeline.get("ops_elsewhere"):
        about += (
            f"\n{count(elsewhere, 'op')} without parameters ran with the module before, on another "
            f"device than planned and predicted; plans with --grain block keep them there."
        )
    if known and (waiting := about_waiting(kind)):
        about += f"\n{waiting}"
    return f"\n\n{head}\n\n{table(rows, 'lrrrrrr')}{hint}{about}{_own_statistics(run)}"


def _own_statistics(run: MeasuredRun) -> str:
    """Name ops whose statistics are those of each micro-batch."""
    own, by = run.pipeline["own_statistics"], run.pipeline["whole_difference"]
    if not own:
        return ""
    so = "" if by is None else f": the loss of the first step differs by {by:.2g}"
    return (
        f"\n\nEach micro-batch took its own mean or sum in {listed_ops(own)}, so the result is "
        f"not that of the whole batch{so}. It was compared with the same micro-batches without the "
        "plan."
    )


def _result_rows(run: MeasuredRun) -> list[list[str]]:
    """Compare loss and weights with those of the run without the plan."""
    against = "from the run without the plan"
    loss, weights = _difference(run.loss_difference), _difference(run.weights_difference)
    gradients = run.facts.get("gradients_difference")
    shown = "" if gradients is None else _difference(gradients)
    if not (run.differs and run.rounds):
        rows = [["loss differs by", loss, against], ["weights differ by", weights, ""]]
        return [*rows, ["gradients differ by", shown, ""]] if shown else rows
    rows = [
        ["first step differs by", _difference(run.first_step_difference), against],
        _rounding(run),
        ["loss drifts by", loss, "over all steps"],
        ["weights drift by", weights, ""],
    ]
    return [*rows, ["gradients drift by", shown, "until timing begins"]] if shown else rows


def _rounding(run: MeasuredRun) -> list[str]:
    """Say which difference of the first step is no more than rounding."""
    if (tolerance := run.facts.get("tolerance")) is not None:
        return ["", f"{tolerance:.2g}", "is taken for rounding"]
    difference = _difference(run.rounding_difference)
    return ["", difference, "if only the last bits of variables change"]


def _rivals(run: MeasuredRun) -> list[list[str]]:
    """Compare the step time with those that need no plan."""
    from enplace.frameworks.measured import quartiles_us

    itself = f"{run.framework.name} by itself"
    alone, one = (run.facts.get(f"{name}_quartiles_us") for name in ("stock", "unplaced"))
    rivals = {
        itself: (run.stock_step_time_us, alone),
        "on one device": (run.one_device_us, one),
        "data parallel": (run.replicas_us, quartiles_us(run.replica_times_us)),
    }
    rows = []
    if not math.isfinite(run.stock_step_time_us):
        rows.append([itself, "out of memory", "the model fits only with a plan"])
    for name, (us, quartiles) in rivals.items():
        if math.isfinite(us):
            rows.append([name, ms(us), f"the plan: {change_text(run.step_time_us / us - 1)}"])
            rows += [["", *_spread(quartiles)]] if quartiles else []
    if math.isfinite(run.predicted_replicas_us):
        rows.append(["data parallel", ms(run.predicted_replicas_us), "predicted, not timed"])
    return rows


def _spread(quartiles: Sequence[float]) -> tuple[str, str]:
    """Show between which times the middle half of the steps is."""
    least, most = map(ms, quartiles)
    return f"{least} to {most}", "half of the steps"


def _input(run: MeasuredRun) -> list[list[str]]:
    """Show the part of a step that no plan changes."""
    wait_us, start_us = run.outside
    if not wait_us + start_us:
        return []
    what = f"of it {ms(wait_us)} for the batch, {ms(start_us)} before the first op"
    return [["input and start", ms(wait_us + start_us), what]]


def _in_ops(run: MeasuredRun) -> list[list[str]]:
    """Show what of a step the prediction knows best, and what else there is."""
    in_ops_us, predicted_us = run.in_ops_us
    if not math.isfinite(predicted_us):
        return []
    between_us = max(run.step_time_us - in_ops_us - run.outside[1], 0.0)
    sends = f"waits, and the framework's work for {count(run.facts['transfers'], 'transfer')}"
    return [
        ["in ops, busiest device", ms(in_ops_us), f"predicted {ms(predicted_us)}"],
        ["between its ops", ms(between_us), sends],
    ]


def _prediction(run: MeasuredRun) -> str:
    predicted_us = run.predicted_step_time_us
    if not math.isfinite(predicted_us):
        return ""
    error = percent(predicted_us / run.step_time_us - 1, signed=True)
    return f"predicted {ms(predicted_us)}, {error}"


def _caveat(run: MeasuredRun) -> str:
    """Return the known reason why a prediction is wrong; empty if there is none."""
    return run.caveat if run.on_labels or math.isfinite(run.predicted_step_time_us) else ""


def _difference(value: float) -> str:
    return f"{value:.2g}" if math.isfinite(value) else "unknown"


def tuning_numbers(tuned: Tuning) -> dict[str, Any]:
    """Return the figures of a tuning."""
    return {
        "step_time_us": tuned.best.run.step_time_us,
        "first_step_time_us": tuned.trials[0].run.step_time_us,
        "one_device_step_time_us": finite(tuned.one_device_us),
        "stock_step_time_us": finite(tuned.stock_us),
        "data_parallel_step_time_us": finite(tuned.replicas_us),
        "verdict": tuned.verdict,
        "settled": tuned.settled,
        "rounds": [{"kept": trial.kept, **run_numbers(trial.run)} for trial in tuned.trials],
    }


def describe_tuning(tuned: Tuning) -> str:
    """Return the figures of a tuning as text."""
    rows = [["", "plan", "predicted", "measured", ""]]
    for number, trial in enumerate(tuned.trials):
        predicted, measured = trial.run.predicted_step_time_us, trial.run.step_time_us
        label = f"round {number}" if number else "at first"
        rows.append([label, trial.plan.method, ms(predicted), ms(measured), _verdict(trial, tuned)])
    itself = f"{tuned.best.run.framework.name} by itself"
    rivals = {
        itself: tuned.stock_us,
        "on one device": tuned.one_device_us,
        "data parallel": tuned.replicas_us,
    }
    rows += [["", name, "", ms(us), ""] for name, us in rivals.items() if math.isfinite(us)]
    end = "The measured costs promise no faster plan." if tuned.settled else ""
    caveat = next(filter(None, (_caveat(trial.run) for trial in tuned.trials)), "")
    faults = [_faults(number, trial.run) for number, trial in enumerate(tuned.trials)]
    faults += [trial.run.why_no_replicas for trial in tuned.trials]
    first = f"{tuned.verdict}\n" if tuned.verdict else ""
    own_words = tuned.best.run.framework.in_own_words
    remarks = [own_words(each) for each in dict.fromkeys(faults)]
    return "\n".join(filter(None, [first, table(rows, "llrrl"), *remarks, caveat, end]))


def _verdict(trial: Trial, tuned: Tuning) -> str:
    if not trial.run.as_planned:
        return "not as planned" if trial is tuned.trials[0] else "not as planned, rolled back"
    return "best" if trial is tuned.best else "kept" if trial.kept else "slower, rolled back"


def _faults(number: int, run: MeasuredRun) -> str:
    """Say how the plan of a round did not run as planned; empty if it did."""
    text = ", ".join(run.faults)
    where = f"Round {number}" if number else "The first plan"
    return f"{where} did not run as planned: {text}." if text else ""
