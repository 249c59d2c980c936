"""Small inputs in every readable format, as plain data for tests to modify."""

from collections.abc import Callable
from typing import Any

RATE = 2**31 / 1000
LAYER_RATE = 2**31


def tarnawski(rate: float = RATE) -> dict[str, Any]:
    def node(number: int, **more: Any) -> dict[str, Any]:
        latencies = {"cpuLatency": 10.0, "fpgaLatency": 1.5, "size": 1024.0}
        return {"id": number, "supportedOnFpga": 1, "isBackwardNode": 0} | latencies | more

    def edge(source: int, target: int, size: int) -> dict[str, Any]:
        return {"sourceId": source, "destId": target, "cost": size / rate, "size": float(size)}

    return {
        "maxSizePerFPGA": 4096.0,
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "nodes": [
            node(3, name="net.layer.0.MatMul", colorClass=7),
            node(5, name="Add1", supportedOnFpga=False, fpgaLatency=0),
            node(9, name="net.layer.0.MatMul_grad", isBackwardNode=True, colorClass=7),
        ],
        "edges": [edge(3, 5, 8192), edge(3, 9, 8192), edge(5, 9, 24)],
    }


def text_form() -> dict[str, Any]:
    """Return two ops and the tensor between them."""
    return {
        "ops": [{"name": "net/a", "time_us": {"gpu": 1}}, {"name": "b", "time_us": {"cpu": 2}}],
        "edges": [{"src": "net/a", "dst": "b", "bytes": 4}],
    }


def cluster_file() -> dict[str, Any]:
    """Return two GPUs and a CPU behind a shared bridge."""
    return {
        "devices": [
            {"name": "GPU:0", "kind": "gpu", "capacity_bytes": 100},
            {"name": "GPU:1", "kind": "gpu", "capacity_bytes": 100},
            {"name": "CPU:0", "kind": "cpu", "capacity_bytes": 100, "lanes": 4},
        ],
        "links": [{"from": "GPU:0", "to": "GPU:1", "b0_us": 5, "b1_us_per_byte": 0.5}],
        "default_links": {
            "gpu-gpu": {"b0_us": 7, "b1_us_per_byte": 0.7},
            "gpu-cpu": {"b0_us": 8, "b1_us_per_byte": 0.8, "channels": ["bridge"]},
            "cpu-gpu": {"b0_us": 9, "b1_us_per_byte": 0.9, "channels": ["bridge", "switch"]},
        },
    }


def tf_node(name: str, op: str, **more: Any) -> dict[str, Any]:
    kernels = more.get("n_kernels", 0)
    usual = {"device": "GPU:0", "gpu_us": 10.0 * kernels, "n_kernels": 0, "cpu_us_median": 4.0}
    more.setdefault("out", [{"ref": op == "VariableV2", "bytes": 40}])
    return {"name": name, "op": op, "colocate": [], "tag": None} | usual | more


def tf_profile(step_us: float = 100.0) -> dict[str, Any]:
    """Return one training step of w: read, multiply, gradient, update; fed from the host."""
    nodes = [
        tf_node("next", "IteratorGetNext", device="CPU:0", cpu_us_median=20.0),
        tf_node("w", "VariableV2", tag="lstm1", var_bytes=40),
        tf_node("w/read", "Identity", tag="lstm1", colocate=["w"]),
        tf_node("t0/mul", "MatMul", tag="lstm1.t0", n_kernels=2, temp_bytes=16),
        tf_node("gradients/t0/mul_grad/MatMul", "MatMul", tag="lstm1.t0", n_kernels=2),
        tf_node("train_op/update_w/Apply", "ApplyGradientDescent", n_kernels=1, colocate=["w"]),
        tf_node("w/Adam", "VariableV2", colocate=["w"], var_bytes=40),
        tf_node("mul_7", "Mul", n_kernels=1),
    ]
    for number, node in enumerate(nodes):
        node["id"] = number
    ends = [(0, 0, 3), (1, 0, 2), (2, 0, 3), (3, 0, 4), (2, 0, 4), (4, 0, 7), (7, 0, 5), (1, 0, 5)]
    return {
        "schema": "tf-op-profile/1",
        "model": "tiny",
        "variant": "fp32",
        "config": {"batch": 2},
        "tf32": False,
        "placement": "single",
        "logical_gpus": 1,
        "machine": {"gpu_name": "Test GPU"},
        "step_ms": {"untraced_median": step_us / 1000},
        "memory": {"allocator_peak_bytes": {"GPU_0_bfc": 200}},
        "copies": [
            {"kind": "MemcpyH2D", "bytes": 40, "median_us": 2.0},
            {"kind": "MemcpyH2D", "bytes": 2_000_000, "median_us": 202.0},
        ],
        "nodes": nodes,
        "edges": [[*end, 0, 40] for end in ends] + [[3, -1, 5, -1, 0]],
    }


def put(*where: Any) -> Callable[[dict[str, Any]], None]:
    """Return a change that sets the value at a path; the last item is the value."""
    *path, key, value = where

    def change(data: Any) -> None:
        for step in path:
            data = data[step]
        data[key] = value

    return change
