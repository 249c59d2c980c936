"""A cluster of the user's own GPUs: as NVML reports them, or as the user describes them.

What neither knows, links and speeds, comes from the preset with the most similar GPU. The
description of the cluster names it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from typing import Any

from enplace.errors import ClusterError
from enplace.frameworks.nvml import Card
from enplace.frameworks.roofline import GPUS
from enplace.readers.cluster_json import cluster_from_json
from enplace.readers.clusters import presets
from enplace.system import count_cores, host_bytes
from enplace.values.cluster import Cluster

NVLINK, PCIE = "nvlink", "pcie"
LINKS = {NVLINK: "NVLink between all GPUs", PCIE: "PCIe through the host"}

_OTHER = "a100"
"""The GPU that an unknown one is taken for, apart from its memory."""

_PRESETS = {
    ("h200", NVLINK): "h200-2-nvlink",
    ("h100", NVLINK): "h100-2-nvlink",
    ("a100", NVLINK): "a100-2-nvlink",
    ("v100", NVLINK): "pesto",
    ("v100", PCIE): "v100-2-pcie",
}
_ANY_PCIE = "pcie-2"
_USUAL_HOST_BYTES, _USUAL_CORES = 256 << 30, 16


def detect(cards: Sequence[Card]) -> Cluster:
    """Make a cluster of the GPUs of this machine, with NVLink where they have it.

    Raises
    ------
    ClusterError
        If there are none.
    """
    if not cards:
        raise ClusterError("there is no NVIDIA GPU here")
    linked = {
        (a, b) for a, b in permutations(range(len(cards)), 2) if cards[b].uuid in cards[a].nvlinks
    }
    models = [model_of(card.name) for card in cards]
    names = ", ".join(dict.fromkeys(card.name for card in cards))
    head = f"The GPUs of this machine, as NVML reports them: {len(cards)} × {names}."
    return _make(head, models, [card.total_bytes for card in cards], linked)


def describe(count: int, model: str, gpu_bytes: int, link: str) -> Cluster:
    """Make a cluster of some equal GPUs.

    Parameters
    ----------
    model : str
        A key of :data:`GPUS`, or anything else.
    link : str
        A key of :data:`LINKS`.
    """
    linked = set(permutations(range(count), 2)) if link == NVLINK else set()
    title = GPUS[model].title if model in GPUS else model
    head = (
        f"{count} × {title}, {LINKS[link]}, as you described them. CPU:0 has the memory and the "
        f"cores of the machine on which you did: correct them if they are another's."
    )
    return _make(head, [model] * count, [gpu_bytes] * count, linked)


def describe_each(cards: Sequence[tuple[str, int]], memory_bytes: int) -> Cluster:
    """Make a cluster of some cards over PCIe, which need not be equal.

    Parameters
    ----------
    cards : sequence of (str, int)
        The key in :data:`GPUS` and the bytes of each.
    memory_bytes : int
        Memory of the host, which has 16 cores; without any, the cluster has no CPU.
    """
    titles = Counter(GPUS[model].title for model, _ in cards)
    named = " + ".join(f"{n} × {title}" for title, n in titles.items())
    models, gpu_bytes = zip(*cards, strict=True)
    head = f"{named}, {LINKS[PCIE]}, as you described them."
    host = {"capacity_bytes": memory_bytes, "lanes": _USUAL_CORES} if memory_bytes else {}
    return _make(head, [*models], [*gpu_bytes], set(), host)


def model_of(name: str) -> str:
    """Return the key in :data:`GPUS` of a card's name; the name itself if it is not there.

    An "RTX A1000" is no A100, and an "RTX 3080 Ti" or one of a laptop no RTX 3080.
    """
    return next((key for key in GPUS if re.search(_pattern(key), name, re.IGNORECASE)), name)


def _pattern(key: str) -> str:
    return rf"\b{key.replace('-', '[ -]')}(?![\dD]| (ti|super|laptop))"


def _make(
    head: str,
    models: list[str],
    gpu_bytes: list[int],
    linked: set[tuple[int, int]],
    host: dict[str, int] | None = None,
) -> Cluster:
    """Make the cluster; its host is this machine, unless ``host`` describes one, or none."""
    if host is None:
        host = {"capacity_bytes": host_bytes() or _USUAL_HOST_BYTES, "lanes": count_cores()}
    pcie = presets()[_PRESETS.get((models[0], PCIE), _ANY_PCIE)]
    over_nvlink = [
        presets()[_PRESETS.get((model, NVLINK), _PRESETS[_OTHER, NVLINK])] for model in models
    ]
    is_full = len(linked) == len(models) * (len(models) - 1) > 0
    usual = over_nvlink[0] if is_full else pcie
    used = [usual, *(over_nvlink[a] for a, _ in sorted(linked))]
    sources = {preset.name: preset.description for preset in used}
    speeds = [GPUS[model].speed if model in GPUS else _gpu_speed(usual) for model in models]
    unknown = [model for model in dict.fromkeys(models) if model not in GPUS]
    guess = f"{', '.join(unknown)}: speed as in '{usual.name}', which you may correct."
    known = [GPUS[model] for model in dict.fromkeys(models) if model in GPUS]
    lines = [
        head,
        *(f"Speed of the {gpu.title}: {gpu.speed:g}." for gpu in known),
        *([guess] if unknown else []),
        *(f"Links as in '{name}', which says: “{text}”" for name, text in sources.items()),
    ]
    kinds = (("gpu", "gpu"), ("gpu", "cpu"), ("cpu", "gpu"))
    return cluster_from_json({
        "format": "enplace-cluster/1",
        "name": "my-cluster",
        "description": " ".join(lines),
        "devices": [
            *(
                {
                    "name": f"GPU:{at}",
                    "kind": "gpu",
                    "capacity_bytes": capacity,
                    "speed": speed,
                    "model": model if model in GPUS else "",
                }
                for at, (capacity, speed, model) in enumerate(
                    zip(gpu_bytes, speeds, models, strict=True)
                )
            ),
            *([{"name": "CPU:0", "kind": "cpu", **host}] if host else []),
        ],
        "links": [
            {"from": f"GPU:{a}", "to": f"GPU:{b}", **_link(over_nvlink[a], "gpu", "gpu")}
            for a, b in sorted(linked)
        ],
        "default_links": {f"{a}-{b}": _link(usual, a, b) for a, b in kinds},
    })  # fmt: skip


def _gpu_speed(preset: Cluster) -> float:
    return next(device.speed for device in preset.devices if device.kind == "gpu")


def _link(preset: Cluster, source: str, target: str) -> dict[str, Any]:
    """Return a preset's link between two kinds of devices, with what all such links share."""
    kinds = [device.kind for device in preset.devices]
    link = next(
        each
        for each in preset.links
        if (kinds[each.source], kinds[each.target]) == (source, target)
    )
    shared = [preset.channels[at] for at in link.channels if "->" not in preset.channels[at]]
    cost = {"b0_us": link.b0_us, "b1_us_per_byte": link.b1_us_per_byte}
    return {**cost, "channels": shared} if shared else cost
