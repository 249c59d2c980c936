"""Models of many exporters as profiles."""

from collections import Counter

import numpy as np
import pytest
from onnx import TensorProto, helper

import enplace as ep
import onnx_models
from enplace.errors import EnplaceError
from enplace.frameworks.onnx.graph import Graph, read_graph
from enplace.frameworks.onnx.op_kinds import kind_of
from enplace.frameworks.onnx.profile import estimated_profile
from enplace.frameworks.roofline import GPUS
from enplace.names.groups import group_ops
from enplace.placers import place
from enplace.placers.data_parallel import mirrored
from enplace.readers.clusters import presets
from enplace.values.batch import with_batch
from enplace.values.problem import Problem
from enplace.values.splits import carries_samples, legal_dimensions
from onnx_models import ALL, SHIPPED, model, node, save, weight


@pytest.fixture
def profile(tmp_path):
    """Return a function that reads a model."""

    def read(made, batch_size=0, sizes=None, gpu="h200"):
        path = save(made, tmp_path / "m.onnx")
        return estimated_profile("m", read_graph(str(path), batch_size, sizes), GPUS[gpu])

    return read


@pytest.mark.parametrize("name", ALL)
def test_models_of_every_exporter_can_be_placed(profile, name):
    found = profile(ALL[name]())
    assert found.measured.estimated == "H200"
    assert place(Problem(found, presets()["h200-2-nvlink"]), "heft").schedule.fits


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.onnx")), ids=lambda path: path.stem)
def test_models_that_the_onnx_library_ships_can_be_read(path):
    found = estimated_profile("m", read_graph(str(path)), GPUS["a100"])
    assert np.nansum(found.time_us[:, 0]) > 50


def test_every_model_of_the_onnx_librarys_tests_can_be_read():
    paths = sorted(SHIPPED.parent.glob("pytorch-*/*/*.onnx")) + sorted(
        SHIPPED.parent.glob("simple/*/*.onnx")
    )
    assert len(paths) > 100
    for path in paths:
        estimated_profile("m", read_graph(str(path)), GPUS["h200"])


# Names


def test_pytorch_names_stay_and_their_paths_are_the_scopes(profile):
    found = profile(onnx_models.resnet())
    op = found.index["/layer1/layer1.0/conv1/Conv"]
    assert (found.op_types[op], found.scopes[op]) == ("Conv", "layer1/layer1_0/conv1")


def test_layers_of_a_transformer_become_groups(profile):
    found = profile(onnx_models.bert(layers=3, hidden=32, heads=2))
    assert {"/encoder/layer.2/attention/self/MatMul", "input_ids"} <= set(found.op_names)
    names = group_ops(found).names
    assert any("layer_2" in name or "layer 2" in name for name in names)


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("/h.{}/attn/", "h {}"),
        ("/enc/blk.{}/", "enc / blk {}"),
        ("encoder.layer.{}.", "encoder / layer {}"),
        ("layers.{}/", "layers {}"),
        ("/model/layers.{}/", "model / layers {}"),
    ],
)
def test_blocks_of_a_small_model_are_groups_however_its_nodes_are_named(profile, name, title):
    nodes = [
        node("Relu", f"t{8 * block + at}", f"t{8 * block + at + 1}", f"{name.format(block)}op_{at}")
        for block in range(4)
        for at in range(8)
    ]
    found = profile(model(nodes, [("t0", [8])], [("t32", [8])]))
    assert set(group_ops(found).names) == {"input", *map(title.format, range(4))}


def test_scopes_that_pytorchs_newer_exporter_notes_are_used(profile):
    found = profile(onnx_models.dynamo())
    assert found.scopes == ("input", "layer1/layer1_0/conv1", "layer1/layer1_0/conv1")


def test_ops_of_a_function_are_named_after_the_call(profile):
    found = profile(onnx_models.functions())
    assert found.op_names[1:] == (
        "layers_0/linear", "layers_0/act/leaky", "layers_1/linear", "layers_1/act/leaky",
    )  # fmt: skip
    assert found.scopes[2] == "layers_0/act"


def test_a_functions_ops_get_the_attributes_of_the_call(tmp_path):
    graph = read_graph(str(save(onnx_models.functions(), tmp_path / "m.onnx")))
    assert [each.attribute[0].f for each in graph.nodes if each.attribute] == [0.5, 0.25]


