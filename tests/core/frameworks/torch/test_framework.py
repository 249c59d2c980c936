import zipfile

import numpy as np
import pytest

from enplace.errors import ClusterError, FileError
from enplace.frameworks.registry import (
    about_usual_grain,
    at_usual_grain,
    frameworks,
    keep_whole,
)
from enplace.frameworks.roofline import GPUS
from enplace.frameworks.source import source_from_json, source_of
from enplace.frameworks.torch.error_text import describe_out_of_memory, explain
from enplace.frameworks.torch.hosts import stage_devices
from enplace.frameworks.torch.measure.measure import estimated_profile
from enplace.frameworks.torch.names import UniqueNames, scope_of_module
from enplace.readers.cluster_json import cluster_from_json
from enplace.readers.clusters import presets
from enplace.values.measurement import Measurement
from enplace.values.plan import Plan, follow_graph
from enplace.values.problem import STEP_TIME, THROUGHPUT, Problem
from torch_steps import read_step


def script(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(text)
    return str(path)


def test_a_script_that_imports_torch_is_pytorchs(tmp_path):
    path = script(tmp_path, "from torch import nn\n")
    assert source_of(path).framework.name == "PyTorch"
    path = script(tmp_path, "import tensorflow as tf\n")
    assert source_of(path).framework.name == "TensorFlow"


def test_the_gpu_of_an_estimate_stays_with_the_source(tmp_path):
    source = source_of(script(tmp_path, "import torch\n"), estimate="h100")
    assert source.text("estimate") == "h100"
    assert source_from_json(source.to_json()) == source


@pytest.mark.parametrize("name", ["model.pt", "last.ckpt", "model.safetensors"])
def test_weights_alone_are_refused_without_being_opened(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"\x80\x02")
    with pytest.raises(FileError, match=f"{name}: weights without the code of their model"):
        source_of(str(path))


def test_a_program_of_torch_export_is_a_recorded_one(tmp_path):
    (program := tmp_path / "model.pt2").write_bytes(b"PK")
    assert source_of(str(program)).is_recorded


def test_a_torchscript_model_is_refused_as_one(tmp_path):
    with zipfile.ZipFile(tmp_path / "net.pt", "w") as archive:
        archive.writestr("net/data.pkl", "cos\nsystem\n")
        archive.writestr("net/code/__torch__.py", "class Net(Module): ...")
    with pytest.raises(FileError, match=r"net\.pt: a TorchScript model.* torch\.export"):
        source_of(str(tmp_path / "net.pt"))


def test_workers_that_run_scripts_change_no_files():
    for framework in frameworks().values():
        if any(kind.name == "script" for kind in framework.kinds):
            assert framework.worker.changes_nothing, framework.name


def test_modules_are_units_with_their_gradients_and_updates():
    profile = estimated_profile("tied", read_step("tied"), GPUS["h100"], Measurement())
    groups = frameworks()["torch"].grain("module", profile)
    names = [{profile.op_names[op] for op in group} for group in groups]
    own = next(group for group in names if "blocks_0/up/addmm" in group)
    assert {"gradients/blocks_0/up/mm", "update/blocks_0/up/weight/AdamW"} <= own


def test_scopes_read_like_the_model():
    assert scope_of_module("transformer.h.11.attn.c_proj") == "transformer/h_11/attn/c_proj"
    assert scope_of_module("0.1") == "0_1"


def test_names_repeat_with_numbers():
    names = UniqueNames()
    assert [names.take("a", "mm"), names.take("a", "mm"), names.take("a", "mm_1")] == [
        "a/mm",
        "a/mm_1",
        "a/mm_1_1",
    ]


def test_known_errors_say_what_to_do():
    assert "without --estimate" in explain(RuntimeError("Cannot access data pointer of Tensor"))
    flex = explain(NotImplementedError("FlexAttention does not support backward on CPU. Please"))
    assert "no backward pass without CUDA" in flex
    assert explain(ValueError("labels are wrong")) == ""
    text = describe_out_of_memory("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has")
    assert "2.50 GiB" in text


def test_blocks_stay_whole_for_throughput_unless_a_constraint_divides_one():
    profile = estimated_profile(
        "tied", read_step("tied"), GPUS["h100"], Measurement(framework="torch")
    )
    problem = Problem(profile, presets()["h100-2-nvlink"])
    kept = at_usual_grain(problem, THROUGHPUT)
    assert len(kept.together) > len(problem.together)
    assert about_usual_grain(kept, THROUGHPUT) == "Blocks stay whole; --grain op divides them."
    assert at_usual_grain(problem, STEP_TIME) is keep_whole(problem, "op") is problem
    ops = [profile.index[f"blocks_0/{name}/addmm"] for name in ("up", "down")]
    divided = problem.constrained(pins=((ops[0], 0), (ops[1], 1)))
    assert at_usual_grain(divided, THROUGHPUT) is divided
    assert about_usual_grain(divided, THROUGHPUT) == ""


def test_labels_are_for_runs_alone():
    framework = frameworks()["torch"]
    framework.check_devices("cpu:2", for_run=True)
    with pytest.raises(ClusterError, match="does not divide a device"):
        framework.check_devices("cpu:2")
    for text in ("cpu:all", "cpu:#0,1"):
        with pytest.raises(ClusterError, match="write how many, such as cpu:2"):
            framework.check_devices(text, for_run=True)
    with pytest.raises(ClusterError, match="runs on one host"):
        framework.check_devices("hosts.json", for_run=True)
    assert framework.uses_labels("cpu:2")
    assert not framework.uses_labels("gpu:2")
    assert not frameworks()["tensorflow"].uses_labels("cpu:2")


def test_a_plan_for_several_hosts_says_what_to_start_on_each():
    profile = estimated_profile("mlp", read_step("mlp"), GPUS["h100"], Measurement())
    tasks = ["/job:worker/task:0", "/job:worker/task:1"]
    devices = [
        {"name": f"{task}/device:GPU:0", "kind": "gpu", "capacity_bytes": 2**34} for task in tasks
    ]
    devices.append({"name": f"{tasks[0]}/device:CPU:0", "kind": "cpu", "capacity_bytes": 2**34})
    cost = {"b0_us": 60.0, "b1_us_per_byte": 8e-05}
    links = dict.fromkeys(("gpu-gpu", "gpu-cpu", "cpu-gpu"), cost)
    hosts = {tasks[0]: "10.0.0.1:2222", tasks[1]: "10.0.0.2:2222"}
    text = {"format": "enplace-cluster/1", "name": "two", "devices": devices}
    cluster = cluster_from_json({**text, "default_links": links, "hosts": hosts}, "cluster")
    order = follow_graph(profile, np.arange(profile.n_ops))
    device = (order < profile.n_ops // 8).astype(np.int64)
    device[[name.startswith("input") for name in profile.op_names]] = 2  # no stage
    plan = Plan(device, order, method="test")
    with pytest.raises(ClusterError) as refused:
        frameworks()["torch"].check_hosts(Problem(profile, cluster), plan, "train.py")
    for host in (0, 1):
        assert (
            f"torchrun --nnodes 2 --node-rank {host} --master-addr 10.0.0.1 --master-port 2222 "
            f"--nproc-per-node 1 train.py"
        ) in str(refused.value)
    assert stage_devices(Problem(profile, cluster), plan) == [1, 0]  # by what comes first
