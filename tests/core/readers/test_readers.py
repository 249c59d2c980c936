"""Files of other programs become equivalent profiles."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.core.machine.schedule_faults import find_faults

from enplace.errors import EnplaceError, EnplaceWarning, FileError, PlanError
from enplace.machine import simulate
from enplace.machine.host_links import send_us
from enplace.placers import place
from enplace.readers import read_profile, recorded_plan, with_costs_of
from enplace.readers.calibration import GAP_LIMITS_US, about_gap
from enplace.readers.clusters import cluster_from
from enplace.readers.gpu_profile import HOST_TO_GPU
from enplace.values.measurement import Measurement
from enplace.values.problem import Problem
from enplace.values.profile import Profile
from inputs import LAYER_RATE, RATE, tarnawski, tf_profile

# Tarnawski et al. 2020


def read(tmp_path: Path, data: Any, name: str = "input.json") -> Profile:
    path = tmp_path / name
    content = json.dumps(data).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return read_profile(path)


def test_a_tarnawski_input_becomes_a_profile(tmp_path: Path) -> None:
    profile = read(tmp_path, tarnawski())
    assert profile.name == "input"
    assert profile.op_names == ("net.layer.0.MatMul", "Add1", "net.layer.0.MatMul_grad")
    assert profile.scopes == ("net/layer/0", "", "net/layer/0")
    assert profile.time_us[0].tolist() == [1500.0, 10000.0]
    assert math.isnan(profile.time_us[1, 0])
    assert profile.persistent_bytes.tolist() == [1024, 1024, 1024]
    assert profile.colocation[0] == profile.colocation[2] != ""
    assert profile.colocation[1] == ""
    assert profile.measured.backward == (2,)


def test_an_output_with_several_consumers_becomes_one_tensor(tmp_path: Path) -> None:
    profile = read(tmp_path, tarnawski())
    assert profile.tensor_bytes.tolist() == [8192, 24]
    assert profile.n_edges == 3


@pytest.mark.parametrize("sizes", [True, False])
def test_links_of_the_cluster_reproduce_the_costs_in_the_file(tmp_path: Path, sizes: bool) -> None:
    data = tarnawski()
    costs = [data["edges"][0]["cost"], data["edges"][2]["cost"]]
    if not sizes:
        costs = [0.0125, 3.0]
        for edge, cost in zip(data["edges"], [costs[0], costs[0], costs[1]], strict=True):
            edge["cost"] = cost
            del edge["size"]
    profile = read(tmp_path, data)
    cluster = cluster_from("from-file", profile)
    to_host = cluster.b1_us_per_byte[0, 2]
    assert (profile.tensor_bytes * to_host).tolist() == pytest.approx(
        [cost * 1000 for cost in costs], rel=1e-12
    )
    assert cluster.b1_us_per_byte[2, 0] == to_host
    assert cluster.b1_us_per_byte[0, 1] == 2 * to_host
    assert not cluster.b0_us.any()


def test_the_cluster_has_the_devices_of_the_input(tmp_path: Path) -> None:
    cluster = cluster_from("from-file", read(tmp_path, tarnawski()))
    assert [device.name for device in cluster.devices] == ["GPU:0", "GPU:1", "CPU:0"]
    assert cluster.devices[0].capacity_bytes == 4096


def test_edges_of_a_node_with_different_costs_become_different_outputs(tmp_path: Path) -> None:
    data = tarnawski()
    data["edges"][1] |= {"cost": 64 / RATE, "size": 64.0}
    assert read(tmp_path, data).tensor_bytes.tolist() == [8192, 64, 24]


def test_costs_a_thousand_times_too_small_are_used_with_a_warning(tmp_path: Path) -> None:
    with pytest.warns(EnplaceWarning, match="1000 times smaller"):
        profile = read(tmp_path, tarnawski(LAYER_RATE))
    link = cluster_from("from-file", profile).b1_us_per_byte[0, 2]
    assert profile.tensor_bytes[0] * link == pytest.approx(1000 * 8192 / LAYER_RATE, rel=1e-12)


@pytest.mark.parametrize(
    "costs_and_sizes", [[(10, 1), (4, 4_000_000), (10.1, 40_000)], [(40, 4), (4, 0.4), (0.04, 0)]]
)
def test_costs_are_used_if_sizes_contradict_them(tmp_path: Path, costs_and_sizes: Any) -> None:
    nodes = [{"id": i, "fpgaLatency": 1, "cpuLatency": 9, "size": 1} for i in range(4)]
    edges = [
        {"sourceId": i, "destId": i + 1, "cost": cost, "size": size}
        for i, (cost, size) in enumerate(costs_and_sizes)
    ]
    data = {"maxFPGAs": 2, "maxCPUs": 0, "nodes": nodes, "edges": edges}
    with pytest.warns(EnplaceWarning, match="the costs are used"):
        profile = read(tmp_path, data)
    problem = Problem(profile, cluster_from("from-file", profile))
    sent_ms = [us / 1000 for us in send_us(problem)[:, 0].tolist()]
    assert sent_ms == pytest.approx([cost for cost, _ in costs_and_sizes], rel=1e-5)


def test_many_costs_without_sizes_are_used(tmp_path: Path) -> None:
    nodes = [{"id": i, "fpgaLatency": 1, "cpuLatency": 9, "size": 1} for i in range(5_000)]
    edges = [{"sourceId": i, "destId": i + 1, "cost": 0.1234567} for i in range(4_999)]
    data = {"maxFPGAs": 2, "maxCPUs": 0, "nodes": nodes, "edges": edges}
    with pytest.warns(EnplaceWarning, match="the costs are used"):
        profile = read(tmp_path, data)
    problem = Problem(profile, cluster_from("from-file", profile))
    assert send_us(problem)[:, :2] == pytest.approx(123.4567)


def test_activations_included_in_sizes_are_not_counted_twice(tmp_path: Path) -> None:
    nodes = [{"id": i, "fpgaLatency": 1, "cpuLatency": 9, "size": 600} for i in range(4)]
    edges = [{"sourceId": i, "destId": i + 1, "cost": 1} for i in range(3)]
    data = {"maxSizePerFPGA": 1300, "maxFPGAs": 2, "maxCPUs": 1, "nodes": nodes, "edges": edges}
    profile = read(tmp_path, data)
    problem = Problem(profile, cluster_from("from-file", profile))
    schedule = simulate(problem, place(problem, "max-load-dp").plan)
    assert schedule.peak_bytes.tolist()[:2] == [1200, 1200]
    assert schedule.fits
    assert find_faults(schedule) == []


def test_ops_with_equal_names_get_their_ids_appended(tmp_path: Path) -> None:
    data = tarnawski()
    data["nodes"][2]["name"] = data["nodes"][0]["name"]
    assert read(tmp_path, data).op_names[::2] == ("net.layer.0.MatMul#3", "net.layer.0.MatMul#9")


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("nodes", {"id": 5}, "two have the id 5"),
        ("nodes", {"id": "x"}, r"nodes\[0\]\.id: must be a number"),
        ("nodes", {"name": ["a"]}, r"nodes\[0\]\.name: must be a text"),
        ("nodes", {"colorClass": {"a": 1}}, r"nodes\[0\]\.colorClass: must be a number or a text"),
        ("nodes", {"fpgaLatency": -1}, r"nodes\[0\]\.fpgaLatency: must be a number from 0"),
        ("nodes", {"fpgaLatency": math.nan}, r"nodes\[0\]\.fpgaLatency: .* not NaN"),
        ("nodes", {"supportedOnFpga": 2}, r"nodes\[0\]\.supportedOnFpga: must be true or false"),
        ("edges", {"destId": 4}, r"edges\[0\]\.destId: there is no node 4"),
        ("edges", {"cost": None}, r"edges\[0\]: 'cost' is missing"),
        ("edges", {"cost": math.inf}, r"edges\[0\]\.cost: must be"),
    ],
)
def test_a_mistake_in_a_tarnawski_input_is_located(
    tmp_path: Path, part: str, change: dict[str, Any], message: str
) -> None:
    data = tarnawski()
    data[part][0] |= change
    with pytest.raises(EnplaceError, match=message) as caught:
        read(tmp_path, data)
    assert str(caught.value).startswith(str(tmp_path))


# GPU profiles


@pytest.mark.parametrize("name", ["step.json", "step.json.gz"])
def test_a_gpu_profile_is_read_with_or_without_gzip(tmp_path: Path, name: str) -> None:
    profile = read(tmp_path, tf_profile(), name)
    assert profile.name == "tiny_fp32"
    assert profile.measured.step_time_us == 100.0
    assert profile.measured.gpu == "Test GPU"
    assert profile.measured.peak_bytes == {"GPU:0": 200}
    assert profile.measured.op_devices["next"] == "CPU:0"


def test_the_launch_gap_makes_simulated_and_measured_step_equal(tmp_path: Path) -> None:
    batch_us = 20.0 + HOST_TO_GPU[0] + 202.0 / 2_000_000 * 40
    profile = read(tmp_path, tf_profile(step_us=batch_us + 60 + 6 * 1.75))
    cluster = cluster_from("local", profile)
    step = simulate(Problem(profile, cluster), recorded_plan(profile, cluster)).makespan_us
    assert step == pytest.approx(profile.measured.step_time_us, rel=1e-6)
    assert profile.measured.launch_gap_us == pytest.approx(1.75, rel=1e-6)
    assert profile.time_us[3, 0] == pytest.approx(2 * 11.75)


def test_the_gap_of_a_launch_bound_step_is_fitted_and_reported(tmp_path: Path) -> None:
    profile = read(tmp_path, tf_profile(5000.0))
    cluster = cluster_from("local", profile)
    step = simulate(Problem(profile, cluster), recorded_plan(profile, cluster)).makespan_us
    assert step == pytest.approx(5000.0)
    assert "bound by what launches the kernels" in about_gap(profile.measured)


def test_kernels_longer_than_the_step_are_reported(tmp_path: Path) -> None:
    measured = read(tmp_path, tf_profile(1.0)).measured
    assert measured.launch_gap_us == GAP_LIMITS_US["gpu"][0]
    assert "longer than the measured step" in about_gap(measured)


def test_a_usual_launch_gap_needs_no_remark() -> None:
    for gap_us in (None, 1.5, 4.0):
        assert about_gap(Measurement(launch_gap_us=gap_us)) == ""
        assert about_gap(Measurement(op_overhead_us=gap_us)) == ""


def test_a_step_far_longer_than_its_ops_is_reported() -> None:
    """As on a busy CPU: the rest is too much to be the executor's work for each op."""
    measured = Measurement(op_overhead_us=GAP_LIMITS_US["cpu"][1])
    assert "the machine was busy with something else" in about_gap(measured)


