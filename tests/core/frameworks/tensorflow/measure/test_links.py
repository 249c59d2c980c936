"""What is measured of GPUs, with logical CPUs and made-up times in their place."""

from dataclasses import replace

import numpy as np
import pytest

from enplace.frameworks.tensorflow.devices import Devices, parse_devices
from enplace.frameworks.tensorflow.measure import links, speeds
from enplace.values.cluster import Cluster, Device, Link


@pytest.fixture
def four_gpus():
    """Four GPUs, two logical ones on the last card, and their host; a channel for each link."""
    devices = [Device(f"GPU:{i}", "gpu", 1 << 30, chip="GPU 2" * (i > 1)) for i in range(4)]
    devices.append(Device("CPU:0", "cpu", 1 << 30))
    pairs = [(a, b) for a in range(5) for b in range(5) if a != b]
    joined = tuple(Link(a, b, 1.0, 1e-3, (i,)) for i, (a, b) in enumerate(pairs))
    names = tuple(f"{devices[a].name}->{devices[b].name}" for a, b in pairs)
    return Cluster("local", tuple(devices), names, joined)


def test_copies_through_one_switch_share_a_channel(four_gpus, monkeypatch):
    """GPU 0 and 1 are behind one switch; the copies of all others do not meet."""

    def took_us(devices, ends):
        gpus = {name for pair in ends for name in pair}
        return 200.0 if {"/device:GPU:0", "/device:GPU:1"} <= gpus else 100.0 + len(ends)

    config = parse_devices("cpu:1").config
    devices = Devices("gpu:4", four_gpus, config, ("H200",) * 4 + ("",))
    monkeypatch.setattr(links, "together_us", took_us)
    monkeypatch.setattr(links, "copy_times_us", lambda *_: np.array(links.SIZES) / 1e4 + 3)
    cluster, measured = links.measure_links(devices, lambda *_: None)
    assert len(measured) == 20
    number = {(link.source, link.target): link for link in cluster.links}
    assert number[4, 0].channels == number[4, 1].channels
    assert number[0, 4].channels == number[1, 4].channels != number[4, 0].channels
    assert cluster.channels[number[4, 0].channels[0]] == "CPU:0->GPU:0 + CPU:0->GPU:1"
    others = [link for pair, link in number.items() if not {0, 1} & {*pair} or 4 not in pair]
    assert len({link.channels for link in others}) == len(others)


def test_logical_gpus_of_one_card_are_not_asked_whether_they_share(four_gpus):
    pairs = links.host_pairs(four_gpus)
    ends = {(a.target, b.target) for a, b in pairs if a.source == 4}
    assert ends == {(0, 1), (0, 2), (0, 3), (1, 2), (1, 3)}


def test_two_copies_at_once_are_measured():
    """Nothing is copied between logical CPUs, but the graph is the same."""
    devices = parse_devices("cpu:2")
    a, b = devices.names
    assert links.together_us(devices, [(a, b), (b, a)]) >= 0.1


def test_cards_that_differ_have_their_own_speeds(monkeypatch):
    monkeypatch.setattr(speeds, "WIDTH", 64)
    monkeypatch.setattr(speeds, "KERNELS", speeds.KERNELS[:1] + speeds.KERNELS[2:])
    devices = replace(parse_devices("cpu:2"), models=("H200", "T4"))
    said = []
    cluster = speeds.measure_speeds(devices.cluster, devices, lambda text, _: said.append(text))
    assert cluster.devices[0].speed == 1.0
    assert cluster.devices[1].speed > 0
    assert said == [f"Measuring the speed of {name}" for name in devices.names]
    same = replace(devices, models=("T4", "T4"))
    assert speeds.measure_speeds(devices.cluster, same, said.append) is devices.cluster


def test_the_speed_of_a_card_is_the_mean_over_the_kernels():
    found = speeds.relative_speeds({"a": np.array([10.0, 40.0]), "b": np.array([20.0, 320.0])})
    assert found == {"a": 1.0, "b": pytest.approx(0.25)}
