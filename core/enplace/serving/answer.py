"""The answer to someone who wants to serve a model: as figures, as text, and to paste."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Any

from enplace.errors import DoesNotFitError, EnplaceError
from enplace.files.outputs import PLAN, PROFILE, make_room
from enplace.readers.clusters import ClusterChoice
from enplace.serving.costs import Costs, Wanted
from enplace.serving.decoder import CACHES, Decoder, make_decoder
from enplace.serving.machine import Machine, make_machine
from enplace.serving.others import other_splits
from enplace.serving.search import (
    LATENCY_PER_TOKEN,
    MOST_CONTEXT,
    MOST_REQUESTS,
    OBJECTIVES,
    SLACK,
    TOKENS_PER_SECOND,
    find_split,
    longest_context,
    most_requests,
    why_not,
)
from enplace.serving.splits import Served
from enplace.serving.weights import read_weights
from enplace.text import count, instead, ms, percent, seconds, size, table
from enplace.values.device_names import device_label
from enplace.values.result import Result

LONGEST, MOST = "longest", "most"
USUAL_CONTEXT = 8192

PROGRAMS = {"vllm": "vLLM", "llama-cpp": "llama.cpp", "device-map": "accelerate"}
"""Names of exporters, and of the programs that take what they write."""

ROUNDING = 1e-9
"""Splits whose times differ by less than this share are equally fast."""

_TOKENS = re.compile(r"(\d{1,9})(k?)", re.IGNORECASE)


@dataclass(frozen=True)
class Serving:
    """How to serve a model on some cards.

    Attributes
    ----------
    served : Served
        The split, and what it comes to.
    objective : str
        What it is best for.
    longest_context, most_requests : int
        What fits on the cards alone: a context with as many requests, and requests with as long a
        context; 0 if the cards alone do not hold the model.
    others : mapping of str to Served
        Other programs' splits, by who makes them.
    """

    served: Served
    objective: str
    longest_context: int
    most_requests: int
    others: Mapping[str, Served]

    @property
    def decoder(self) -> Decoder:
        return self.served.costs.decoder

    @property
    def machine(self) -> Machine:
        return self.served.costs.machine

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all requests in a second, estimated."""
        return self.served.tokens_per_s

    @cached_property
    def result(self) -> Result:
        """The decoding of one token as a plan, which other commands and the studio take."""
        from enplace.serving.decode import decode_result

        return decode_result(self.served)

    @cached_property
    def commands(self) -> dict[str, str]:
        """What to give to each program that can hold the split, by its name."""
        from enplace.frameworks.registry import exporters

        found = {
            title: exporters()[name].text(self.result) + self._more(name)
            for name, title in PROGRAMS.items()
            if not self.why_not[title]
        }
        if self._lacks_bytes and (accelerate := PROGRAMS["device-map"]) in found:
            placed = self._with_disk(json.loads(found[accelerate]))
            found[accelerate] = f"{json.dumps(placed, indent=2)}\n"
        return found

    @property
    def _lacks_bytes(self) -> int:
        """Bytes of the host's layers, which are the first ones, that its memory cannot hold."""
        if self.served.split[0].device != self.machine.host:
            return 0
        return max(0, self.served.stage_bytes[0].weights - self.served.spare_bytes[0])

    def _with_disk(self, placed: Mapping[str, int | str]) -> dict[str, int | str]:
        """Return a device map with what the host cannot hold on the disk: its last layers."""
        profile = self.result.schedule.problem.measured_profile
        ops: dict[str, set[str]] = {module: set() for module in placed}
        for path, op in profile.measured.config["parameters"].items():
            while path not in ops:
                path = path.rpartition(".")[0]
            ops[path].add(op)
        found, lacks = dict(placed), self._lacks_bytes
        of_host = [module for module, device in placed.items() if device == "cpu"][::-1]
        for module in sorted(of_host, key=lambda each: not _stem(each).endswith(".")):
            if lacks > 0:
                found[module] = "disk"
                lacks -= sum(int(profile.persistent_bytes[profile.index[op]]) for op in ops[module])
        return found

    @cached_property
    def short_commands(self) -> dict[str, str]:
        """The same, with a device map as an expression of Python, for people to paste."""
        from enplace.writers.layers_per_stage import by_slot

        found = {**self.commands}
        if (accelerate := PROGRAMS["device-map"]) in found:
            slot = by_slot(self.result)
            note = f"# Start Python with {slot}: numbers then follow nvidia-smi.\n" if slot else ""
            found[accelerate] = note + _as_python(json.loads(found[accelerate]))
        return found

    @cached_property
    def why_not(self) -> dict[str, str]:
        """Why each program cannot hold the split, by its name; empty if it can."""
        from enplace.frameworks.registry import why_no_export

        found = {title: why_no_export(name, self.result) for name, title in PROGRAMS.items()}
        if self.decoder.weights.is_gguf:
            found[PROGRAMS["device-map"]] = "a GGUF file names no modules"
        return {title: why.partition("; ")[0] for title, why in found.items()}

    def _more(self, name: str) -> str:
        """Return the flags of what is wanted, which an exporter of a plan does not know."""
        wanted = self.served.costs.wanted
        is_short = self.decoder.cache != "16-bit"
        flags = {
            "vllm": f"# and: --max-model-len {wanted.context} --max-num-seqs {wanted.requests}"
            + " --kv-cache-dtype fp8" * is_short,
            "llama-cpp": f"-c {wanted.context * wanted.requests} -np {wanted.requests}"
            + " -fa on -ctk q8_0 -ctv q8_0" * is_short,
        }
        return f"{flags[name]}\n" if name in flags else ""

    def write(
        self, profile: str | None = None, plan: str | None = None, *, force: bool = False
    ) -> None:
        """Write the decoding of a token as a profile, and the split as a plan for it.

        Parameters
        ----------
        force : bool
            Replace a file even if it is of another kind.

        Raises
        ------
        FileError
            If a file cannot be written, or is of another kind.
        """
        from enplace.writers import write_plan, write_profile

        for path, kind in ((profile, PROFILE), (plan, PLAN)):
            if path:
                make_room(path, kind, force=force)
        if profile:
            write_profile(profile, self.result.schedule.problem.measured_profile)
        if plan:
            write_plan(plan, self.result)

    def __str__(self) -> str:
        return "\n\n".join(
            [self._head(), self._devices(), self._limits(), table(self.compared(), "llrr")]
        )

    def _head(self) -> str:
        wanted = self.served.costs.wanted
        lines = [
            f"{self.decoder.name}: {count(self.decoder.n_layers, 'layer')}, "
            f"{size(self.decoder.n_bytes)} of weights; {count(wanted.requests, 'request')} of "
            f"{count(wanted.context, 'token')} on {self.machine.cluster.name}.",
            f"Estimated: {self.tokens_per_s:.3g} tokens per second, {'; '.join(self.facts)}.",
        ]
        return "\n".join([*lines, *self.notes])

    @property
    def facts(self) -> list[str]:
        """Whose tokens per second these are, and what else is estimated, in phrases."""
        served, requests = self.served, count(self.served.costs.wanted.requests, "request")
        groups = f" in {served.n_groups} groups" if served.n_groups > 1 else ""
        prompt = count(served.costs.prompt, "token")
        return [
            f"of {requests}{groups}",
            f"{_per_token(served.alone_us)} per token of a request alone",
            f"first token of a prompt of {prompt} after {seconds(served.prompt_us / 1e6)}",
        ]

    @property
    def notes(self) -> list[str]:
        """What people should know, in sentences."""
        found, decoder, wanted = [*self.decoder.notes], self.decoder, self.served.costs.wanted
        if 0 < decoder.most_context < wanted.context:
            found.append(
                f"The model was made for {decoder.most_context:,} tokens; more may need scaled "
                f"positions."
            )
        first = self.served.split[0]  # the host, if any, takes the first layers
        if first.device == self.machine.host:
            found.append(
                f"The cards do not hold it: the host computes {count(first.n_layers, 'layer')} "
                f"from its memory, which is slow."
            )
            if lacks := self._lacks_bytes:
                found.append(
                    f"Of their weights, {size(lacks)} do not fit there and are read from the disk."
                )
                if not self.why_not[PROGRAMS["device-map"]]:
                    found.append(
                        'In the map for accelerate they are on "disk": give from_pretrained an '
                        "offload_folder, too."
                    )
        value = attrgetter("alone_us" if self.objective == LATENCY_PER_TOKEN else "token_us")
        fitting = [value(each) for each in self.others.values() if each.fits]
        if min(fitting, default=math.inf) < value(self.served) * (1 - ROUNDING):
            found.append(
                f"Of the splits that are as fast within {percent(SLACK)}, this one leaves the most "
                f"room for the cache."
            )
        return found

    def _devices(self) -> str:
        rows = [["device", "layers", "weights", "cache", "activations", "to spare", "busy"]]
        for each in self.devices:
            ends = [word for word in ("embedding", "head") if each[f"has_{word}"]]
            rows.append(
                [
                    f"{each['label']} {each['title']}".strip(),
                    " + ".join([f"{each['layers']}", *ends]),
                    size(each["weights_bytes"]),
                    size(each["cache_bytes"]),
                    size(each["activation_bytes"]),
                    size(each["spare_bytes"]),
                    percent(each["busy"]),
                ]
            )
        return table(rows, "llrrrrr")

    @property
    def devices(self) -> list[dict[str, Any]]:
        """The devices in the order of the model, as plain data."""
        served, cluster, begin, found = self.served, self.machine.cluster, 0, []
        last = len(served.split) - 1
        for at, share in enumerate(served.split):
            device, held = cluster.devices[share.device], served.stage_bytes[at]
            is_host = share.device == self.machine.host
            found.append(
                {
                    "name": device.name,
                    "label": device.label,
                    "title": "" if is_host else self.machine.kind_of(share.device).gpu.title,
                    "first_layer": begin if share.n_layers else None,
                    "layers": share.n_layers,
                    "has_embedding": at == 0,
                    "has_head": at == last,
                    "weights_bytes": held.weights,
                    "cache_bytes": held.cache,
                    "activation_bytes": held.activations,
                    "capacity_bytes": device.capacity_bytes,
                    "spare_bytes": max(0, device.capacity_bytes - held.total),
                    "token_us": float(served.stage_us[at]),
                    "busy": float(served.busy[at]),
                }
            )
            begin += share.n_layers
        return found

    def _limits(self) -> str:
        wanted = self.served.costs.wanted
        if not self.longest_context:
            return "The cards alone do not hold the model with any context."
        is_own = self.longest_context == self.decoder.most_context
        limit = " (as many as the model was made for)" if is_own else ""
        return (
            f"On the cards alone fit {count(wanted.requests, 'request')} of at most "
            f"{count(self.longest_context, 'token')}{limit}, or "
            f"{count(self.most_requests, 'request')} of {count(wanted.context, 'token')}."
        )

    def compared(self) -> list[list[str]]:
        """Return this split and other programs' as rows of texts, below a heading."""
        rows = [["split", "layers", "tokens/s", "alone"]]
        for name, each in {"this one": self.served, **self.others}.items():
            counts = " ".join(f"{share.n_layers}" for share in each.split)
            alone = _per_token(each.alone_us) if each.fits else ""
            rows.append([name, counts, self._speed(each), alone])
        return rows

    def _speed(self, served: Served) -> str:
        if served.fits:
            return f"{served.tokens_per_s:.3g}"
        at = min(range(len(served.split)), key=served.spare_bytes.__getitem__)
        name = self.machine.cluster.devices[served.split[at].device].name
        return f"{device_label(name)} lacks {size(-served.spare_bytes[at])}"

    def pasted(self) -> str:
        """Return what to paste into other programs, as text."""
        parts = [f"{title}:\n{text.rstrip()}" for title, text in self.short_commands.items()]
        parts += [f"{title}: no, {why}." for title, why in self.why_not.items() if why]
        return "\n\n".join(parts)

    @property
    def document(self) -> dict[str, Any]:
        """All figures as plain data."""
        served, wanted = self.served, self.served.costs.wanted
        return {
            "model": self.decoder.name,
            "cluster": self.machine.cluster.name,
            "objective": self.objective,
            "context": wanted.context,
            "requests": wanted.requests,
            "estimated": True,
            "weights_bytes": self.decoder.n_bytes,
            "cache": self.decoder.cache,
            **_figures(served),
            "groups": served.n_groups,
            "prompt_tokens": served.costs.prompt,
            "prompt_us": served.prompt_us,
            "devices": self.devices,
            "longest_context": self.longest_context,
            "most_requests": self.most_requests,
            "model_context": self.decoder.most_context or None,
            "others": {
                name: {
                    "layers": [each.n_layers for each in other.split],
                    "devices": [
                        self.machine.cluster.devices[each.device].name for each in other.split
                    ],
                    **_figures(other),
                    "lacks_bytes": max(0, -min(other.spare_bytes)),
                }
                for name, other in self.others.items()
            },
            "commands": self.commands,
            "why_no_command": {title: why for title, why in self.why_not.items() if why},
            "notes": self.notes,
        }


