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


@pytest.mark.parametrize("devices", ["hosts.json", "/tmp/hosts.json", "cpu:2/../hosts.json", "x:1"])
def test_a_profile_cannot_choose_the_machines_that_a_model_is_sent_to(devices):
    pair = cluster_of(2)
    with pytest.raises(ClusterError, match="give their cluster file with --devices"):
        devices_for(pair, Measurement(cluster=pair, devices=devices))
