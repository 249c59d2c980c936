"""PipeDream's optimiser: its path, its stages, and Table 1 of Tarnawski et al. 2020."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.placers.problems import gpus, line

from enplace.placers import PlaceOptions, place
from enplace.placers.max_load.table.contract import contract
from enplace.placers.pipedream import Layers, LayerStage, cut_path, find_path
from enplace.placing.options import load_values
from enplace.readers import read_profile
from enplace.readers.clusters import presets
from enplace.readers.samples import samples
from enplace.values.load_rule import LoadRule
from enplace.values.problem import Problem


def layers_of(compute_us, sent_us, weights_us=None, held_bytes=None):
    n = len(compute_us)
    return Layers(
        np.array(compute_us, dtype=float),
        np.array([0.0, *sent_us, 0.0]),
        np.array(weights_us or [0.0] * n, dtype=float),
        np.array(held_bytes or [0] * n, dtype=np.int64),
    )


def test_parallel_branches_form_one_layer():
    edges = [(0, 1, 8), (0, 2, 8), (1, 3, 8), (2, 4, 8), (3, 5, 8), (4, 5, 8), (5, 6, 8)]
    problem = Problem(line([1.0] * 7, edges), gpus(2))
    nodes = contract(problem)
    assert find_path(nodes)[nodes.node].tolist() == [0, 0, 0, 0, 0, 1, 2]


def test_a_residual_block_forms_one_layer():
    edges = [(0, 1, 8), (1, 2, 8), (2, 3, 8), (1, 3, 8), (3, 4, 8)]
    nodes = contract(Problem(line([1.0] * 5, edges), gpus(2)))
    assert find_path(nodes)[nodes.node].tolist() == [0, 1, 1, 2, 3]


def test_an_input_that_every_layer_reads_does_not_make_them_one():
    edges = [(0, 1, 8), (0, 2, 8), (0, 3, 8), (1, 2, 8), (2, 3, 8)]
    nodes = contract(Problem(line([1.0] * 4, edges), gpus(2)))
    assert find_path(nodes)[nodes.node].tolist() == [0, 1, 2, 3]


def test_stages_are_balanced_including_transfers():
    stages, time_us = cut_path(layers_of([4, 4, 4, 3], [1, 9, 1]), 2, 1, most_replicas=1)
    assert (stages, time_us) == ([LayerStage(0, 0, 1), LayerStage(1, 3, 1)], 12.0)


def test_a_heavy_layer_is_replicated_unless_its_weights_are_too_large():
    path = [2, 12, 2], [0, 0]
    light, light_us = cut_path(layers_of(*path), 4, 1, most_replicas=4)
    assert light_us == 4.0
    assert LayerStage(1, 1, 3) in light or LayerStage(0, 2, 4) in light
    _, heavy_us = cut_path(layers_of(*path, [0, 90, 0]), 4, 1, most_replicas=4)
    assert heavy_us == 12.0


def test_stages_fit_in_memory_if_possible():
    path = layers_of([9, 1, 1], [0, 0], held_bytes=[5, 5, 5])
    stages, _ = cut_path(path, 2, 10, most_replicas=1)
    assert stages == [LayerStage(0, 0, 1), LayerStage(1, 2, 1)]


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6),
    st.lists(st.integers(0, 5), min_size=5, max_size=5),
    st.integers(1, 4),
)
def test_no_cut_of_the_path_beats_the_one_found(compute, sent, n_gpus):
    path = layers_of(compute, sent[: len(compute) - 1])
    _, time_us = cut_path(path, n_gpus, 1, most_replicas=1)
    every = []
    for n_cuts in range(min(n_gpus, len(compute))):
        for cuts in combinations(range(1, len(compute)), n_cuts):
            ends = [0, *cuts, len(compute)]
            every.append(
                max(
                    sum(compute[a:b]) + path.sent_us[a] + path.sent_us[b] for a, b in pairwise(ends)
                )
            )
    assert time_us == pytest.approx(min(every))


def test_stages_are_replicated_if_the_rule_allows_it():
    problem = Problem(line([2.0, 12, 2], [(0, 1, 8), (1, 2, 8)]), gpus(4, b0=0.0))
    plan = place(problem, "pipedream").plan
    assert plan.value_us == 12.0
    assert len(set(plan.device.tolist())) == 3
    options = PlaceOptions(values=load_values(LoadRule(replicate=True)))
    replicated = place(problem, "pipedream", options=options).plan
    assert replicated.value_us == pytest.approx(4.0)
    assert replicated.replicas


def test_a_measured_model_is_cut_between_named_layers():
    sample = next(sample for sample in samples() if sample.name == "vgg-19")
    problem = Problem(read_profile(sample.path), presets()["a100-4-nvlink"])
    plan = place(problem, "pipedream").plan
    assert plan.details["layers"] > 10
    assert "names" in plan.note
    assert plan.value_us < 0.5 * np.nansum(problem.time_us[:, 0])
