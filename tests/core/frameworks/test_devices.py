"""The device option that a plan needs on this machine."""

from dataclasses import replace

import pytest

from enplace.errors import ClusterError
from enplace.frameworks.devices import devices_for
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
