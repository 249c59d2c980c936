import json
import os
from importlib.resources import files as resource_files

import jsonschema
import pytest
import tensorflow as tf

from enplace.errors import FileError
from enplace.frameworks.tensorflow import devices as module
from enplace.frameworks.tensorflow.devices import DevicesError, parse_devices, short_name
from enplace.readers.cluster_json import cluster_from_json
from enplace.writers.clusters import cluster_text
from fake_nvml import GIB, gpu, install


def test_logical_cpus_share_memory_and_have_one_thread_each(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    found = parse_devices("CPU:3")
    assert found.names == ["/device:CPU:0", "/device:CPU:1", "/device:CPU:2"]
    assert found.config.device_count["CPU"] == 3
    assert found.config.inter_op_parallelism_threads == 3
    assert not found.config.allow_soft_placement
    total = sum(device.capacity_bytes for device in found.cluster.devices)
    assert 0.9 * module.host_bytes() < total <= module.host_bytes()
    assert (found.host, found.tasks) == ("/device:CPU:0", [])


def test_more_logical_cpus_than_cores_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2))
    found = parse_devices("cpu:4")
    assert found.config.inter_op_parallelism_threads == 1
    assert set(found.cluster.lane_owner.tolist()) == {0}


def test_cpu_all_means_one_device_per_core(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    assert parse_devices("cpu:all").cluster.n_devices == 3


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [f"{kind} 0", f"{kind} 1"])
    monkeypatch.setattr(module, "gpu_bytes", lambda: 10 << 30)
    monkeypatch.setattr(module, "_model_name", lambda gpu: "")


def test_gpus_come_with_their_host(two_gpus):
    found = parse_devices("gpu:all")
    assert found.names == ["/device:GPU:0", "/device:GPU:1", "/device:CPU:0"]
    assert found.config.gpu_options.visible_device_list == "0,1"
    assert [device.chip for device in found.cluster.devices] == ["", "", ""]
    assert parse_devices("gpu:1").config.gpu_options.visible_device_list == "0"


def test_ops_of_the_host_beside_gpus_keep_the_threads_of_tensorflow(two_gpus):
    assert parse_devices("gpu:2").config.intra_op_parallelism_threads == 0  # as many as cores
    assert parse_devices("cpu:2").config.intra_op_parallelism_threads == 1


def test_logical_gpus_of_one_chip_share_its_memory_and_run_in_turn(two_gpus):
    found = parse_devices("gpu:3")
    assert [device.chip for device in found.cluster.devices] == ["GPU 0", "GPU 0", "", ""]
    limits = [
        list(each.memory_limit_mb) for each in found.config.gpu_options.experimental.virtual_devices
    ]
    assert [len(each) for each in limits] == [2, 1]
    assert all(sum(each) <= 10 << 10 for each in limits)


def test_chosen_gpus_are_all_that_is_visible_and_may_have_less_memory(two_gpus):
    found = parse_devices("gpu:#3,1@2GiB")
    assert found.config.gpu_options.visible_device_list == "0,1"
    assert [device.capacity_bytes for device in found.cluster.devices[:2]] == [2 * GIB, 2 * GIB]
    limits = found.config.gpu_options.experimental.virtual_devices
    assert [list(each.memory_limit_mb) for each in limits] == [[2048], [2048]]
    with pytest.raises(DevicesError, match="TensorFlow finds 2 here"):
        parse_devices("gpu:#0,1,2")


def cost(cluster, a, b):
    (link,) = [each for each in cluster.links if (each.source, each.target) == (a, b)]
    return link.b0_us, link.b1_us_per_byte


