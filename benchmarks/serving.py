"""Serving: blocks of vLLM's cache, and mixes of cards, beside the splits of other programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from time import perf_counter

from benchmarks.report import Report, publish
from enplace.serving.answer import find_serving
from enplace.serving.costs import Costs, Wanted
from enplace.serving.decoder import Decoder, make_decoder
from enplace.serving.machine import Machine, make_machine
from enplace.serving.others import even_split, split_by_memory
from enplace.serving.search import find_split, longest_context
from enplace.serving.splits import Share, evaluate
from enplace.serving.weights import read_weights
from enplace.text import percent

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

MEASURED = (
    ("rtx-3090", "llama-3.1-8b", 0, 46.51),
    ("rtx-4090", "llama-3.1-8b", 0, 54.34),
    ("2*rtx-3090", "llama-3.1-8b", 0, 47.15),
    ("4*rtx-4090", "llama-3.1-8b", 0, 52.69),
    ("6*rtx-3090", "llama-3-70b", 0, 5.82),
    ("8*rtx-4090", "llama-3-70b", 0, 6.45),
    ("rtx-3080", "llama-3.1-8b", 4.58, 106.40),
    ("rtx-4080", "llama-3.1-8b", 4.58, 106.22),
    ("rtx-3090", "llama-3.1-8b", 4.58, 111.74),
    ("rtx-4090", "llama-3.1-8b", 4.58, 127.74),
    ("2*rtx-3090", "llama-3-70b", 39.59, 16.29),
    ("2*rtx-4090", "llama-3-70b", 39.59, 19.06),
    ("4*rtx-3090", "llama-3-70b", 39.59, 16.89),
    ("4*rtx-4090", "llama-3-70b", 39.59, 18.83),
)
"""Cards, model, GiB of its Q4_K_M file or 0 for 16 bits, and tokens per second."""

GENERATED = 1024
"""Tokens that each measurement generates, so half of them are in the cache on average."""

Q4_K, Q6_K = 144 / 256, 210 / 256
"""Bytes of a weight; a Q4_K_M file has the embedding in the one and the head in the other."""


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
    report.title("Time of a token against published measurements")
    report.text(
        "Tokens per second of one request by llama.cpp, with its own split, as "
        "[published](https://github.com/XiongjieDai/GPU-Benchmarks-on-LLM-Inference) in May 2024 "
        f"for Llama 3 and {GENERATED:,} generated tokens, and as estimated for that split."
    )
    errors: list[float] = []
    report.table(("cards", "model", "weights", "measured", "estimated", "error"), _times(errors))
    report.text(
        f"The median error is {percent(median(map(abs, errors)))}, the largest "
        f"{percent(max(map(abs, errors)))}."
    )
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


def _times(errors: list[float]) -> Iterator[list[str]]:
    for cards, name, gib, measured in MEASURED:
        decoder = make_decoder(read_weights(name))
        if gib:
            decoder = _quantised(decoder, gib * (1 << 30))
        costs = Costs(decoder, make_machine(cards), Wanted(GENERATED // 2, 1))
        estimated = 1e6 / evaluate(costs, split_by_memory(costs)).alone_us
        errors.append(estimated / measured - 1)
        kind = "Q4_K_M" if gib else "16 bits"
        shown = percent(errors[-1], signed=True)
        yield [f"`{cards}`", f"`{name}`", kind, f"{measured:.3g}", f"{estimated:.3g}", shown]


def _quantised(decoder: Decoder, n_bytes: float) -> Decoder:
    """Return the model with the sizes that a Q4_K_M file of so many bytes has."""
    first, head = (int(decoder.head_params * each) for each in (Q4_K, Q6_K))
    each = int(n_bytes - first - head) // decoder.n_layers
    layers = tuple(replace(layer, n_bytes=each) for layer in decoder.layers)
    return replace(decoder, layers=layers, first_bytes=first, head_bytes=head)


def _mixes(mixes: Sequence[tuple[str, str, int]]) -> Iterator[list[str]]:
    for model, cards, requests in mixes:
        started = perf_counter()
        found = find_serving(model, cards, 4096, requests)
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
        "(explanation/serving.md); we measured nothing on cards.",
    )
