"""Device colours are distinguishable, with colour blindness too."""

from itertools import combinations

import numpy as np
import pytest

from enplace.pictures.palette import DEVICES_DARK, DEVICES_LIGHT, colour_numbers
from enplace.values.profile import FloatArray
from problems import cluster_of

# Perceived linear red, green and blue: Machado, Oliveira and Fernandes 2009, severity 1.
SEEN = {
    "all colours": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TO_XYZ = [
    [0.4124, 0.3576, 0.1805],
    [0.2126, 0.7152, 0.0722],
    [0.0193, 0.1192, 0.9505],
]
WHITE = np.array([0.9505, 1.0, 1.089])


@pytest.mark.parametrize("devices", [DEVICES_LIGHT, DEVICES_DARK], ids=["light", "dark"])
@pytest.mark.parametrize("seen", SEEN)
def test_eight_gpus_and_a_cpu_look_different(devices, seen):
    places = [lab(np.array(SEEN[seen]) @ linear(colour)) for colour in devices[:9]]
    nearest = min(float(np.linalg.norm(a - b)) for a, b in combinations(places, 2))
    assert nearest > 10  # a difference of about 2 is just visible between adjacent colours


def linear(colour: str) -> FloatArray:
    parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(seen: FloatArray) -> FloatArray:
    """Convert to CIELAB, where distances match perceived differences."""
    x, y, z = (np.array(TO_XYZ) @ seen.clip(0, 1)) / WHITE
    fx, fy, fz = (np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return np.array([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)])


def test_gpus_keep_their_colours_when_more_come_and_cpus_have_one_of_their_own():
    two, four = (colour_numbers(cluster_of(n, cpu_lanes=2)) for n in (2, 4))
    assert two[:2] == four[:2]
    assert two[-1] == four[-1]
    many = colour_numbers(cluster_of(40, cpu_lanes=2))
    assert many[-1] not in many[:-1]
    assert len(set(colour_numbers(cluster_of(4)))) == 4
