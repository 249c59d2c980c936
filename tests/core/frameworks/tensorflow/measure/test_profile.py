"""Profiles of a step, measured and from hand-made GPU traces."""

import json
from contextlib import nullcontext

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.step_stats_pb2 import StepStats

from enplace.frameworks.tensorflow.capture import step_of
from enplace.frameworks.tensorflow.devices import parse_devices
from enplace.frameworks.tensorflow.measure.link_fit import fit_line
from enplace.frameworks.tensorflow.measure.profile import _assemble, _stock_us, profile_step
from enplace.frameworks.tensorflow.measure.trace import OpTrace, check_kernels, op_traces, trimmed
from enplace.frameworks.tensorflow.step import LoadError, Step
from enplace.machine import simulate
from enplace.processes.worker import ignore
from enplace.readers import calibration, recorded_plan
from enplace.readers.clusters import cluster_from
from enplace.values.measurement import Measurement
from enplace.values.problem import Problem


@pytest.fixture(scope="module")
def profile():
    """The profile of a dense layer with a gradient step, on two logical CPUs."""
    kernel = tf.Variable(tf.ones((32, 32)), name="layer/kernel")
    x = tf.ones((16, 32))

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape, tf.name_scope("layer"):
            loss = tf.reduce_sum(tf.square(tf.matmul(x, kernel)))
        kernel.assign_sub(0.01 * tape.gradient(loss, kernel))
        return loss

    step = step_of("dense", train_step.get_concrete_function(x), [[x]])
    with pytest.MonkeyPatch.context() as patch:
        # On a busy machine, the steps take longer than their ops by more than the usual limit.
        patch.setitem(calibration.GAP_LIMITS_US, "cpu", (0.0, 1e9))
        return profile_step(step, parse_devices("cpu:2"), steps=20, warm_ups=3)


def test_simulating_one_device_gives_the_measured_step_time(profile):
    cluster = cluster_from("local", profile)
    schedule = simulate(Problem(profile, cluster), recorded_plan(profile, cluster))
    assert schedule.makespan_us == pytest.approx(profile.measured.step_time_us, rel=0.05)
    assert profile.measured.stock_step_time_us > 0


LINK = {"b0_us": 12.0, "b1_us_per_byte": 8e-05}


@pytest.mark.parametrize("devices", ["cpu:2", "tasks"])
def test_only_sessions_of_this_process_get_threads_of_their_own(tmp_path, devices):
    """TensorFlow's servers refuse to give them any."""
    seen = []

    class Opened(nullcontext):
        def __init__(self, config):
            super().__init__(self)
            seen.append(config.use_per_session_threads)

        def run(self):
            pass

    names = [f"/job:worker/task:{number}/device:CPU:0" for number in range(2)]
    tasks = [{"name": name, "kind": "cpu", "capacity_bytes": 1 << 30} for name in names]
    cluster = {"format": "enplace-cluster/1", "name": "two", "devices": tasks}
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps(cluster | {"default_links": {"cpu-cpu": LINK}}))
    where = parse_devices(str(path) if devices == "tasks" else devices)
    assert _stock_us(Opened, where, 1, ignore) is not None
    assert seen == [devices != "tasks"]


def test_a_variable_has_its_bytes_and_is_colocated_with_its_users(profile):
    variable = profile.index["layer/kernel"]
    assert profile.op_types[variable] == "VarHandleOp"
    assert profile.persistent_bytes[variable] == 4 * 32 * 32
    tied = {profile.op_types[op] for op in range(profile.n_ops) if profile.colocation[op]}
    assert tied == {"VarHandleOp", "ReadVariableOp", "AssignSubVariableOp"}


def test_tensors_have_bytes_and_resource_handles_have_none(profile):
    size = {
        (profile.op_types[op], output): int(n_bytes)
        for op, output, n_bytes in zip(
            profile.tensor_op, profile.tensor_output, profile.tensor_bytes, strict=True
        )
    }
    assert size["VarHandleOp", 0] == 0
    assert size["ReadVariableOp", 0] == 4 * 32 * 32


def test_scopes_are_those_of_the_model_code(profile):
    scope = dict(zip(profile.op_names, profile.scopes, strict=True))
    assert scope["layer/MatMul"] == "layer"
    assert scope["layer/kernel"] == "layer"
    assert any(s.startswith("gradients") for s in profile.scopes)
    writer = profile.op_types.index("AssignSubVariableOp")
    assert profile.scopes[writer] == "update"


def test_every_op_that_ran_has_a_time_and_its_deviation(profile):
    matmul = profile.index["layer/MatMul"]
    assert profile.measured.op_deviation["layer/MatMul"] >= 0
    assert np.isnan(profile.time_us[matmul, 0])
    assert profile.time_us[matmul, 1] > 0
    assert set(profile.measured.op_devices.values()) == {"CPU:0"}


def test_transfers_between_logical_cpus_are_not_measured(profile):
    assert profile.measured.links == ()


