import pytest

from enplace.errors import ClusterError
from enplace.frameworks.nvml import Card
from enplace.frameworks.own_cluster import NVLINK, PCIE, describe, describe_each, detect, model_of
from enplace.readers.cluster_json import cluster_from_json
from enplace.readers.clusters import presets
from enplace.writers.clusters import cluster_to_json

GIB = 1 << 30


def card(number, name="NVIDIA H100 80GB HBM3", nvlinks=()):
    linked = frozenset(f"GPU-{other}" for other in nvlinks)
    return Card(name, f"GPU-{number}", 80 * GIB, 79 * GIB, nvlinks=linked)


def cost(cluster, source, target):
    link = next(
        link
        for link in cluster.links
        if (cluster.devices[link.source].name, cluster.devices[link.target].name)
        == (source, target)
    )
    return link.b0_us, link.b1_us_per_byte


def test_detected_gpus_have_their_memory_and_the_speed_of_their_model():
    gpus = detect([card(0, nvlinks=[1]), card(1, nvlinks=[0])]).devices[:2]
    assert [gpu.capacity_bytes for gpu in gpus] == [80 * GIB] * 2
    assert [gpu.speed for gpu in gpus] == [0.85] * 2
    assert [gpu.model for gpu in gpus] == ["h100"] * 2


def test_only_pairs_with_nvlink_get_its_cost():
    """As in a workstation with two bridges."""
    found = detect([card(0, nvlinks=[1]), card(1, nvlinks=[0]), card(2)])
    nvlink = cost(presets()["h100-2-nvlink"], "GPU:0", "GPU:1")
    pcie = cost(presets()["pcie-2"], "GPU:0", "GPU:1")
    assert cost(found, "GPU:0", "GPU:1") == cost(found, "GPU:1", "GPU:0") == nvlink
    assert cost(found, "GPU:0", "GPU:2") == cost(found, "GPU:2", "GPU:1") == pcie


def test_the_description_cites_the_presets_that_the_figures_come_from():
    described = describe(4, "v100", 16 * GIB, NVLINK).description
    assert "4 × V100" in described
    assert presets()["pesto"].description in described
    assert "pcie" not in described.lower()


def test_unlike_cards_have_the_host_that_is_described():
    found = describe_each([("l4", 20 * GIB), ("h100", 80 * GIB)], 64 * GIB)
    assert [device.capacity_bytes // GIB for device in found.devices] == [20, 80, 64]
    assert [device.model for device in found.devices] == ["l4", "h100", ""]
    assert [each.kind for each in describe_each([("l4", GIB)], 0).devices] == ["gpu"]


def test_an_unknown_gpu_says_whose_speed_it_has():
    found = describe(2, "RTX 4090", 24 * GIB, PCIE)
    assert found.devices[0].speed == presets()["pcie-2"].devices[0].speed
    assert "RTX 4090: speed as in 'pcie-2'" in found.description


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("Tesla V100-PCIE-16GB", "v100"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA RTX A5000", "rtx-a5000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 3080 Ti", "NVIDIA GeForce RTX 3080 Ti"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 Laptop GPU"),
        ("a100", "a100"),
        ("NVIDIA RTX A1000 Laptop GPU", "NVIDIA RTX A1000 Laptop GPU"),
        ("NVIDIA GH200 480GB", "NVIDIA GH200 480GB"),
    ],
)
def test_a_card_is_known_by_a_whole_word_of_its_name(name, model):
    assert model_of(name) == model


def test_without_nvlink_all_transfers_cross_the_host():
    found = describe(2, "RTX 4090", 24 * GIB, PCIE)
    assert {found.channels[at] for link in found.links for at in link.channels} == {"host bridge"}


@pytest.mark.parametrize("link", [NVLINK, PCIE])
@pytest.mark.parametrize("model", ["h200", "h100", "a100", "v100", "something"])
def test_a_written_cluster_can_be_read(model, link):
    for count in (1, 2, 5):
        made = describe(count, model, 24 * GIB, link)
        assert len(cluster_from_json(cluster_to_json(made)).gpus) == count


def test_there_must_be_a_gpu():
    with pytest.raises(ClusterError):
        detect([])