def _as_python(device_map: Mapping[str, int | str]) -> str:
    """Write a device map as an expression, with a comprehension for consecutive layers."""
    parts = []
    for (stem, device), group in groupby(
        device_map.items(), lambda each: (_stem(each[0]), each[1])
    ):
        names = [name for name, _ in group]
        numbers = [name.rpartition(".")[2] for name in names]
        if len(names) == 1:
            parts.append(f"{json.dumps(names[0])}: {json.dumps(device)}")
        else:
            some = f"range({numbers[0]}, {int(numbers[-1]) + 1})"
            parts.append(f'**{{f"{stem}{{n}}": {json.dumps(device)} for n in {some}}}')
    return "device_map = {\n    " + ",\n    ".join(parts) + ",\n}"


def _stem(name: str) -> str:
    before, dot, last = name.rpartition(".")
    return before + dot if last.isdecimal() else name


def _per_token(time_us: float) -> str:
    """Show the estimated time of a token, with three digits if it is long.

    >>> _per_token(37_125_500.0)
    '37.1 s'
    """
    return ms(time_us) if time_us < 1e6 else f"{time_us / 1e6:.3g} s"


def _figures(served: Served) -> dict[str, Any]:
    return {
        "tokens_per_s": served.tokens_per_s,
        "token_us": served.token_us,
        "alone_us": served.alone_us,
        "feasible": served.fits,
    }


