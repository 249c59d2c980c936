"""Cluster files, presets, and the choice of a cluster."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files as resource_files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given

from enplace.errors import ClusterError, EnplaceError
from enplace.readers.cluster_json import cluster_from_json
from enplace.readers.clusters import cluster_from, presets, read_cluster
from enplace.readers.measurement import measurement_from_json
from enplace.values.cluster import Cluster
from enplace.values.measurement import Measurement
from enplace.writers.clusters import cluster_text, cluster_to_json
from inputs import cluster_file, put
from problems import clusters, profile_of

PROFILE = profile_of({"a": 1.0})
SCHEMA = json.loads((resource_files("enplace_resources") / "cluster.schema.json").read_bytes())
PLAN_SCHEMA = json.loads((resource_files("enplace_resources") / "plan.schema.json").read_bytes())


def channels_of(cluster: Cluster, source: str, target: str) -> list[str]:
    ends = (cluster.index[source], cluster.index[target])
    link = next(link for link in cluster.links if (link.source, link.target) == ends)
    return [cluster.channels[channel] for channel in link.channels]


@given(cluster=clusters())
def test_a_written_cluster_reads_back_the_same(cluster: Cluster) -> None:
    assert cluster_from_json(cluster_to_json(cluster)) == cluster
    assert cluster_from_json(json.loads(cluster_text(cluster))) == cluster


def test_a_plan_holds_its_cluster_as_a_cluster_file_would() -> None:
    inner = PLAN_SCHEMA["$defs"]
    assert inner["cluster"] | {key: SCHEMA[key] for key in ("$schema", "title")} == {
        key: value for key, value in SCHEMA.items() if key != "$defs"
    }
    assert {key: inner[key] for key in SCHEMA["$defs"]} == SCHEMA["$defs"]


def test_default_links_apply_to_all_other_pairs() -> None:
    cluster = cluster_from_json(cluster_file())
    assert cluster.b0_us.tolist() == [[0, 5, 8], [7, 0, 8], [9, 9, 0]]
    assert channels_of(cluster, "GPU:0", "GPU:1") == ["GPU:0->GPU:1"]
    assert channels_of(cluster, "GPU:0", "CPU:0") == ["bridge"]
    assert channels_of(cluster, "CPU:0", "GPU:1") == ["bridge", "switch"]


def test_one_link_entry_can_cover_several_devices_and_both_directions() -> None:
    data = cluster_file()
    data["links"][0] |= {"from": ["GPU:0", "GPU:1"], "to": "CPU:0", "both_ways": True}
    assert cluster_from_json(data).b0_us.tolist() == [[0, 7, 5], [7, 0, 5], [5, 5, 0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("device", []), "'device' means nothing here; did you mean 'devices'"),
        (put("devices", 0, "memory", 5), r"devices\[0\]: 'memory' means nothing here"),
        (put("devices", 0, "kind", "tpu"), r"devices\[0\]: device 'GPU:0': kind 'tpu'"),
        (put("devices", 0, "capacity_bytes", 0), r"devices\[0\]: .*capacity_bytes is 0"),
        (put("devices", 0, "capacity_bytes", "16GB"), r"devices\[0\]\.capacity_bytes: must be a"),
        (put("devices", 0, "lanes", 1.5), r"devices\[0\]\.lanes: must be a whole number"),
        (put("devices", 1, "name", "GPU:0"), "devices: a name is used twice"),
        (put("links", 0, "to", "GPU:7"), r"links\[0\]\.to: there is no device \"GPU:7\""),
        (put("links", 0, "to", "GPU:0"), r"links\[0\]: leads from a device to itself"),
        (put("links", 0, "b0_us", -1), r"links\[0\]\.b0_us: must be a number from 0"),
        (put("links", 0, "b0_us", 1e12), r"links\[0\]\.b0_us: must be a number from 0 to 1e\+09"),
        (put("links", 0, "b2", 1), r"links\[0\]: 'b2' means nothing here"),
        (put("links", 0, "channels", []), "link GPU:0 to GPU:1: name at least one channel"),
        (put("default_links", {}), "none from GPU:0 to CPU:0; add it, or 'gpu-cpu' to"),
        (put("default_links", "gpu-tpu", {}), "default_links: 'gpu-tpu' means nothing here"),
        (put("channels", ["bridge"]), "channels: 'GPU:0->GPU:1', which a link uses, is not listed"),
        (put("devices", []), "there is no device"),
        (put("format", "enplace-cluster/5"), "newer Enplace"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_cluster_file_is_located(
    tmp_path: Path, change: Callable[[Any], None], message: str
) -> None:
    data = cluster_file()
    change(data)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(data))
    with pytest.raises(EnplaceError, match=message) as caught:
        cluster_from(str(path), PROFILE)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_second_link_for_a_pair_is_refused() -> None:
    data = cluster_file()
    data["links"].append(data["links"][0])
    with pytest.raises(EnplaceError, match=r"links\[1\]: a second link from GPU:0 to GPU:1"):
        cluster_from_json(data)


@pytest.mark.parametrize(("key", "kind"), [("links", "a list"), ("default_links", "an object")])
def test_a_mistake_in_a_cluster_inside_a_file_is_located(key: str, kind: str) -> None:
    data = cluster_file() | {key: 1}
    with pytest.raises(EnplaceError, match=rf"^project\.json\.cluster\.{key}: must be {kind}"):
        cluster_from_json(data, "project.json.cluster")


def test_every_preset_says_where_the_figures_of_its_links_come_from():
    told = re.compile("assumed|constants")
    assert [name for name, each in presets().items() if not told.search(each.description)] == []


@pytest.mark.parametrize("name", sorted(presets()))
def test_every_preset_is_valid(name: str) -> None:
    file = resource_files("enplace_resources") / "clusters" / f"{name}.json"
    jsonschema.validate(json.loads(file.read_bytes()), SCHEMA)
    jsonschema.validate(cluster_to_json(presets()[name]), SCHEMA)
    cluster = presets()[name]
    assert cluster.name == name
    assert cluster.description
    kinds = [device.kind for device in cluster.devices]
    if "gpu" in kinds:
        hosts = [device for device in cluster.devices if device.kind == "cpu"]
        assert [host.name for host in hosts] == ["CPU:0"]
        assert hosts[0].lanes > 1


def test_testbeds_of_the_papers_come_first_and_match_the_papers() -> None:
    assert list(presets())[:5] == ["pesto", "celeritas", "fastt", "fastt-2x8", "baechi"]
    pesto = presets()["pesto"]
    assert [device.capacity_bytes >> 30 for device in pesto.devices[:2]] == [16, 16]
    assert (pesto.b0_us[0, 1], pesto.b1_us_per_byte[0, 1]) == (40.77, 2.07573e-5)
    assert (pesto.b0_us[2, 0], pesto.b1_us_per_byte[2, 0]) == (7.0, 7.7778e-5)
    assert len(presets()["celeritas"].gpus) == 4
    assert len(presets()["fastt"].gpus) == 8
    assert len(presets()["fastt-2x8"].gpus) == 16
    baechi = presets()["baechi"]
    between = {link.channels for link in baechi.links if {link.source, link.target} == {0, 1}}
    ports = [{baechi.channels[channel] for channel in channels} for channels in between]
    assert all(port == {"port GPU:0", "port GPU:1"} for port in ports)


def test_presets_have_shared_and_routed_channels() -> None:
    celeritas, fastt, pair = presets()["celeritas"], presets()["fastt"], presets()["fastt-2x8"]
    assert channels_of(celeritas, "GPU:0", "GPU:1") == channels_of(celeritas, "GPU:3", "GPU:2")
    assert channels_of(fastt, "GPU:0", "GPU:5") == ["GPU:0->GPU:4", "GPU:4->GPU:5"]
    assert channels_of(pair, "GPU:0", "GPU:9") == ["NIC 0 out", "NIC 1 in"]


def test_a_cluster_is_chosen_by_name_by_file_or_from_the_profile(tmp_path: Path) -> None:
    assert cluster_from("pesto", PROFILE) is presets()["pesto"]
    path = tmp_path / "mine.json"
    path.write_text(cluster_text(presets()["pcie-2"]))
    assert cluster_from(str(path), PROFILE) == presets()["pcie-2"]
    carrying = replace(PROFILE, measured=Measurement(cluster=presets()["cpu-2"]))
    for word in ("local", "from-file"):
        assert cluster_from(word, carrying) == presets()["cpu-2"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("pesta", "did you mean 'pesto'"),
        ("???", "nor is that a .json file; use one of pesto"),
        ("none.json", "none.json: cannot read"),
        ("local", "does not say which devices it was measured on, so 'local'"),
    ],
)
def test_an_unknown_cluster_is_refused(word: str, message: str) -> None:
    with pytest.raises(EnplaceError, match=message):
        cluster_from(word, PROFILE)


def test_a_cluster_of_millions_of_values_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json"
    path.write_bytes(b'{"devices": [' + b"{}," * 8_000_000 + b"1]}")
    with pytest.raises(EnplaceError, match=r"bomb\.json: would take over .* of memory"):
        read_cluster(path)


def test_a_damaged_cluster_inside_a_profile_is_named() -> None:
    with pytest.raises(EnplaceError, match=r"measured\.cluster\.devices: must be a list"):
        measurement_from_json({"cluster": {"devices": 5}})


def test_the_memory_of_a_device_in_a_file_includes_its_reserve() -> None:
    data = cluster_file()
    data["devices"][0] |= {"capacity_bytes": 1000, "reserve_bytes": 300}
    cluster = cluster_from_json(data)
    assert cluster.devices[0].capacity_bytes == 700
    assert cluster_to_json(cluster)["devices"][0]["capacity_bytes"] == 1000
    data["devices"][0]["reserve_bytes"] = 1000
    with pytest.raises(ClusterError, match=r"devices\[0\].*leaves nothing"):
        cluster_from_json(data)