def test_host_work_takes_no_gpu_time(tmp_path: Path) -> None:
    profile = read(tmp_path, tf_profile())
    assert profile.time_us[2].tolist()[0] == 0.0
    assert np.isnan(profile.time_us[2, 1])
    assert np.isnan(profile.time_us[0, 0])
    assert profile.time_us[0, 1] == 20.0


def test_reference_edges_have_no_bytes_and_colocate_their_ends(tmp_path: Path) -> None:
    profile = read(tmp_path, tf_profile())
    tied = {profile.op_names[op] for op in range(8) if profile.colocation[op] == "w"}
    assert tied == {"w", "w/read", "train_op/update_w/Apply", "w/Adam"}
    assert profile.tensor_bytes[profile.tensor_op == 1].tolist() == [0]
    assert profile.tensor_bytes[profile.tensor_op == 2].tolist() == [40]
    assert profile.persistent_bytes.tolist() == [0, 40, 0, 0, 0, 0, 40, 0]
    assert profile.temporary_bytes[3] == 16


def test_scopes_follow_the_structure_of_the_model(tmp_path: Path) -> None:
    profile = read(tmp_path, tf_profile())
    assert dict(zip(profile.op_names, profile.scopes, strict=True)) == {
        "next": "input",
        "w": "lstm1",
        "w/read": "lstm1",
        "t0/mul": "lstm1/t0",
        "gradients/t0/mul_grad/MatMul": "gradients/lstm1/t0",
        "train_op/update_w/Apply": "update/lstm1",
        "w/Adam": "lstm1",
        "mul_7": "update/lstm1",
    }


