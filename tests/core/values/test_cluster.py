"""A cluster refuses impossible devices and links."""

import math
from typing import Any

import pytest

from enplace.errors import ClusterError
from enplace.values.cluster import Cluster, Device, Link

GPUS = (Device("GPU:0", "gpu", 10), Device("GPU:1", "gpu", 10))
THERE, BACK = Link(0, 1, 5.0, 0.1, (0,)), Link(1, 0, 5.0, 0.1, (1,))


def make(*links: Link, devices: tuple[Device, ...] = GPUS) -> Cluster:
    return Cluster("test", devices, ("there", "back"), links)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "needs a name"),
        ({"kind": "tpu"}, "kind 'tpu' is not gpu or cpu"),
        ({"capacity_bytes": 0}, "capacity_bytes is 0"),
        ({"speed": 0.0}, "speed is 0.0"),
        ({"speed": math.nan}, "speed is nan"),
        ({"lanes": 0}, "lanes is 0"),
    ],
)
def test_an_impossible_device_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        Device(**{"name": "GPU:0", "kind": "gpu", "capacity_bytes": 1} | change)  # type: ignore[arg-type]


def test_every_pair_needs_one_link() -> None:
    with pytest.raises(ClusterError, match="no link from GPU:1 to GPU:0; add one"):
        make(THERE)
    with pytest.raises(ClusterError, match="two links lead from GPU:0 to GPU:1"):
        make(THERE, THERE, BACK)


@pytest.mark.parametrize(
    "link",
    [
        Link(0, 1, -1.0, 0.1, (0,)),
        Link(0, 1, 1.0, math.nan, (0,)),
        Link(0, 1, 1.0, 0.1, ()),
        Link(0, 1, 1.0, 0.1, (0, 0)),
        Link(0, 1, 1.0, 0.1, (2,)),
    ],
)
def test_an_impossible_link_is_refused_with_its_ends(link: Link) -> None:
    with pytest.raises(ClusterError, match="link GPU:0 to GPU:1"):
        make(link, BACK)


def test_a_link_to_itself_is_refused() -> None:
    with pytest.raises(ClusterError, match="two different devices"):
        make(THERE, BACK, Link(0, 0, 1.0, 0.1, (0,)))


def test_device_names_are_unique() -> None:
    with pytest.raises(ClusterError, match="the name 'GPU:0' is used twice"):
        make(THERE, BACK, devices=(GPUS[0], GPUS[0]))


def test_a_routed_pair_occupies_all_its_channels() -> None:
    cluster = make(Link(0, 1, 5.0, 0.1, (0, 1)), BACK)
    pair = 0 * cluster.n_devices + 1
    assert cluster.route[cluster.route_ptr[pair] : cluster.route_ptr[pair + 1]].tolist() == [0, 1]


def test_scaling_divides_times_only() -> None:
    cluster = make(THERE, BACK)
    fast = cluster.scaled(compute=2.0, links=4.0)
    assert fast.speed.tolist() == [2.0, 2.0]
    assert fast.b0_us[0, 1] == 1.25
    assert fast.b1_us_per_byte[0, 1] == 0.025
    assert fast.devices[0].capacity_bytes == 10
    assert cluster.scaled() == cluster


@pytest.mark.parametrize("factor", [0.0, -1.0, math.inf, math.nan, "2", None])
def test_an_impossible_scale_is_refused(factor: Any) -> None:
    with pytest.raises(ClusterError, match="scale of links"):
        make(THERE, BACK).scaled(links=factor)


def test_a_reserve_takes_memory_from_plans_and_stays_part_of_the_device() -> None:
    cluster = make(THERE, BACK, devices=(Device("GPU:0", "gpu", 10_000), GPUS[1])).reserving("5%")
    assert cluster.capacity_bytes.tolist() == [9500, 10]  # half a byte is nothing
    assert [device.memory_bytes for device in cluster.devices] == [10_000, 10]
    assert cluster.reserving("") is cluster


def test_only_gpus_get_a_reserve_where_there_are_any() -> None:
    devices = (Device("GPU:0", "gpu", 4000), Device("CPU:0", "cpu", 4000))
    links = (Link(0, 1, 5.0, 0.1, (0,)), Link(1, 0, 5.0, 0.1, (1,)))
    assert make(*links, devices=devices).reserving("1KB").capacity_bytes.tolist() == [3000, 4000]


@pytest.mark.parametrize("reserve", ["1G", "5", "half", "101%", "-5%", "100%", "1TiB"])
def test_an_impossible_reserve_is_refused(reserve: str) -> None:
    with pytest.raises(ClusterError, match="reserve"):
        make(THERE, BACK).reserving(reserve)
