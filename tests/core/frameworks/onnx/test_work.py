"""Arithmetic and times of ops, against figures worked out by hand."""

import pytest
from onnx import TensorProto, helper

from enplace.frameworks.onnx.graph import read_graph
from enplace.frameworks.onnx.work import work_of
from enplace.frameworks.roofline import (
    COMPUTE_SHARE,
    GPUS,
    LAUNCH_US,
    MEMORY_SHARE,
    Work,
    cpu_us,
    gpu_us,
)
from enplace.readers import read_profile
from enplace.readers.clusters import presets
from enplace.readers.samples import samples
from onnx_models import SHIPPED, model, node, numbers, save, weight

F16 = TensorProto.FLOAT16


@pytest.fixture
def work(tmp_path):
    """Return a function that counts the work of a model's last node."""

    def count(op, inputs, output, weights=(), opset=17, **more):
        made = model([op], inputs, [output], weights, opset, **more)
        graph = read_graph(str(save(made, tmp_path / "m.onnx")))
        return work_of(graph.nodes[-1], graph)

    return count


def test_a_convolution_multiplies_each_output_with_a_filter(work):
    found = work(
        node("Conv", "x w", "y", kernel_shape=[3, 3], pads=[1] * 4),
        [("x", [2, 8, 10, 10])],
        ("y", [2, 16, 10, 10]),
        [weight("w", 16, 8, 3, 3)],
    )
    assert found.flops == found.matrix_flops == 2 * (2 * 16 * 100) * (8 * 9)
    assert found.n_bytes == 4 * (2 * 8 * 100 + 2 * 16 * 100 + 16 * 8 * 9)


def test_a_grouped_convolution_does_its_share_and_a_depthwise_one_needs_no_tensor_cores(work):
    halves = work(
        node("Conv", "x w", "y", group=2, kernel_shape=[3, 3], pads=[1] * 4),
        [("x", [1, 8, 4, 4])], ("y", None), [weight("w", 8, 4, 3, 3)],
    )  # fmt: skip
    assert halves.matrix_flops == 2 * (8 * 16) * (4 * 9)
    each = work(
        node("Conv", "x w", "y", group=8, kernel_shape=[3, 3], pads=[1] * 4),
        [("x", [1, 8, 4, 4])], ("y", None), [weight("w", 8, 1, 3, 3)],
    )  # fmt: skip
    assert (each.flops, each.matrix_flops) == (2 * (8 * 16) * 9, 0)


def test_a_transposed_convolution_multiplies_each_input(work):
    found = work(
        node("ConvTranspose", "x w", "y", strides=[2, 2], kernel_shape=[2, 2]),
        [("x", [1, 16, 7, 7])], ("y", [1, 4, 14, 14]), [weight("w", 16, 4, 2, 2)],
    )  # fmt: skip
    assert found.flops == 2 * (16 * 49) * (4 * 4)


@pytest.mark.parametrize(("trans", "shape"), [(0, [5, 7]), (1, [7, 5])])
def test_a_matrix_product_counts_rows_columns_and_inner_length(work, trans, shape):
    found = work(
        node("Gemm", "a b", "y", transA=trans), [("a", shape), ("b", [7, 3])], ("y", [5, 3])
    )
    assert found.flops == 2 * 5 * 3 * 7


def test_a_batched_product_counts_every_matrix(work):
    inputs = [("a", [2, 4, 6, 8], F16), ("b", [2, 4, 8, 10], F16)]
    found = work(node("MatMul", "a b", "y"), inputs, ("y", [2, 4, 6, 10], F16))
    assert (found.flops, found.precision) == (2 * (2 * 4 * 6 * 10) * 8, "float16")


@pytest.mark.parametrize(
    ("equation", "shapes", "flops"),
    [
        ("bij,bjk->bik", ([2, 3, 4], [2, 4, 5]), 2 * 2 * 3 * 4 * 5),
        ("...ij, ...jk -> ...ik", ([7, 3, 4], [7, 4, 5]), 2 * 7 * 3 * 4 * 5),
        ("ii->i", ([6, 6],), 6),
    ],
)
def test_an_einsum_counts_each_letter_once(work, equation, shapes, flops):
    names = ["a", "b"][: len(shapes)]
    op = node("Einsum", " ".join(names), "y", equation=equation)
    assert work(op, list(zip(names, shapes, strict=True)), ("y", None)).flops == flops


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_a_recurrent_op_uses_its_weights_at_each_step(work, kind, gates):
    found = work(
        node(kind, "x w r", "y", hidden_size=8),
        [("x", [10, 2, 6])],
        ("y", [10, 1, 2, 8]),
        [weight("w", 1, gates * 8, 6), weight("r", 1, gates * 8, 8)],
    )
    assert found.flops == 2 * 10 * 2 * gates * 8 * (6 + 8)
    assert found.kernels == 10


def test_attention_counts_scores_and_their_product_with_the_values(work):
    inputs = [("q", [2, 4, 16, 8]), ("k", [2, 4, 32, 8]), ("v", [2, 4, 32, 8])]
    found = work(node("Attention", "q k v", "y"), inputs, ("y", [2, 4, 16, 8]), opset=23)
    assert found.flops == 2 * (2 * 2 * 4 * 16 * 32 * 8)


def test_attention_whose_queries_hold_keys_and_values_counts_them_and_the_cache(work):
    attention = helper.make_node(
        "GroupQueryAttention", ["q", "", "", "past"], ["y"], num_heads=4, kv_num_heads=2,
        domain="com.microsoft",
    )  # fmt: skip
    inputs = [("q", [2, 16, 512]), ("past", [2, 2, 32, 64])]
    assert work(attention, inputs, ("y", None)).flops == 2 * (2 * 2 * 16 * (16 + 32) * 256)