def test_a_tag_that_repeats_the_name_is_ignored(tmp_path: Path) -> None:
    data = tf_profile()
    data["nodes"][3] |= {"name": "decoder/layer_3/self/mul", "tag": "dec3"}
    data["nodes"][4] |= {"name": "gradients/sub_grad/MatMul", "tag": "dec3"}
    profile = read(tmp_path, data)
    assert profile.scopes[3] == "decoder/layer_3/self"
    assert profile.scopes[4] == "gradients/decoder/layer_3/self"


def test_the_local_cluster_has_the_bandwidth_of_the_recorded_copies(tmp_path: Path) -> None:
    cluster = cluster_from("local", read(tmp_path, tf_profile()))
    assert [device.name for device in cluster.devices] == ["GPU:0", "CPU:0"]
    assert cluster.devices[1].lanes > 1
    assert cluster.b0_us[1, 0] == HOST_TO_GPU[0]
    assert cluster.b1_us_per_byte[1, 0] == pytest.approx(202.0 / 2_000_000)


def two_gpus() -> dict[str, Any]:
    data = tf_profile() | {"logical_gpus": 2}
    for number in (4, 7):
        data["nodes"][number]["device"] = "GPU:1"
    return data


def test_a_recorded_placement_becomes_a_plan(tmp_path: Path) -> None:
    profile = read(tmp_path, two_gpus())
    cluster = cluster_from("local", profile)
    assert [device.name for device in cluster.devices] == ["GPU:0", "GPU:1", "CPU:0"]
    plan = recorded_plan(profile, cluster)
    assert plan.device.tolist() == [2, 0, 0, 0, 1, 0, 0, 1]
    assert plan.policy == "fifo"