def test_gpu_kernels_are_summed_from_the_row_of_all_streams():
    stats = StepStats()
    host = stats.dev_stats.add(device="/job:localhost/replica:0/task:0/device:GPU:0")
    host.node_stats.add(node_name="a/MatMul", op_end_rel_nanos=5000)
    for name in ("/device:GPU:0/stream:all", "/device:GPU:0/stream:13"):
        stream = stats.dev_stats.add(device=name)
        stream.node_stats.add(node_name="a/MatMul:MatMul", op_end_rel_nanos=20_000)
        stream.node_stats.add(node_name="a/MatMul:MatMul", op_end_rel_nanos=10_000)
    trace = op_traces([stats], [])["a/MatMul"]
    assert (trace.device, trace.n_kernels) == ("/device:GPU:0", 2)
    assert (trace.kernel_us, trace.host_us) == ([30.0], [5.0])


def test_what_an_op_on_a_gpu_computes_in_the_memory_of_the_host_costs_time_but_no_copy():
    stats = StepStats()
    device = stats.dev_stats.add(device="/job:localhost/replica:0/task:0/device:GPU:0")
    for name, allocator in (("shape", "gpu_host_bfc"), ("identity", "GPU_0_bfc")):
        row = device.node_stats.add(node_name=name, op_end_rel_nanos=5000)
        tensor = row.output.add(slot=0).tensor_description
        tensor.dtype = tf.int32.as_datatype_enum
        tensor.shape.dim.add(size=4)
        tensor.allocation_description.allocator_name = allocator
    graph_def = GraphDef()
    graph_def.node.add(name="shape", op="Placeholder").attr["dtype"].type = tensor.dtype
    graph_def.node.add(name="identity", op="Identity", input=["shape"])
    graph_def.node.add(name="end", op="Add", input=["shape", "identity"])
    for node in graph_def.node[1:]:
        node.attr["T"].type = tensor.dtype
    step = Step("hosted", graph_def, {}, [(np.zeros(4, np.int32),)], inputs=("shape",))
    at = dict.fromkeys(("shape", "identity", "end"), "GPU:0")
    profile = _assemble(step, op_traces([stats], []), Measurement(op_devices=at))
    assert profile.time_us[:, 0].tolist() == [5.0, 0.0, 0.0]
    sizes = {
        profile.op_names[op]: n
        for op, n in zip(profile.tensor_op, profile.tensor_bytes, strict=True)
    }
    assert sizes == {"shape": 0, "identity": 16}


def test_kernels_inside_of_a_loop_or_branch_are_booked_on_it():
    """Its own row has no kernels: they have the names of the ops inside.

    TensorFlow leaves rows of the ops inside of a branch, but not of those inside of a loop.
    """
    graph = GraphDef()
    loop = graph.node.add(name="lstm/while", op="While")
    loop.attr["body"].func.name = "body"
    branch = graph.node.add(name="branch", op="Case")
    branch.attr["branches"].list.func.add(name="other")
    graph.node.add(name="lstm/while/after", op="Mul")
    body, cell, other = (graph.library.function.add() for _ in range(3))
    body.signature.name, cell.signature.name, other.signature.name = "body", "cell", "other"
    call = body.node_def.add(name="lstm/while/call", op="PartitionedCall")
    call.attr["f"].func.name = "cell"
    body.node_def.add(name="lstm/while/add", op="AddV2")
    cell.node_def.add(name="MatMul", op="MatMul")
    other.node_def.add(name="Square", op="Square")
    stats = StepStats()
    stream = stats.dev_stats.add(device="/device:GPU:0/stream:all")
    for name in ("lstm/while/add", "lstm/while/call/MatMul", "lstm/while/after", "Square"):
        stream.node_stats.add(node_name=f"{name}:Op", op_end_rel_nanos=10_000)
    host = stats.dev_stats.add(device="/job:localhost/replica:0/task:0/device:GPU:0")
    for name in ("lstm/while", "branch", "Square", "lstm/while/after"):
        host.node_stats.add(node_name=name, op_end_rel_nanos=5000)
    traces = op_traces([stats], [graph])
    found = {name: (trace.n_kernels, trace.kernel_us) for name, trace in traces.items()}
    assert found == {
        "lstm/while": (2, [20.0]),
        "branch": (1, [10.0]),
        "Square": (0, []),
        "lstm/while/after": (1, [10.0]),
    }


def test_a_gpu_trace_without_kernels_is_refused_with_the_remedy():
    traces = {"a": OpTrace("/device:GPU:0", [5.0]), "b": OpTrace("/device:CPU:0", [5.0])}
    with pytest.raises(LoadError, match=r"where 1 op ran.*CUPTI.*LD_LIBRARY_PATH.*SYS_ADMIN"):
        check_kernels(traces)
    traces["b"] = OpTrace("/device:GPU:0", [5.0], [3.0], 1)
    check_kernels(traces)
    check_kernels({"a": OpTrace("/device:CPU:0", [5.0])})


def test_the_slowest_tenth_is_ignored():
    assert trimmed([1.0] * 9 + [100.0]) == (1.0, 0.0)
    mean, deviation = trimmed([1.0, 3.0])
    assert (mean, deviation) == (2.0, 0.5)


def test_an_outlier_does_not_change_the_fitted_line():
    sizes = np.array([1e3, 1e4, 1e5, 1e6, 1e7, 1e8])
    times_us = 10 + 1e-4 * sizes
    times_us[2] *= 5
    fitted = fit_line(sizes, times_us)
    assert fitted[0] == pytest.approx(10, rel=0.2)
    assert fitted[1] == pytest.approx(1e-4, rel=0.01)
