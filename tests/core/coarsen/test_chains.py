"""Merging of chains, as the default method does it."""

from itertools import pairwise

import numpy as np

from enplace.coarsen import merge_chains
from enplace.machine import simulate
from enplace.placers import PlaceOptions, place
from enplace.values.problem import Problem
from problems import GIB, cluster_of, profile_of


def test_a_chain_too_large_for_a_device_is_merged_in_parts():
    """Six ops of a quarter of a device each: all together they would fit none."""
    names = [f"link_{i}" for i in range(6)]
    profile = profile_of(
        dict.fromkeys(names, 10.0),
        [(a, b, 8) for a, b in pairwise(names)],
        persistent=dict.fromkeys(names, GIB // 4),
    )
    problem = Problem(profile, cluster_of(2))
    group = merge_chains(problem)
    assert np.bincount(group, weights=profile.persistent_bytes).max() <= GIB // 4
    found = place(problem, "enplace", options=PlaceOptions(values={"rounds": 1})).plan
    assert simulate(problem, found).fits
