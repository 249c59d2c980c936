"""Plans against the device maps of accelerate, for ten models on two to four cards.

It needs PyTorch, transformers and accelerate. A map is a placement of modules, so maps and plans
are simulated alike, on profiles that are estimated on tensors without content.
"""

from __future__ import annotations

import importlib.util
import logging
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.report import Report, publish
from enplace.errors import DoesNotFitError
from enplace.frameworks.jobs import measure_profile
from enplace.frameworks.own_cluster import NVLINK, PCIE, describe
from enplace.frameworks.roofline import GPUS
from enplace.frameworks.source import source_of
from enplace.frameworks.torch.alternatives import fill_by_scope
from enplace.frameworks.torch.device_map import PARAMETERS, why_no_map
from enplace.frameworks.torch.names import scope_of_module
from enplace.inputs import make_problem
from enplace.machine import simulate
from enplace.machine.pipelines.loads import max_load_us
from enplace.names.layers import NONE as UNKNOWN
from enplace.placers import DEFAULT_METHODS, STEP_TIME, THROUGHPUT, PlaceOptions, Stop, place
from enplace.placers.max_load.memory.in_flight import find_pace_us
from enplace.placing.prices import total_price_us
from enplace.placing.rebalance import TIE
from enplace.placing.settle import by_placed_rank, settle
from enplace.text import listed, size
from enplace.values.cluster import Cluster
from enplace.values.load_rule import USUAL
from enplace.values.op_kinds import OpPass
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import IntArray, Profile
from enplace.values.result import Result

SCRIPT = Path(__file__).parent / "gpu" / "train.py"
MODELS = (
    *("resnet50", "vit", "bert", "gpt2", "whisper", "t5"),
    *("opt-1.3b", "mixtral", "qwen-1.5b", "llama-7b"),
)
"""By their size."""

Cards = tuple[str, Sequence[tuple[str, float]]]

CARDS: dict[str, Cards] = {
    "2 × H100": (NVLINK, [("h100", 80)] * 2),
    "4 × H100": (NVLINK, [("h100", 80)] * 4),
    "2 × 24 GiB": (PCIE, [("a100", 24)] * 2),
    "24 + 12 GiB": (PCIE, [("a100", 24), ("v100", 12)]),
    "80 + 40 + 24 + 24 GiB": (PCIE, [("h100", 80), ("a100", 40), ("a100", 24), ("a100", 24)]),
    "1.5 + 3 GiB": (PCIE, [("a100", 1.5), ("a100", 3)]),
    "2 × 2 GiB": (PCIE, [("a100", 2)] * 2),
}
"""Links; the model that each card is as fast as, and its GiB."""

TRAINED_ON = [*CARDS][:5]
SERVED = ("vit", "gpt2", "opt-1.3b", "llama-7b")
SERVED_ON = ("2 × H100", "24 + 12 GiB", "80 + 40 + 24 + 24 GiB")
"""A few models in inference, which is what accelerate's maps are mostly for."""

UNEVEN = {"one-large-part": "1.5 + 3 GiB", "three-parts": "2 × 2 GiB"}
"""Two situations that were reported to accelerate, as 3041 and 1888."""

LIMIT_S, QUICK_S = 5.0, 1.0
EQUAL = 1 + TIE
"""A ratio below is a tie: a plan may take as much longer than another to leave more memory free."""

Us = tuple[float, float]
"""Step time and time per sample; nan where no step fits, inf where no pipeline does."""


NONE = np.nan, np.nan


class Row(NamedTuple):
    """What both take, and why a map is none."""

    model: str
    cards: str
    of: str
    theirs: Us
    ours: Us
    why: str