def find_serving(
    model: str | os.PathLike[str],
    cluster: ClusterChoice,
    context: int | str | None = None,
    requests: int | str = 1,
    objective: str = TOKENS_PER_SECOND,
    reserve: str = "",
    cache: str = "16-bit",
) -> Serving:
    """Find how to serve a model; see :func:`enplace.plan_serving`.

    Raises
    ------
    EnplaceError
        If something cannot be used, or the model does not fit.
    """
    if objective not in OBJECTIVES:
        raise EnplaceError(f"there is no objective '{objective}'; {instead(objective, OBJECTIVES)}")
    if cache not in CACHES:
        raise EnplaceError(f"cache is '{cache}'; {instead(cache, CACHES)}")
    decoder = make_decoder(read_weights(model)).with_cache(cache)
    machine = make_machine(cluster, reserve)
    usual = min(USUAL_CONTEXT, decoder.most_context or USUAL_CONTEXT)
    asked = Wanted(
        usual if context is None else _read(context, LONGEST, "context", MOST_CONTEXT),
        _read(requests, MOST, "requests", MOST_REQUESTS),
    )
    costs = Costs(decoder, machine, _fitting(decoder, machine, asked))
    return Serving(
        find_split(costs, objective),
        objective,
        longest_context(costs),
        most_requests(costs),
        other_splits(costs) | _without_slowest(costs, objective),
    )