def test_ops_without_a_name_are_called_after_their_output_or_type(profile):
    found = profile(onnx_models.bare())
    assert found.op_names == ("0", "two", "Mul", "Relu", "softened")


def test_repeated_names_get_numbers(profile):
    chain = [node("Relu", f"x{i}", f"x{i + 1}", "same") for i in range(3)]
    found = profile(model(chain, [("x0", [2])], [("x3", [2])]))
    assert len(set(found.op_names)) == 4
    assert found.op_names[1] == "same"


# Sizes


def test_the_batch_and_other_sizes_that_a_file_leaves_open_can_be_chosen(profile):
    found = profile(onnx_models.bert(layers=1), 4, {"sequence_length": 64})
    assert found.measured.batch_shapes == ((4, 64),)
    assert found.measured.config["sizes"] == {"batch_size": 4, "sequence_length": 64}
    op = found.index["/encoder/layer.0/attention/self/MatMul"]
    tensor = found.tensor_ptr[op]
    assert found.tensor_bytes[tensor] == 4 * (4 * 12 * 64 * 64)


def test_a_size_called_like_a_batch_is_one_wherever_it_is(profile):
    assert profile(onnx_models.keras2onnx(), 6).measured.batch_shapes == ((10, 6, 16),)


def test_the_first_size_is_no_batch_beside_one_that_is_called_so(profile):
    relu = onnx_models.node("Relu", "x", "y")
    made = onnx_models.model([relu], [("x", ["S", "N", 8])], [("y", None)])
    assert profile(made, 6).measured.batch_shapes == ((128, 6, 8),)


def test_the_length_of_a_cache_is_that_of_a_sequence_not_of_a_picture(profile):
    sizes = profile(onnx_models.language_model()).measured.config["sizes"]
    assert sizes == {"batch_size": 1, "sequence_length": 128, "past_sequence_length": 128}


def test_a_size_that_is_named_as_a_sum_follows_from_its_terms(profile):
    made = onnx_models.model(
        [onnx_models.node("Relu", "mask", "y")],
        [("past", ["n", "past_length"]), ("mask", ["n", "past_length + 1"])],
        [("y", None)],
    )
    found = profile(made, 2, {"past_length": 7})
    assert found.measured.batch_shapes == ((2, 7), (2, 8))
    assert found.measured.config["sizes"] == {"n": 2, "past_length": 7}


def test_a_negative_size_is_an_open_one(profile):
    relu = onnx_models.node("Relu", "x", "y")
    made = onnx_models.model([relu], [("x", [-1, 8])], [("y", [-1, 8])])
    assert profile(made, 6).measured.batch_shapes == ((6, 8),)


def test_the_same_profile_with_a_larger_batch_has_the_bytes_of_that_batch(profile):
    made = onnx_models.bert(layers=2, hidden=32, heads=2)
    small, large = profile(made, 2), profile(made, 8)
    assert np.array_equal(with_batch(small, 4).tensor_bytes, large.tensor_bytes)
    assert with_batch(small, 4).measured.estimated


@pytest.mark.parametrize(
    ("made", "batch_size", "sizes", "why"),
    [
        (onnx_models.quantised, 2, {}, "its inputs have a fixed batch"),
        (onnx_models.bert, 2, {"sequence": 3}, "no input has a size called .*sequence_length"),
        (onnx_models.bare, 0, {"n": 3}, "it leaves none open"),
    ],
)
def test_a_size_that_is_not_open_is_refused(profile, made, batch_size, sizes, why):
    with pytest.raises(EnplaceError, match=why):
        profile(made(), batch_size, sizes)


# Weights and devices


def test_weights_belong_to_the_op_that_uses_them(profile):
    found = profile(onnx_models.resnet())
    fc = found.index["/fc/Gemm"]
    assert found.persistent_bytes[fc] == 4 * (1000 * 2048 + 1000)
    assert found.persistent_bytes.sum() == pytest.approx(102e6, rel=0.01)  # 25.5 million


def test_ops_that_share_a_large_weight_share_a_device_and_hold_it_once(profile):
    made = model(
        [node("Gather", "w ids", "x", "in"), node("MatMul", "x t", "y", "between"),
         node("Gemm", "y w", "z", "out", transB=1)],
        [("ids", [3], TensorProto.INT64)],
        [("z", [3, 5000])],
        [weight("w", 5000, 64), weight("t", 64, 64)],
    )  # fmt: skip
    found = profile(made)
    ends = [found.index[name] for name in ("in", "out")]
    assert len({found.colocation[op] for op in ends}) == 1
    assert found.colocation[ends[0]]
    assert not found.colocation[found.index["between"]]
    assert found.persistent_bytes.sum() == 4 * (5000 * 64 + 64 * 64)


