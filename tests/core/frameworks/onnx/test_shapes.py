"""Shapes that the ONNX library does not infer by itself."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import onnx_models
from enplace.frameworks.onnx.graph import read_graph
from enplace.frameworks.onnx.work import work_of
from onnx_models import F, model, node, numbers, save

FUSED = {"domain": "com.microsoft"}
U8 = TensorProto.UINT8


@pytest.fixture
def read(tmp_path):
    """Return a function that reads a model as a graph."""
    return lambda made, batch=0: read_graph(str(save(made, tmp_path / "m.onnx")), batch)


@pytest.mark.parametrize("opset", [9, 11, 13, 17])
def test_a_reshape_whose_shape_is_computed_is_sized_in_every_opset(read, opset):
    graph = read(onnx_models.flattened(opset), 5)
    assert graph.tensor("flat").shape == (5, 256)
    assert work_of(graph.nodes[-1], graph).flops == 2 * 5 * 256 * 7


def test_a_picture_that_is_made_as_large_as_another_is_sized(read):
    nodes = [
        node("Shape", "small", "lengths", "Shape"),
        node("Slice", "lengths two four", "edges", "Slice"),
        node("Cast", "edges", "float_edges", "Cast", to=F),
        node("Mul", "float_edges factor", "longer", "Mul"),
        node("Floor", "longer", "floored", "Floor"),
        node("Cast", "floored", "new_edges", "Cast_1", to=TensorProto.INT64),
        node("Slice", "lengths none two", "others", "Slice_1"),
        node("Concat", "others new_edges", "sizes", "Concat", axis=0),
        helper.make_node("Resize", ["small", "empty", "empty", "sizes"], ["y"], "Resize"),
    ]
    empty = numpy_helper.from_array(np.array([], np.float32), "empty")
    factor = numpy_helper.from_array(np.array([2.5], np.float32), "factor")
    values = [numbers("none", 0), numbers("two", 2), numbers("four", 4), factor, empty]
    graph = read(model(nodes, [("small", [1, 8, 6, 7])], [("y", None)], values, opset=11))
    assert graph.tensor("y").shape == (1, 8, 15, 17)


def test_what_onnx_runtimes_model_builder_writes_is_sized(read):
    graph = read(onnx_models.language_model(), 2)
    assert all(graph.tensor(name).is_sized for each in graph.nodes for name in each.output if name)
    at = "/model/layers.1"
    assert graph.tensor(f"{at}/packed").shape == (2, 128, 512)
    assert graph.tensor(f"{at}/a").shape == (2, 128, 256)
    assert graph.tensor("h2").shape == (2, 128, 256)


def test_a_loops_state_and_what_its_turns_collect_are_sized(read):
    body = helper.make_graph(
        [node("Identity", "more", "again"), node("Relu", "s", "t"), node("Neg", "t", "each")],
        "body",
        [helper.make_tensor_value_info(n, t, []) for n, t in (("i", 7), ("more", 9))]
        + [helper.make_tensor_value_info("s", F, [4])],
        [helper.make_tensor_value_info("again", 9, [])]
        + [helper.make_tensor_value_info(name, F, [4]) for name in ("t", "each")],
    )
    loop = node("Loop", "turns go x", "last all", body=body)
    inputs = [("go", [], TensorProto.BOOL), ("x", [4])]
    turns = numpy_helper.from_array(np.array(6), "turns")
    graph = read(model([loop], inputs, [("all", None)], [turns]))
    assert (graph.tensor("last").shape, graph.tensor("all").shape) == ((4,), (6, 4))
    # The largest number stands for a loop that ends by its condition.
    turns = numpy_helper.from_array(np.array(np.iinfo(np.int64).max), "turns")
    graph = read(model([loop], inputs, [("all", None)], [turns]))
    assert not graph.tensor("all").is_sized
    assert work_of(graph.nodes[0], graph).kernels == 2


SCALES = [(name, []) for name in ("s", "t")]


@pytest.mark.parametrize(
    ("kind", "inputs", "attributes", "made"),
    [
        ("FusedConv", [("x", [1, 3, 9, 9]), ("w", [8, 3, 3, 3])], {"activation": "Relu"},
         ("FLOAT", (1, 8, 7, 7))),
        ("FusedMatMul", [("x", [2, 5, 4]), ("w", [2, 7, 4])], {"transB": 1, "alpha": 0.5},
         ("FLOAT", (2, 5, 7))),
        ("QGemm", [("x", [5, 4], U8), ("s", []), ("z", [], U8), ("w", [7, 4], U8)], {"transB": 1},
         ("UINT8", (5, 7))),
        ("QLinearConcat", [*SCALES, ("x", [1, 3, 2, 2], U8), *SCALES, ("y", [1, 5, 2, 2], U8)],
         {"axis": 1}, ("UINT8", (1, 8, 2, 2))),
        ("QLinearGlobalAveragePool", [("x", [1, 3, 9, 9], U8), *SCALES], {},
         ("UINT8", (1, 3, 1, 1))),
        ("QuantizeLinear", [("x", [2, 3]), ("s", []), ("z", [], TensorProto.UINT16)], {},
         ("UINT16", (2, 3))),
        ("DequantizeLinear", [("x", [2, 3], U8), ("s", [])], {}, ("FLOAT", (2, 3))),
        ("EmbedLayerNormalization",
         [("ids", [2, 6], TensorProto.INT32), ("segments", [2, 6]), ("words", [99, 16])], {},
         ("FLOAT", (2, 6, 16))),
        ("MultiHeadAttention", [("qkv", [2, 6, 4, 3, 8])], {"num_heads": 4}, ("FLOAT", (2, 6, 32))),
        ("FastGelu", [("x", [2, 3])], {}, ("FLOAT", (2, 3))),
    ],
)  # fmt: skip
def test_ops_of_onnx_runtime_are_sized(read, kind, inputs, attributes, made):
    op = helper.make_node(kind, [each[0] for each in inputs], ["out"], **attributes, **FUSED)
    given = {each[0]: each for each in inputs}.values()
    after = node("Identity", "out", "end")
    found = read(model([op, after], given, [("end", None)])).tensor("end")
    assert (found.dtype, found.shape) == made


def array(*values, kind=np.int64):
    return np.array(values, kind)


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        (node("Gather", "a b", "y"), [array(5, 6, 7), np.array(-1)]),
        (node("Slice", "a b c d e", "y"), [array(5, 6, 7, 8), *map(array, (3, 0, 0, -2))]),
        (node("Div", "a b", "y"), [array(7), array(2)]),
        (node("Cast", "a", "y", to=TensorProto.INT64), [array(2.7, kind=np.float32)]),
        (node("ReduceProd", "a", "y", keepdims=0), [array(3, 4)]),
        (node("ReduceProd", "a", "y"), [array(3, 4)]),
        (node("Where", "a b c", "y"), [array(True, False, kind=bool), array(1, 2), array(8, 9)]),
        (node("ConstantOfShape", "a", "y", value=numbers("v", 1)), [array(3)]),
        (node("Reshape", "a b", "y"), [array(3, 4), array(-1)]),
        (node("Squeeze", "a b", "y"), [array(3), array(0)]),
        (node("Unsqueeze", "a b", "y"), [np.array(3), array(0)]),
    ],
    ids=lambda each: getattr(each, "op_type", None),
)
def test_values_are_computed_as_the_library_does(read, op, inputs):
    fed = dict(zip(op.input, inputs, strict=True))
    (made,) = ReferenceEvaluator(op, opsets={"": 17}).run(None, fed)
    weights = [numpy_helper.from_array(v, n) for n, v in fed.items()]
    use = node("ConstantOfShape", "shape", "filled")
    nodes = [op, node("Reshape", "y flat", "z"), node("Cast", "z", "shape", to=TensorProto.INT64)]
    weights.append(numbers("flat", -1))
    graph = read(model([*nodes, use], [("x", [1])], [("filled", None)], weights, opset=17))
    assert graph.tensor("filled").shape == tuple(np.ravel(made).astype(np.int64).tolist())


@pytest.mark.parametrize(
    "op",
    [
        node("Gather", "a b", "y"),
        node("ConstantOfShape", "b", "y"),
        node("Slice", "a", "y"),
        node("Cast", "a", "y", to=99),
    ],
    ids=lambda op: op.op_type,
)
def test_values_that_make_no_sense_are_left_out(read, op):
    weights = [numbers("a", 3, 4), numbers("b", 1 << 60)]
    nodes = [op, node("Reshape", "x y", "z")]
    graph = read(model(nodes, [("x", [12])], [("z", None)], weights, opset=9))
    assert graph.tensor("z").lengths == (12,)  # what a reshape without a target keeps
