"""The device option that a plan needs on this machine."""

from dataclasses import replace

import pytest

from enplace.errors import ClusterError
from enplace.frameworks.devices import choose_gpus, cuda_visible, devices_for
from enplace.text import read_size
from enplace.values.measurement import Measurement
from problems import cluster_of


def test_a_plan_for_this_machine_runs_on_as_many_devices():
    assert devices_for(cluster_of(4), Measurement()) == "gpu:4"
    pair = cluster_of(2)
    known = Measurement(cluster=pair, devices="gpu:all")
    assert devices_for(pair, known) == "gpu:all"
    assert devices_for(cluster_of(3), known) == "gpu:3"
    host = replace(pair.devices[0], name="/job:worker/task:0/device:GPU:0")
    hosts = replace(pair, devices=(host, pair.devices[1]))
    with pytest.raises(ClusterError, match="--devices"):
        devices_for(hosts, Measurement())


@pytest.mark.parametrize("devices", ["hosts.json", "/tmp/hosts.json", "cpu:2/../hosts.json", "x:1"])
def test_a_profile_cannot_choose_the_machines_that_a_model_is_sent_to(devices):
    pair = cluster_of(2)
    with pytest.raises(ClusterError, match="give their cluster file with --devices"):
        devices_for(pair, Measurement(cluster=pair, devices=devices))


@pytest.mark.parametrize(
    ("given", "devices"),
    [
        (("gpu:2", "", ""), "gpu:2"),
        ((None, "", ""), None),
        ((None, "0, 2", ""), "gpu:#0,2"),
        ((None, "2", "12GiB"), "gpu:#2@12GiB"),
        (("gpu:4", "", "1.5 GB"), "gpu:4@1.5GB"),
        ((None, "", "800MiB"), "gpu:all@800MiB"),
    ],
)
def test_chosen_gpus_and_their_memory_are_one_text_that_a_profile_keeps(given, devices):
    assert choose_gpus(*given) == devices
    pair = cluster_of(2)
    if devices:
        assert devices_for(pair, Measurement(cluster=pair, devices=devices)) == devices


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ((None, "a", ""), "such as 0,2"),
        ((None, "0,0", ""), "different GPUs"),
        ((None, "-1", ""), "such as 0,2"),
        (("gpu:2", "0,2", ""), "leave one out"),
        ((None, "", "much"), "such as 12GiB"),
        (("cpu:2", "", "12GiB"), "not for 'cpu:2'"),
        (("hosts.json", "", "12GiB"), "not for 'hosts.json'"),
    ],
)
def test_choices_that_make_no_sense_are_refused(given, why):
    with pytest.raises(ClusterError, match=why):
        choose_gpus(*given)


def test_sizes_are_decimal_or_binary():
    assert read_size("12GiB") == 12 << 30
    assert read_size("1.5 gb") == 1_500_000_000
    assert read_size("12") == 0


@pytest.mark.parametrize(
    ("devices", "shown", "visible"),
    [
        ("cpu:2", "0,1", "-1"),
        ("gpu:all", "0,1", None),
        ("gpu:2@1GiB", None, None),
        ("gpu:#0,2", None, "0,2"),
        ("gpu:#2,0@1GiB", "3,5,GPU-7", "GPU-7,3"),
        ("gpu:#4", "3,5", ""),
        ("hosts.json", None, None),
    ],
)
def test_gpus_that_were_not_chosen_are_hidden_from_the_framework(devices, shown, visible):
    assert cuda_visible(devices, shown) == visible