def test_a_pooling_op_looks_at_its_window(work):
    op = node("MaxPool", "x", "y", kernel_shape=[3, 3], strides=[2, 2])
    assert work(op, [("x", [1, 4, 9, 9])], ("y", [1, 4, 4, 4])).flops == 4 * 16 * 9


def test_a_look_up_moves_only_the_rows_that_it_puts_out(work):
    inputs = [("ids", [2, 5], TensorProto.INT64)]
    found = work(node("Gather", "w ids", "y"), inputs, ("y", None), [weight("w", 30000, 64)])
    assert found.n_bytes == 2 * 4 * (2 * 5 * 64)


def test_values_of_four_bits_take_half_a_byte(work):
    found = work(
        node("DequantizeLinear", "w s", "y", axis=0), [("s", [6])], ("y", None),
        [weight("w", 6, 3, kind=TensorProto.INT4)], opset=21, ir_version=10,
    )  # fmt: skip
    assert found.n_bytes == 9 + 4 * 6 + 4 * 18


def test_a_loop_counts_all_its_turns_and_a_branch_the_longer_one(tmp_path):
    from onnx_models import control_flow

    graph = read_graph(str(save(control_flow(), tmp_path / "m.onnx")))
    branch, loop, scan = (work_of(each, graph) for each in graph.nodes)
    product = 2 * 4 * 64 * 64
    assert (branch.matrix_flops, loop.matrix_flops) == (product, 5 * product)
    assert (loop.kernels, scan.kernels) == (5, 7)


def test_a_loop_of_an_unknown_number_of_turns_counts_once(tmp_path):
    body = helper.make_graph(
        [node("Identity", "more", "again"), node("Relu", "s", "t")], "body",
        [helper.make_tensor_value_info(n, t, []) for n, t in (("i", 7), ("more", 9), ("s", 1))],
        [helper.make_tensor_value_info(n, t, []) for n, t in (("again", 9), ("t", 1))],
    )  # fmt: skip
    made = model(
        [node("Loop", "n go x", "y", body=body)],
        [("n", [], TensorProto.INT64), ("go", [], TensorProto.BOOL), ("x", [])],
        [("y", [])],
    )
    graph = read_graph(str(save(made, tmp_path / "m.onnx")))
    assert work_of(graph.nodes[0], graph).kernels == 1


@pytest.mark.parametrize(
    ("name", "products"),
    [("resnet50", 4.089e9), ("vgg19", 19.63e9), ("densenet121", 2.834e9), ("squeezenet", 0.349e9)],
)
def test_published_models_have_the_products_that_their_papers_count(name, products):
    graph = read_graph(str(SHIPPED / f"light_{name}.onnx"))
    found = sum(work_of(each, graph).matrix_flops for each in graph.nodes)
    assert found / 2 == pytest.approx(products, rel=1e-3)


# Times


def test_a_large_product_takes_its_arithmetic_and_a_copy_its_bytes():
    gpu = GPUS["h200"]
    product = Work(2e12, 2e12, 1e6, precision="float16")
    assert gpu_us(product, gpu) == pytest.approx(2e12 / (989e6 * COMPUTE_SHARE) + LAUNCH_US)
    copied = Work(1e6, 0, 48e6)
    assert gpu_us(copied, gpu) == pytest.approx(48e6 / (4.8e6 * MEMORY_SHARE) + LAUNCH_US)
    assert cpu_us(copied) > 50 * gpu_us(copied, gpu)


def test_on_a_bundled_cluster_an_op_takes_what_the_roofline_of_its_gpu_says():
    work = Work(1e9, 0, 1e9)
    devices = [device for cluster in presets().values() for device in cluster.devices]
    assert {device.model for device in devices} == {"", "h200", "h100", "a100", "v100"}
    for name, gpu in GPUS.items():
        assert {device.speed for device in devices if device.model == name} <= {gpu.speed}
        own_us = gpu_us(work, gpu) / gpu.speed
        assert own_us == pytest.approx(1e9 / gpu.bytes_per_us / MEMORY_SHARE + LAUNCH_US)


def test_the_convolutions_of_a_measured_model_take_about_what_the_roofline_says():
    """Those of VGG-19 on an H200, in float32 without TF32."""
    (path,) = (each.path for each in samples() if each.path.stem == "vgg-19")
    profile = read_profile(path)
    measured_us = sum(
        profile.time_us[op, 0] for op, kind in enumerate(profile.op_types) if kind == "Conv2D"
    )
    sides = (224, 224, 112, 112, *[56] * 4, *[28] * 4, *[14] * 4)
    channels = (3, 64, 64, 128, 128, *[256] * 4, *[512] * 8)
    estimated_us = 0.0
    for side, n_in, n_out in zip(sides, channels, channels[1:], strict=False):
        pixels = 64 * side**2
        work = Work(2 * 9 * pixels * n_in * n_out, 0, 4 * pixels * (n_in + n_out))
        estimated_us += gpu_us(work, GPUS["h200"])
    assert estimated_us == pytest.approx(measured_us, rel=0.2)


def test_a_constant_number_of_turns_may_come_from_a_node(tmp_path):
    from onnx_models import control_flow

    made = control_flow()
    value = numbers("", 3)
    del value.dims[:]
    made.graph.initializer.pop()
    made.graph.node.insert(0, helper.make_node("Constant", [], ["turns"], value=value))
    graph = read_graph(str(save(made, tmp_path / "m.onnx")))
    assert work_of(graph.nodes[2], graph).kernels == 3