def test_each_card_has_the_memory_that_is_free_on_it_and_its_own_links(two_gpus, monkeypatch):
    fast = gpu("H200", "GPU-h", free_gib=100, nvlinks=["GPU-i"])
    install(monkeypatch, gpu("T4", "GPU-t", free_gib=10), fast)
    monkeypatch.setattr(module, "_model_name", lambda gpu: {"0": "H200", "1": "T4"}[gpu[-1]])
    found = parse_devices("gpu:3").cluster
    assert "H200, T4" in found.description
    gib = [round(each.capacity_bytes / 0.85 / GIB) for each in found.devices[:3]]
    assert gib == [50, 50, 10]
    assert cost(found, 0, 1) == module.GPU_TO_GPU
    assert cost(found, 0, 2) == cost(found, 2, 1) == module.GPU_TO_HOST


def test_each_logical_gpu_has_the_model_of_its_card(two_gpus, monkeypatch):
    monkeypatch.setattr(module, "_model_name", lambda gpu: {"0": "H200", "1": "T4"}[gpu[-1]])
    assert parse_devices("gpu:3").models == ("H200", "H200", "T4", "")


def test_cards_joined_by_nvlink_are_near(two_gpus, monkeypatch):
    ends = gpu(uuid="GPU-a", nvlinks=["GPU-b"]), gpu(uuid="GPU-b", nvlinks=["GPU-a"])
    install(monkeypatch, *ends)
    monkeypatch.setattr(module, "_model_name", lambda gpu: "H200")
    assert cost(parse_devices("gpu:all").cluster, 0, 1) == module.GPU_TO_GPU


def hosts_file(folder, names, **more):
    path = folder / "cluster.json"
    cluster = {
        "devices": [{"name": n, "kind": "cpu", "capacity_bytes": 1 << 30} for n in names],
        "default_links": {"cpu-cpu": {"b0_us": 1, "b1_us_per_byte": 0}},
        **more,
    }
    path.write_text(json.dumps(cluster))
    return str(path)


WORKERS = [f"/job:worker/task:{task}/device:CPU:{cpu}" for task in (0, 1) for cpu in (0, 1)]


def test_devices_of_hosts_keep_their_names(tmp_path):
    found = parse_devices(hosts_file(tmp_path, WORKERS))
    assert found.names == WORKERS
    assert found.tasks == ["/job:worker/task:0", "/job:worker/task:1"]
    assert found.host == WORKERS[0]
    assert found.config.device_count["CPU"] == 2


def test_host_addresses_are_kept_in_the_cluster(tmp_path):
    hosts = {"/job:worker/task:0": "10.0.0.1:2222", "/job:worker/task:1": "b.lan:2222"}
    cluster = parse_devices(hosts_file(tmp_path, WORKERS, hosts=hosts)).cluster
    assert dict(cluster.hosts) == hosts
    data = json.loads(cluster_text(cluster))
    assert cluster_from_json(data) == cluster
    schema = (resource_files("enplace_resources") / "cluster.schema.json").read_text()
    jsonschema.validate(data, json.loads(schema))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("cpu:0", "use 1 to"),
        ("cpu:65", "use 1 to"),
        ("cpu:#1", "only GPUs"),
        ("cpu:2@1GiB", "only GPUs"),
        ("gpu:all", "no GPU"),
        ("gpu:2", "no GPU"),
        ("tpu:1", "neither cpu:N"),
        ("missing.json", "neither cpu:N"),
    ],
)
def test_missing_devices_are_explained(text, why):
    with pytest.raises(DevicesError, match=why):
        parse_devices(text)


def test_a_cluster_without_hosts_is_refused_as_a_hosts_file(tmp_path):
    with pytest.raises(DevicesError, match=r"rename 'CPU:0'"):
        parse_devices(hosts_file(tmp_path, ["CPU:0", "CPU:1"]))


def test_an_invalid_address_is_refused(tmp_path):
    path = hosts_file(tmp_path, WORKERS, hosts={"/job:worker/task:0": "here"})
    with pytest.raises(FileError, match="name:port"):
        parse_devices(path)


def test_full_device_names_are_shortened():
    assert short_name("/job:localhost/replica:0/task:0/device:CPU:1") == "/device:CPU:1"
    assert short_name("/job:worker/replica:0/task:1/device:GPU:0") == (
        "/job:worker/task:1/device:GPU:0"
    )