def test_costs_of_another_measurement_are_matched_by_name(tmp_path: Path) -> None:
    run = read(tmp_path, two_gpus())
    other = tf_profile()
    del other["nodes"][-1], other["edges"][-1]
    other["nodes"][2]["gpu_us"] += 100
    other["edges"] = [edge for edge in other["edges"] if 7 not in (edge[0], edge[2])]
    costs = read(tmp_path, other, "costs.json")
    merged = with_costs_of(run, costs)
    assert merged.time_us[2, 0] == costs.time_us[2, 0]
    assert merged.time_us[7, 0] == run.time_us[7, 0]
    assert merged.fingerprint == run.fingerprint


def test_a_recorded_placement_needs_its_devices(tmp_path: Path) -> None:
    profile = read(tmp_path, two_gpus())
    with pytest.raises(PlanError, match="has ops on GPU:1, which cluster 'local' does not have"):
        recorded_plan(profile, cluster_from("local", read(tmp_path, tf_profile())))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("nodes", 2, "gpu_us"), -1, r"nodes\[2\]\.gpu_us: must be a number from 0"),
        (("nodes", 2, "device"), "GPU:5", r"nodes\[2\]\.device: \"GPU:5\" is none of GPU:0, CPU:0"),
        (("nodes", 2, "id"), 7, r"nodes\[2\]\.id: must be 2"),
        (("nodes", 2, "name"), "w", "2 ops are called 'w'"),
        (("edges", 0), [0, 0, 99, 0, 4], r"edges\[0\]: there is no node 99"),
        (("edges", 0), [0, 0, 3], r"edges\[0\]: must be five whole numbers"),
        (("edges", 0), [0, 0, 3, 0, -4], r"edges\[0\]: output 0 or -4 bytes is impossible"),
        (("step_ms",), {}, "step_ms: 'untraced_median' is missing"),
        (("schema",), "tf-op-profile/2", "newer Enplace"),
    ],
)
def test_a_mistake_in_a_gpu_profile_is_located(
    tmp_path: Path, place: tuple[Any, ...], value: Any, message: str
) -> None:
    data = part = tf_profile()
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = value
    with pytest.raises(EnplaceError, match=message) as caught:
        read(tmp_path, data)
    assert str(caught.value).startswith(str(tmp_path))


def test_a_gzip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enplace.files.reading.MAX_FILE_BYTES", 1 << 20)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * (2 << 20)))
    with pytest.raises(FileError, match="to over 1048576 bytes; do not trust it"):
        read_profile(path)


def test_a_truncated_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "step.json.gz"
    path.write_bytes(gzip.compress(json.dumps(tf_profile()).encode())[:-20])
    with pytest.raises(FileError, match="stops early"):
        read_profile(path)