def _fitting(decoder: Decoder, machine: Machine, asked: Wanted) -> Wanted:
    """Return what is asked with numbers where a 0 asks for the longest or the most that fits."""
    if not asked.context and not asked.requests:
        raise EnplaceError("ask for the longest context or the most requests, but not for both")
    costs = Costs(decoder, machine, Wanted(asked.context or 1, asked.requests or 1))
    if not asked.requests:
        return replace(asked, requests=_known(most_requests(costs), costs))
    return asked if asked.context else replace(asked, context=_known(longest_context(costs), costs))


def _without_slowest(costs: Costs, objective: str) -> dict[str, Served]:
    """Return the best split that leaves out the cards with the least bandwidth, if one fits."""
    kinds = costs.machine.kinds
    slowest = min((kind.gpu for kind in kinds), key=lambda gpu: gpu.bytes_per_us)
    others = tuple(kind for kind in kinds if kind.gpu is not slowest)
    if not others:
        return {}
    machine = replace(costs.machine, kinds=others, host=None)
    with suppress(DoesNotFitError):
        found = find_split(Costs(costs.decoder, machine, costs.wanted), objective)
        return {f"without {slowest.title}": found}
    return {}


def _known(found: int, costs: Costs) -> int:
    if not found:
        raise DoesNotFitError(why_not(costs, "add cards"))
    return found


def _read(value: int | str, word: str, name: str, most: int) -> int:
    """Read a number such as ``32k``; 0 stands for the word."""
    if value == word:
        return 0
    match = _TOKENS.fullmatch(f"{value}".strip())
    number = int(match[1]) * (1024 if match[2] else 1) if match else 0
    if not 0 < number <= most:
        raise EnplaceError(f"{name} is {value!r}; write 1 to {most:,}, also as 32k, or '{word}'")
    return number
