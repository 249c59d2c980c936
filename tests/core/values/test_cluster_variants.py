"""More, fewer and larger GPUs than a cluster has."""

import numpy as np
import pytest

from enplace.errors import ClusterError
from enplace.readers.clusters import presets
from enplace.values.cluster_variants import with_gpus, with_memory
from problems import cluster_of


def costs(cluster):
    """Return the latency, the bandwidth and the number of channels of every pair, GPUs first."""
    order = [*cluster.gpus, *cluster.cpus]
    n_channels = np.diff(cluster.route_ptr).reshape(len(order), -1)
    return [
        matrix[np.ix_(order, order)]
        for matrix in (cluster.b0_us, cluster.b1_us_per_byte, n_channels)
    ]


@pytest.mark.parametrize("kind", ["a100-{}-nvlink", "h100-{}-nvlink", "pcie-{}"])
def test_two_gpus_grow_into_the_preset_of_four_and_four_shrink_into_that_of_two(kind):
    two, four = (presets()[kind.format(n)] for n in (2, 4))
    for found, wanted in ((with_gpus(two, 4), four), (with_gpus(four, 2), two)):
        assert [d.name for d in found.devices if d.kind == "gpu"] == [
            d.name for d in wanted.devices if d.kind == "gpu"
        ]
        assert len({*found.route.tolist()}) == len({*wanted.route.tolist()})
        for one, other in zip(costs(found), costs(wanted), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_single_gpu_does_not_tell_how_two_are_linked():
    assert len(with_gpus(cluster_of(3), 1).gpus) == 1
    with pytest.raises(ClusterError, match="nothing tells how two are linked"):
        with_gpus(cluster_of(1), 2)


def test_only_gpus_get_more_memory():
    cluster = with_memory(cluster_of(2, capacity_bytes=100, cpu_lanes=1), 1.5)
    assert cluster.capacity_bytes.tolist() == [150, 150, 100]
