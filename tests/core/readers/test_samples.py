"""The bundled samples open without warnings, can be placed, and stay small."""

import warnings

import pytest

from benchmarks.synthetic import transformer, transformer_36k
from enplace.machine import simulate
from enplace.names.groups import group_ops
from enplace.placers import place
from enplace.readers import read_profile
from enplace.readers.clusters import cluster_from
from enplace.readers.samples import Sample, samples, thumbnails
from enplace.values.memory import one_device_peak_bytes
from enplace.values.problem import Problem


@pytest.mark.parametrize("sample", samples(), ids=lambda sample: sample.name)
def test_every_sample_opens_without_warnings_and_can_be_placed(sample: Sample) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        profile = read_profile(sample.path)
    assert profile.name == sample.name
    assert sample.title
    assert sample.description
    problem = Problem(profile, cluster_from(sample.cluster, profile))
    plan = place(problem, "round-robin").plan
    assert simulate(problem, plan).makespan_us > 0


@pytest.mark.parametrize("sample", samples(), ids=lambda sample: sample.name)
def test_thumbnails_are_of_the_profiles_that_ship(sample: Sample) -> None:
    profile = read_profile(sample.path)
    problem = Problem(profile, cluster_from(sample.cluster, profile))
    thumbnail = thumbnails()[sample.name]
    assert thumbnail.ops == profile.n_ops
    assert thumbnail.one_gpu_bytes == one_device_peak_bytes(problem)
    assert len(thumbnail.boxes) == group_ops(profile).n_groups
    for left, top, width, height, device in thumbnail.boxes:
        assert min(left, top) >= 0
        assert min(width, height) > 0
        assert max(left + width, top + height) <= 1001  # each is rounded on its own
        assert device < problem.cluster.n_devices


def test_all_samples_together_are_small() -> None:
    assert sum(sample.path.stat().st_size for sample in samples()) < 5_000_000


def test_samples_include_a_large_a_small_and_one_with_its_cluster() -> None:
    ops = {sample.name: read_profile(sample.path).n_ops for sample in samples()}
    assert max(ops.values()) > 5000
    assert min(ops.values()) < 600
    assert "from-file" in {sample.cluster for sample in samples()}


def test_the_generated_transformer_has_its_documented_size() -> None:
    profile = transformer_36k()
    assert profile.n_ops == pytest.approx(36_000, rel=0.02)
    assert profile.n_edges == pytest.approx(60_000, rel=0.05)
    assert transformer(2, 4).fingerprint == transformer(2, 4).fingerprint