def main(report: Report) -> None:
    """Report ratios, and what accelerate does not place."""
    if missing := [n for n in ("torch", "transformers", "accelerate") if not _is_here(n)]:
        report.skip(f"needs {listed(missing)}")
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    limit_s, names = report.pick((LIMIT_S, MODELS), (QUICK_S, MODELS[:1]))
    report.text(
        'Against `infer_auto_device_map` with `get_balanced_memory`, as for `device_map="auto"`, '
        "with the blocks that a model names as not to be split. Steps of both maps are simulated "
        "in the same way: cards work side by side where the model's branches, or gradients and "
        "updates, allow it. Accelerate itself runs one card after another, so its steps take "
        "longer with either map. These links were not measured, so each transfer is charged as in "
        "the choice of a plan, with both maps. The time per sample is that of a "
        "pipeline of the same modules. "
        f"Plans have whole blocks, and {limit_s:.0f} s for an objective. For the "
        "step time, tied weights stay on one card, so that the plan is a device map itself. "
        "A step is one of training with AdamW or SGD."
    )
    cards = report.pick(TRAINED_ON, TRAINED_ON[:2])
    rows = [*_rows(names, "training", cards, limit_s)]
    report.title("Times of training, accelerate's over ours: step, sample")
    report.table(["model", *cards], _table(rows, cards))
    report.title("All of them")
    _sum_up(report, rows)
    report.title("Times of inference, accelerate's over ours: step, sample")
    served = [
        *_rows(report.pick(SERVED, SERVED[:1]), "inference", SERVED_ON[: len(cards)], limit_s)
    ]
    report.table(["model", *SERVED_ON], _table(served, SERVED_ON))
    _sum_up(report, served)
    report.title("Parts of uneven size")
    report.text(
        "Two situations that were reported to accelerate, here in inference: it keeps room for the "
        "largest layer that is still to come, and goes from card to card without turning back, so "
        "it leaves to the host what fits."
    )
    uneven = {k: v for k, v in UNEVEN.items() if not report.quick}
    odd = [row for n, cards in uneven.items() for row in _rows([n], "inference", [cards], limit_s)]
    report.table(
        ["model", "cards", "accelerate", "our step (ms)"],
        [[r.model, r.cards, r.why, f"{r.ours[0] / 1e3:.1f}"] for r in odd],
    )
    report.numbers(
        ("model", "cards", "of", "step_us", "sample_us", "our_step_us", "our_sample_us", "why"),
        [(r.model, r.cards, r.of, *(f"{us:.1f}" for us in (*r.theirs, *r.ours)), r.why)
         for r in (*rows, *served, *odd)],
    )  # fmt: skip


