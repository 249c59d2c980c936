"""Make the thumbnails and facts of the bundled samples, which the start page shows.

Usage: python scripts/make_thumbnails.py. Run it after make_samples.py, or if groups change.
"""

import json

import numpy as np

from enplace.names.groups import group_ops
from enplace.pictures.graph_layout import CARD_H, grid
from enplace.pictures.palette import colour_numbers
from enplace.placers import place
from enplace.readers import read_profile
from enplace.readers.clusters import cluster_from
from enplace.readers.samples import FOLDER, Sample, samples
from enplace.values.memory import one_device_peak_bytes
from enplace.values.problem import Problem

WIDTH = 900.0
SIDE = 1000
"""Boxes lie between 0 and this in both directions."""


def main() -> None:
    """Write what the start page shows of every sample."""
    facts = {sample.name: thumbnail_of(sample) for sample in samples()}
    lines = (f"{json.dumps(name)}: {json.dumps(each)}" for name, each in facts.items())
    (FOLDER / "thumbnails.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def thumbnail_of(sample: Sample) -> dict[str, object]:
    """Return the ops and memory of a sample, and its groups under the expert's plan as boxes."""
    profile = read_profile(sample.path)
    problem = Problem(profile, cluster_from(sample.cluster, profile))
    grouping = group_ops(profile)
    placed = grid(grouping, WIDTH)
    left, right = placed.x.min(), (placed.x + placed.width).max()
    top, bottom = placed.y.min(), placed.y.max() + CARD_H
    device = place(problem, "expert").plan.device
    work = np.zeros((grouping.n_groups, problem.cluster.n_devices))
    np.add.at(work, (grouping.group, device), problem.time_us[np.arange(profile.n_ops), device])
    boxes = np.stack([
        (placed.x - left) / (right - left),
        (placed.y - top) / (bottom - top),
        placed.width / (right - left),
        np.full(grouping.n_groups, CARD_H / (bottom - top)),
    ])  # fmt: skip
    colours = np.array(colour_numbers(problem.cluster))[work.argmax(axis=1)]
    rounded = np.vstack([np.round(SIDE * boxes), colours]).astype(int)
    return {
        "ops": profile.n_ops,
        "one_gpu_bytes": one_device_peak_bytes(problem),
        "boxes": rounded.T.tolist(),
    }


if __name__ == "__main__":
    main()