def test_weights_of_a_loop_are_its_own(profile):
    found = profile(onnx_models.control_flow())
    assert found.persistent_bytes[found.index["loop"]] >= 4 * 64 * 64


def test_what_depends_only_on_shapes_and_weights_takes_no_time(profile):
    found = profile(onnx_models.bert(layers=1))
    at = "/encoder/layer.0/attention/self"
    for name in ("Shape", "Slice", "Concat", "query/Reshape"):
        assert not found.time_us[found.index[f"{at}/{name}"]].any()
    assert (found.time_us[found.index[f"{at}/MatMul"]] > 3).all()


def test_what_is_fed_and_what_has_no_gpu_kernel_run_on_the_host(profile):
    found = profile(onnx_models.skl2onnx())
    assert np.isnan(found.time_us[:, 0]).all()
    assert np.isfinite(found.time_us[:, 1]).all()


def test_other_files_are_not_read(profile):
    weights = onnx_models.resnet().graph.initializer
    assert all(each.external_data[0].value == "../../../../etc/passwd" for each in weights)
    assert profile(onnx_models.resnet()).n_ops == 123


# Hostile files


def calling_itself():
    made = onnx_models.functions()
    made.functions[1].node[0].domain, made.functions[1].node[0].op_type = "local", "Block"
    return made


def doubling():
    """Functions that each call the next one twice: 2^40 nodes."""
    functions = [
        helper.make_function(
            "local", f"f{i}", ["x"], ["y"],
            [helper.make_node("Relu" if i == 40 else f"f{i + 1}", [a], [b],
                              domain="" if i == 40 else "local")
             for a, b in (("x", "t"), ("t", "y"))],
            [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)],
        )
        for i in range(41)
    ]  # fmt: skip
    call = helper.make_node("f0", ["x"], ["y"], domain="local")
    return model([call], [("x", [2])], [("y", [2])], opset=18, functions=functions)


def growing(names, **attributes):
    """A function with a large node, called a thousand times."""
    large = helper.make_node("Sum", ["x"] * names, ["y"], "layer", **attributes)
    function = helper.make_function(
        "local", "f", ["x"], ["y"], [large], [helper.make_opsetid("", 18)]
    )
    calls = [
        helper.make_node("f", ["x"], [f"y{i}"], "n" * 100, domain="local") for i in range(1000)
    ]
    return model(calls, [("x", [2])], [("y9", [2])], opset=18, functions=[function])


def with_shape(*shape):
    return model([node("Relu", "x", "y")], [("x", shape)], [("y", None)])


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (b"", "holds no graph"),
        (b"\x08\x07\xff\xff", "damaged or not an ONNX model"),
        (onnx_models.resnet().SerializeToString()[:-9], "damaged or not an ONNX model"),
        (calling_itself(), "calls itself"),
        (doubling(), "its functions make over 200,000 nodes"),
        (growing(1, note="a" * 200_000), "its functions make over 128 MiB"),
        (growing(10_000), "its functions make over 128 MiB"),
        (with_shape(1 << 40, 1 << 40), "more bytes than any machine holds"),
        (with_shape(*[2] * 100), "has over 64 axes"),
        (model([node("Relu", "nowhere", "y")], [], [("y", [1])]), "which nothing makes"),
        (model([node("Add", "x z", "y"), node("Relu", "y", "z")], [("x", [1])], [("y", [1])]),
         "the graph has a cycle"),
        (model([node("Relu", "x", "y", "\x1b[2J")], [("x", [1])], [("y", [1])]),
         "unprintable characters"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_model_is_refused(profile, made, why):
    with pytest.raises(EnplaceError, match=why) as caught:
        profile(made)
    assert str(caught.value).isprintable()


def test_a_function_reads_an_output_that_its_call_leaves_out(tmp_path):
    body = [helper.make_node("Exp", ["a"], ["m"]), helper.make_node("Add", ["a", "m"], ["b"])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "F", ["a"], ["b", "m"], body, opsets[:1])
    call = helper.make_node("F", ["x"], ["y", ""], domain="own", name="f")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy")
    graph = helper.make_graph([call], "left out", [x], [y])
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=[function])
    found = ep.to_networkx(ep.read_onnx(save(made, tmp_path / "m.onnx")))
    types = dict(found.nodes(data="type"))
    assert ("Exp", "Add") in {(types[a], types[b]) for a, b in found.edges}