def _is_here(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _rows(names: Sequence[str], of: str, cards: Sequence[str], limit_s: float) -> Iterator[Row]:
    for name in names:
        profile = estimate(name, of)
        for title in cards:
            cluster = cluster_of(title)
            row = Row(name, title, of, NONE, NONE, "exceeds all memory")
            with suppress(DoesNotFitError):
                theirs, why = simulate_map(Problem(profile, cluster), device_map(name, cluster))
                row = Row(name, title, of, theirs, plan(profile, cluster, limit_s), why)
            print(*row, flush=True)
            yield row


def estimate(name: str, of: str) -> Profile:
    """Record a step, or a forward pass, on tensors without content."""
    is_used = of == "inference"
    source = source_of(
        str(SCRIPT),
        arguments=(name, *(["--inference"] if is_used else [])),
        framework_name="torch",
        estimate="h100",
        forward=is_used,
    )
    return measure_profile(source, "cpu:1", 1, 0)


def cluster_of(title: str) -> Cluster:
    """Make a cluster of cards, which may be unlike."""
    link, cards = CARDS[title]
    cluster = describe(len(cards), cards[0][0], 1 << 30, link)
    gpus = [
        replace(device, capacity_bytes=int(gib * 2**30), speed=GPUS[model].speed)
        for device, (model, gib) in zip(cluster.devices, cards, strict=False)
    ]
    return replace(cluster, name=title, devices=(*gpus, *cluster.devices[len(gpus) :]))


def plan(profile: Profile, cluster: Cluster, limit_s: float) -> Us:
    """Return the step time of a plan that is a device map, and the time per sample of another."""
    found = []
    for objective, tied in ((STEP_TIME, _tied(profile)), (THROUGHPUT, [])):
        problem = make_problem(profile, cluster, grain="block", colocate=tied)
        options = PlaceOptions(objective=objective, stop=Stop(limit_s))
        result = place(problem, DEFAULT_METHODS[objective], options=options)
        if objective == STEP_TIME and (why := why_no_map(Result(result.schedule))):
            raise AssertionError(why)
        charged_us = total_price_us(result.schedule) if objective == STEP_TIME else 0.0
        found.append(result.value_us + charged_us if result.schedule.fits else np.nan)
    return found[0], found[1]


def _tied(profile: Profile) -> list[str]:
    """Return a regex of each group of modules that share a parameter."""
    modules: dict[str, list[str]] = defaultdict(list)
    for path, op in profile.measured.config[PARAMETERS].items():
        modules[op].append(re.escape(scope_of_module(path.rpartition(".")[0])))
    return [f"^({'|'.join(paths)})/" for paths in map(list, map(set, modules.values()))
            if len(paths) > 1]  # fmt: skip


def simulate_map(problem: Problem, on: Mapping[str, Any]) -> tuple[Us, str]:
    """Return the times of a map of modules to numbers of cards, or why it is none."""
    if offloaded := sorted({str(device) for device in on.values() if isinstance(device, str)}):
        return NONE, f"leaves a part to the {listed(offloaded)}"
    device = _placed(problem, on)
    schedule = simulate(problem, Plan(device, by_placed_rank(problem, device), "accelerate"))
    if not schedule.fits:
        over = max(schedule.peak_bytes - problem.cluster.capacity_bytes)
        return NONE, f"exceeds a card's memory by {size(over)}"
    sample_us = max_load_us(problem, device)
    if OpPass.BACKWARD in problem.profile.op_passes:  # only training keeps samples in flight
        sample_us = max(sample_us, find_pace_us(problem, device, USUAL))
    return (schedule.makespan_us + total_price_us(schedule), sample_us), ""


def _placed(problem: Problem, on: Mapping[str, Any]) -> IntArray:
    """Return the device of each op: its module's, or else that of ops around it."""
    of_scope = {scope_of_module(path): int(device) for path, device in on.items()}

    def device_of(scope: str) -> int:
        parts = scope.split("/")
        prefixes = ("/".join(parts[:end]) for end in range(len(parts), -1, -1))
        return next((of_scope[each] for each in prefixes if each in of_scope), UNKNOWN)

    unknown = np.full(problem.profile.n_ops, UNKNOWN)
    return settle(problem, fill_by_scope(problem.profile, unknown, device_of))


def device_map(name: str, cluster: Cluster) -> Mapping[str, Any]:
    """Let accelerate divide a model over the cards of a cluster."""
    import torch
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    from benchmarks.gpu import train

    with torch.device("meta"):
        model = train.MODELS[name](False)[0]
    classes = list(getattr(model, "_no_split_modules", None) or ["Bottleneck"])
    most: dict[int | str, int] = {
        at: cluster.devices[gpu].capacity_bytes for at, gpu in enumerate(cluster.gpus)
    }
    most |= {"cpu": cluster.devices[cluster.cpus[0]].capacity_bytes}
    memory = get_balanced_memory(model, most, no_split_module_classes=classes)
    found: Mapping[str, Any] = infer_auto_device_map(model, memory, no_split_module_classes=classes)
    return found


def _table(rows: Sequence[Row], cards: Sequence[str]) -> Iterator[list[str]]:
    for name in dict.fromkeys(row.model for row in rows):
        own = {row.cards: row for row in rows if row.model == name}
        yield [name, *(_ratios(own[title]) if title in own else "" for title in cards)]


def _ratios(row: Row) -> str:
    if row.why:
        ours = "not ours" if np.isfinite(row.ours[0]) else "ours, too"
        return f"it {row.why.split(' by ')[0]}, {ours}"
    pairs = zip(row.theirs, row.ours, strict=True)
    return ", ".join(f"{us / own:.2f}" if np.isfinite(us) else "only ours" for us, own in pairs)


def _sum_up(report: Report, rows: Sequence[Row]) -> None:
    for at, what in enumerate(("step time", "time per sample")):
        both = [row for row in rows if np.isfinite(row.theirs[at])]
        ratio = np.array([row.theirs[at] / row.ours[at] for row in both])
        slower = int((~(ratio >= 1 / EQUAL)).sum())
        report.figure(f"{what}, plans that are slower", f"{slower} of {len(both)}", "none")
        report.figure(
            f"accelerate's {what} over ours, geometric mean and most",
            f"{np.exp(np.nanmean(np.log(ratio))):.2f}, {np.nanmax(ratio):.2f}",
        )
    full = sum(bool(np.isinf(row.theirs[1])) for row in rows)
    report.figure("maps whose pipeline exceeds memory with its samples in flight", f"{full}")
    none = [row for row in rows if row.why]
    ours = sum(bool(np.isfinite(row.ours[0])) for row in none)
    report.figure("maps that exceed memory in a single step", f"{len(none)}")
    report.figure("of these, with a plan of ours that fits", f"{ours}")


if __name__ == "__main__":
    publish(
        main,
        "device_maps",
        "Device maps of accelerate",
        "Simulated, from op times estimated for the H100. One run.",
    )
