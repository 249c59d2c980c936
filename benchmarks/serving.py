"""Serving: blocks of vLLM's cache, and mixes of cards, beside the splits of other programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter

from benchmarks.report import Report, publish
from enplace.serving.answer import plan_serving
from enplace.serving.costs import Costs, Wanted
from enplace.serving.decoder import Decoder, make_decoder
from enplace.serving.machine import Machine, make_machine
from enplace.serving.others import even_split
from enplace.serving.search import find_split, longest_context
from enplace.serving.splits import Share
from enplace.serving.weights import read_weights

L4, RESERVE = "8*l4:23034MiB", "10%"
"""What NVML says of an L4, and what vLLM leaves of it by default."""

BLOCK = 16
"""Tokens of a block of vLLM's cache."""

MIXES = (
    ("llama-3-70b-fp8", "rtx-4090,3*rtx-a5000,rtx-3060:12GiB", 8),
    ("llama-3-70b-fp8", "l40s,2*rtx-3090", 8),
    ("llama-3-70b-fp8", "h100,rtx-4090", 16),
    ("llama-3-70b-fp8", "2*a40,rtx-a4000,t4", 16),
    ("llama-3-70b", "h100,2*l40s,rtx-3090", 8),
    ("llama-3-70b", "a100:40GiB,a100,rtx-a6000", 8),
    ("llama-3.1-8b", "rtx-3060,rtx-4070", 4),
    ("llama-3.1-8b", "rtx-3080,rtx-3060", 2),
    ("llama-3.1-8b", "t4,rtx-4090", 16),
)
"""Model, cards, and requests of 4,096 tokens."""


def main(report: Report) -> None:
    """Report blocks, then mixes."""
    report.title("Blocks of vLLM's cache on 8 L4")
    report.text(
        "[vLLM's published case](https://github.com/vllm-project/vllm/pull/6920) is Llama 3 70B in "
        "float8 on 8 L4 of 24 GB: 1,476 blocks with equal stages, 3,078 with fewer layers in the "
        "first and the last one, and 1.46 times the throughput. Its formula: the least of all "
        "cards of (90 % of its memory − weights − activations) / (16 tokens × cache of a token in "
        "its layers). *Balanced* is the best split whose first and last stage have equally few "
        "layers, and whose others are as equal as can be. What else those cards held was not "
        "published, so the counts here are higher."
    )
    report.table(("weights", "split", "layers", "blocks"), _blocks())
    report.title("Splits on unlike cards")
    report.text(
        "Tokens per second of all requests, each with 4,096 tokens in its cache; a dash where a "
        "split does not fit the cards. Each was found in less than the seconds shown."
    )
    report.table(
        (
            "model",
            "cards",
            "requests",
            "layers",
            "ours",
            "by vLLM",
            "by llama.cpp",
            "by accelerate",
            "(s)",
        ),
        _mixes(MIXES[: report.pick(len(MIXES), 2)]),
    )


def _blocks() -> Iterator[list[str]]:
    machine = make_machine(L4, RESERVE)
    for title, name in (("float8", "llama-3-70b-fp8"), ("bfloat16", "llama-3-70b")):
        decoder = replace(make_decoder(read_weights(name)), most_context=0)
        costs = Costs(decoder, machine, Wanted(2048, 1))
        cards = range(machine.n_cards)
        balanced = max(
            (_balanced(decoder.n_layers, ends, cards) for ends in range(1, 11)),
            key=lambda split: _count_blocks(decoder, machine, split),
        )
        longest = Costs(decoder, machine, Wanted(longest_context(costs), 1))
        for who, split in (
            ("even", even_split(costs)),
            ("balanced", balanced),
            ("ours", find_split(longest).split),
        ):
            counts = " ".join(f"{share.n_layers}" for share in split)
            yield [title, who, counts, f"{_count_blocks(decoder, machine, split):,}"]


def _balanced(n_layers: int, ends: int, cards: Sequence[int]) -> list[Share]:
    inner = len(cards) - 2
    least, more = divmod(n_layers - 2 * ends, inner)
    counts = [ends, *(least + (at < more) for at in range(inner)), ends]
    return [Share(card, n) for card, n in zip(cards, counts, strict=True)]


def _count_blocks(decoder: Decoder, machine: Machine, split: Sequence[Share]) -> int:
    """Return the blocks of the card that has the fewest, as vLLM counts them."""
    costs, begin, found = Costs(decoder, machine, Wanted(2048, 1)), 0, []
    for at, (device, n) in enumerate(split):
        is_last = at == len(split) - 1
        held = costs.bytes_of(begin, begin + n, first=at == 0, last=is_last)
        free = machine.cluster.devices[device].capacity_bytes - held.weights - held.activations
        begin += n
        found.append(free // (BLOCK * n * decoder.layers[0].token_bytes))
    return max(0, min(found))


def _mixes(mixes: Sequence[tuple[str, str, int]]) -> Iterator[list[str]]:
    for model, cards, requests in mixes:
        started = perf_counter()
        found = plan_serving(model, cards, 4096, requests)
        spent_s = perf_counter() - started
        counts = " ".join(f"{share.n_layers}" for share in found.served.split)
        others = [
            next((each for name, each in found.others.items() if name.startswith(who)), None)
            for who in ("vLLM", "llama.cpp", "accelerate")
        ]
        speeds = [f"{each.tokens_per_s:.3g}" if each and each.fits else "—" for each in others]
        figures = [f"{found.tokens_per_s:.3g}", *speeds]
        yield [f"`{model}`", f"`{cards}`", f"{requests}", counts, *figures, f"{spent_s:.1f}"]


if __name__ == "__main__":
    publish(
        main,
        "serving",
        "Serving on unlike cards",
        "All figures are computed, by the model of [what serving costs]"
        "(explanation/serving.md); nothing was measured on cards.",
    )