def test_calls_of_a_function_with_one_name_stay_apart(tmp_path):
    """Nor do their tensors meet one of the main graph's."""
    body = [helper.make_node("MatMul", ["a", "w"], ["t"]), helper.make_node("Relu", ["t"], ["y"])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "Dense", ["a", "w"], ["y"], body, opsets[:1])
    calls = [("x", "v", "p"), ("z", "w", "q")]
    nodes = [helper.make_node("Exp", ["x"], ["b/t"], name="exp")]
    nodes += [helper.make_node("Dense", [a, w], [y], domain="own", name="b") for a, w, y in calls]
    nodes += [helper.make_node("Tanh", ["b/t"], ["s"], name="tanh")]
    nodes += [helper.make_node("Sum", ["p", "q", "s"], ["o"], name="sum")]
    values = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 4]) for n in "xzvwo"}
    inputs = [values[name] for name in "xzvw"]
    graph = helper.make_graph(nodes, "calls", inputs, [values["o"]])
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=[function])
    found = ep.to_networkx(ep.read_onnx(save(made, tmp_path / "m.onnx")))
    types = dict(found.nodes(data="type"))
    pairs = Counter((types[source], types[target]) for source, target in found.edges)
    assert pairs["MatMul", "Relu"] == 2
    assert pairs["Relu", "Sum"] == 2
    assert pairs["Exp", "Tanh"] == 1


# Kinds and splits


def test_convolutions_and_what_follows_can_be_split_by_samples_and_channels(profile):
    found = profile(onnx_models.resnet(), batch_size=8)
    assert {"input", "conv", "elementwise", "pool"} <= set(found.kinds)
    assert set(found.op_passes) == {"forward"}
    convs = [op for op, kind in enumerate(found.kinds) if kind == "conv"]
    assert all(legal_dimensions(found, op, 2) == ("batch", "channel") for op in convs)
    assert all(carries_samples(found)[op] for op in convs)
    single = profile(onnx_models.resnet(), batch_size=1)
    assert all("batch" not in legal_dimensions(single, op, 2) for op in convs)


def test_splits_and_data_parallelism_shorten_a_large_batch(profile):
    problem = Problem(profile(onnx_models.resnet(), batch_size=64), presets()["h200-2-nvlink"])
    split = place(problem, "os-dpos").schedule
    assert split.plan.splits
    both = mirrored(problem)
    assert both.gradient_bytes == 0
    assert both.step_time_us < place(problem, "single").schedule.makespan_us


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        (node("MatMul", "x w", "y"), "matmul"),
        (node("MatMul", "x x", "y"), "batch matmul"),
        (node("Gather", "w x", "y"), "gather"),
        (node("Gather", "x w", "y"), "other"),
        (node("Transpose", "x", "y", perm=[0, 2, 1]), "reshape"),
        (node("Transpose", "x", "y", perm=[1, 0, 2]), "other"),
        (node("Unheard", "x", "y"), "other"),
    ],
)
def test_the_kind_of_an_op_follows_from_its_type_and_inputs(op, kind):
    assert kind_of(op, Graph("g", [op], {}, {}, {}), {"w"}) == kind


def test_the_arithmetic_of_each_op_is_kept(profile):
    found = profile(onnx_models.resnet(), batch_size=8)
    conv = found.index["/conv1/Conv"]
    assert found.flops[conv] == 2 * 8 * 64 * 112 * 112 * 3 * 7 * 7
    assert found.flops[found.index["input"]] == 0
    assert with_batch(found, 2).flops[conv] == 2 * found.flops[conv]


def test_ops_that_never_copy_lie_in_the_memory_of_their_first_input(profile):
    nodes = [
        node("Relu", "x", "r"),
        node("Flatten", "r", "f"),
        node("Identity", "f", "i"),
        node("Relu", "i", "y"),
    ]
    found = profile(model(nodes, [("x", [8, 4, 4])], [("y", [8, 16])]))
    shares = [[found.op_names[op] for op in (a, b)] for a, _, b, _ in found.shares.tolist()]
    assert shares == [["f", "r"], ["i", "f"]]
