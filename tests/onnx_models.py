"""ONNX models as their exporters write them: names, open sizes, types and oddities."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

F = TensorProto.FLOAT

SHIPPED = Path(onnx.__file__).parent / "backend/test/data/light"
"""Well-known networks that come with the ONNX library; constants stand for their weights."""


def model(nodes, inputs, outputs, weights=(), opset=17, producer="", **more):
    """Make a model; inputs and outputs are (name, shape) or (name, shape, type)."""
    graph = helper.make_graph(
        list(nodes),
        "main_graph",
        list(map(_info, inputs)),
        list(map(_info, outputs)),
        list(weights),
    )
    opsets = [helper.make_opsetid("", opset), *more.pop("opsets", ())]
    return helper.make_model(graph, opset_imports=opsets, producer_name=producer, **more)


def _info(described):
    name, shape, *kind = described
    return helper.make_tensor_value_info(name, *(kind or [F]), shape)


def weight(name, *shape, kind=F):
    """Make a weight; its values lie in another file, which is missing."""
    tensor = TensorProto(name=name, data_type=kind, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../../../etc/passwd")
    return tensor


def numbers(name, *values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


def node(kind, inputs, outputs, name="", **attributes):
    return helper.make_node(kind, inputs.split(), outputs.split(), name, **attributes)


def resnet(blocks=(3, 4, 6, 3), width=64):
    """ResNet-50 as PyTorch exports it, batch norms folded, with an open batch."""
    nodes, weights = [], []

    def conv(x, name, c_in, c_out, kernel, stride=1, act=True):
        key = name.strip("/").split("/")[-1] if name.count("/") == 1 else _module(name)
        weights.append(weight(f"{key}.weight", c_out, c_in, kernel, kernel))
        weights.append(weight(f"{key}.bias", c_out))
        y = f"{name}/Conv_output_0"
        nodes.append(
            node(
                "Conv", f"{x} {key}.weight {key}.bias", y, f"{name}/Conv",
                kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4,
            )
        )  # fmt: skip
        return relu(y, f"{name.rpartition('/')[0]}/relu_{len(nodes)}") if act else y

    def relu(x, name):
        nodes.append(node("Relu", x, f"{name}/Relu_output_0", f"{name}/Relu"))
        return f"{name}/Relu_output_0"

    x = conv("input", "/conv1", 3, width, 7, 2)
    nodes.append(
        node("MaxPool", x, "pooled", "/maxpool/MaxPool", kernel_shape=[3, 3], strides=[2, 2],
             pads=[1] * 4)
    )  # fmt: skip
    x, c_in = "pooled", width
    for layer, n_blocks in enumerate(blocks, 1):
        inner = width << (layer - 1)
        for block in range(n_blocks):
            at = f"/layer{layer}/layer{layer}.{block}"
            stride = 2 if layer > 1 and block == 0 else 1
            y = conv(x, f"{at}/conv1", c_in, inner, 1)
            y = conv(y, f"{at}/conv2", inner, inner, 3, stride)
            y = conv(y, f"{at}/conv3", inner, 4 * inner, 1, act=False)
            if block == 0:
                x = conv(x, f"{at}/downsample/downsample.0", c_in, 4 * inner, 1, stride, act=False)
            nodes.append(node("Add", f"{y} {x}", f"{at}/sum", f"{at}/Add"))
            x, c_in = relu(f"{at}/sum", f"{at}/relu"), 4 * inner
    weights += [weight("fc.weight", 1000, c_in), weight("fc.bias", 1000)]
    nodes += [
        node("GlobalAveragePool", x, "averaged", "/avgpool/GlobalAveragePool"),
        node("Flatten", "averaged", "flat", "/Flatten", axis=1),
        node("Gemm", "flat fc.weight fc.bias", "output", "/fc/Gemm", transB=1),
    ]
    inputs, outputs = [("input", ["batch_size", 3, 224, 224])], [("output", ["batch_size", 1000])]
    return model(nodes, inputs, outputs, weights, producer="pytorch")


def _module(name):
    return ".".join(name.strip("/").split("/")[1:])


def bert(layers=12, hidden=768, heads=12, vocabulary=30522):
    """BERT as PyTorch exports it: batch and sequence open, shapes computed on the way."""
    nodes, weights = [], [weight("embeddings.word.weight", vocabulary, hidden)]
    nodes.append(
        node("Gather", "embeddings.word.weight input_ids", "x0", "/embeddings/word/Gather")
    )
    weights += [numbers("zero", 0), numbers("one", 1), numbers("heads", heads, hidden // heads)]
    weights += [numbers("hidden", hidden)]
    for layer in range(layers):
        nodes += _encoder_layer(
            f"/encoder/layer.{layer}", f"x{layer}", f"x{layer + 1}", hidden, weights
        )
    weights += [weight("onnx::MatMul_999", hidden, 2), weight("classifier.bias", 2)]
    nodes += [
        node("MatMul", f"x{layers} onnx::MatMul_999", "scores", "/classifier/MatMul"),
        node("Add", "classifier.bias scores", "logits", "/classifier/Add"),
    ]
    open_sizes = ["batch_size", "sequence_length"]
    inputs = [("input_ids", open_sizes, TensorProto.INT64)]
    return model(nodes, inputs, [("logits", [*open_sizes, 2])], weights, producer="pytorch")


def _encoder_layer(at, x, y, hidden, weights):
    nodes = []

    def linear(name, data, n_in, n_out):
        weights.extend(
            [weight(f"{at}{name}.weight", n_in, n_out), weight(f"{at}{name}.bias", n_out)]
        )
        nodes.append(
            node("MatMul", f"{data} {at}{name}.weight", f"{at}{name}/0", f"{at}{name}/MatMul")
        )
        nodes.append(
            node("Add", f"{at}{name}.bias {at}{name}/0", f"{at}{name}/1", f"{at}{name}/Add")
        )
        return f"{at}{name}/1"

    def norm(name, data):
        weights.extend([weight(f"{at}{name}.weight", hidden), weight(f"{at}{name}.bias", hidden)])
        nodes.append(
            node("LayerNormalization", f"{data} {at}{name}.weight {at}{name}.bias", f"{at}{name}/y",
                 f"{at}{name}/LayerNormalization")
        )  # fmt: skip
        return f"{at}{name}/y"

    me = f"{at}/attention/self"
    nodes += [
        node("Shape", x, f"{me}/shape", f"{me}/Shape"),
        node("Slice", f"{me}/shape zero {me}/two", f"{me}/front", f"{me}/Slice"),
        node("Concat", f"{me}/front heads", f"{me}/split", f"{me}/Concat", axis=0),
        node("Concat", f"{me}/front hidden", f"{me}/join", f"{me}/Concat_1", axis=0),
    ]
    weights.append(numbers(f"{me}/two", 2))
    parts = {}
    for part in ("query", "key", "value"):
        y1 = linear(f"/attention/self/{part}", x, hidden, hidden)
        nodes += [
            node("Reshape", f"{y1} {me}/split", f"{me}/{part}/4d", f"{me}/{part}/Reshape"),
            node("Transpose", f"{me}/{part}/4d", f"{me}/{part}/t", f"{me}/{part}/Transpose",
                 perm=[0, 2, 3, 1] if part == "key" else [0, 2, 1, 3]),
        ]  # fmt: skip
        parts[part] = f"{me}/{part}/t"
    nodes += [
        node("MatMul", f"{parts['query']} {parts['key']}", f"{me}/scores", f"{me}/MatMul"),
        node("Softmax", f"{me}/scores", f"{me}/probs", f"{me}/Softmax", axis=-1),
        node("MatMul", f"{me}/probs {parts['value']}", f"{me}/context", f"{me}/MatMul_1"),
        node("Transpose", f"{me}/context", f"{me}/back", f"{me}/Transpose_3", perm=[0, 2, 1, 3]),
        node("Reshape", f"{me}/back {me}/join", f"{me}/joined", f"{me}/Reshape_3"),
    ]
    out = linear("/attention/output/dense", f"{me}/joined", hidden, hidden)
    nodes.append(node("Add", f"{out} {x}", f"{at}/r1", f"{at}/attention/output/Add"))
    first = norm("/attention/output/LayerNorm", f"{at}/r1")
    up = linear("/intermediate/dense", first, hidden, 4 * hidden)
    nodes.append(node("Erf", up, f"{at}/gelu", f"{at}/intermediate/Erf"))
    down = linear("/output/dense", f"{at}/gelu", 4 * hidden, hidden)
    nodes.append(node("Add", f"{down} {first}", f"{at}/r2", f"{at}/output/Add"))
    second = norm("/output/LayerNorm", f"{at}/r2")
    nodes.append(node("Identity", second, y, f"{at}/Identity"))
    return nodes


def dynamo():
    """As PyTorch's newer exporter writes it: flat names, with the modules noted beside."""
    made = model(
        [
            node("Conv", "x layer1.0.conv1.weight", "conv2d", "node_conv2d", pads=[1] * 4),
            node("Relu", "conv2d", "relu", "node_relu"),
        ],
        [("x", ["s77", 8, 32, 32])],
        [("relu", ["s77", 16, 32, 32])],
        [weight("layer1.0.conv1.weight", 16, 8, 3, 3)],
        opset=18,
        producer="pytorch",
        ir_version=10,
    )
    scopes = "['', 'layer1', 'layer1.0', 'layer1.0.conv1', 'conv2d']"
    made.graph.node[0].metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    return made


def tf2onnx():
    """As tf2onnx writes it: a call's name in front, transposes from NHWC, an unknown batch."""
    at = "StatefulPartitionedCall/model/conv2d"
    return model(
        [
            node("Transpose", "input_1", f"{at}/Conv2D__6:0", f"{at}/Conv2D__6", perm=[0, 3, 1, 2]),
            node("Conv", f"{at}/Conv2D__6:0 const_fold_opt__12", f"{at}/BiasAdd:0", f"{at}/Conv2D",
                 strides=[2, 2], kernel_shape=[3, 3], auto_pad="SAME_LOWER"),
            node("Relu", f"{at}/BiasAdd:0", "Identity:0", f"{at}_relu/Relu"),
        ],
        [("input_1", ["unk__14", 64, 64, 3])],
        [("Identity:0", ["unk__15", 32, 32, 32])],
        [weight("const_fold_opt__12", 32, 3, 3, 3)],
        opset=13,
        producer="tf2onnx",
    )  # fmt: skip


def keras2onnx():
    """As keras2onnx wrote it: opset 9, batch ``N``, weights among the inputs, LSTM."""
    return model(
        [
            node("LSTM", "t lstm/W lstm/R", "hidden", "lstm", hidden_size=32),
            node("Squeeze", "hidden", "states", "Squeeze", axes=[1]),
            node("MatMul", "states dense/kernel:0", "dense0", "dense"),
            node("Add", "dense0 dense/bias:0", "dense/BiasAdd", "Add"),
        ],
        [("t", [10, "N", 16]), ("lstm/W", [1, 128, 16]), ("dense/bias:0", [4])],
        [("dense/BiasAdd", [10, "N", 4])],
        [weight("lstm/W", 1, 128, 16), weight("lstm/R", 1, 128, 32),
         weight("dense/kernel:0", 32, 4), weight("dense/bias:0", 4)],
        opset=9,
        producer="keras2onnx",
        ir_version=3,
    )  # fmt: skip


def skl2onnx():
    """As skl2onnx writes it: ops for the CPU, and outputs that are no tensors."""
    classes = {"classlabels_ints": [0, 1]}
    return model(
        [
            helper.make_node("Scaler", ["X"], ["variable"], "Scaler", domain="ai.onnx.ml",
                             offset=[0.0] * 4, scale=[1.0] * 4),
            helper.make_node("LinearClassifier", ["variable"], ["label", "probability"],
                             "LinearClassifier", domain="ai.onnx.ml", coefficients=[1.0] * 8,
                             intercepts=[0.0] * 2, **classes),
            helper.make_node("ZipMap", ["probability"], ["output_probability"], "ZipMap",
                             domain="ai.onnx.ml", classlabels_int64s=[0, 1]),
        ],
        [("X", [None, 4])],
        [("label", [None], TensorProto.INT64)],
        opsets=[helper.make_opsetid("ai.onnx.ml", 3)],
        producer="skl2onnx",
    )  # fmt: skip


def functions():
    """Two calls of a function that calls another; the caller gives an attribute."""
    made = parser.parse_model(
        """
        <ir_version: 10, opset_import: ["" : 18, "local" : 1]>
        main (float[N,64] x) => (float[N,64] y) {
          [layers_0] a = local.Block<slope = 0.5>(x, w)
          [layers_1] y = local.Block<slope = 0.25>(a, w)
        }
        <domain: "local", opset_import: ["" : 18, "local" : 1]>
        Block <slope> (x, w) => (y) {
          [linear] t = MatMul(x, w)
          [act] y = local.Act<slope: float = @slope>(t)
        }
        <domain: "local", opset_import: ["" : 18]>
        Act <slope> (x) => (y) { [leaky] y = LeakyRelu<alpha: float = @slope>(x) }
        """
    )
    made.graph.initializer.append(weight("w", 64, 64))
    return made


def control_flow():
    """A branch, a loop of five turns and a scan of seven, which use weights from outside."""
    then = helper.make_graph(
        [node("MatMul", "x big", "then_y", "wide")], "then", [], [_info(("then_y", [4, 64]))]
    )
    other = helper.make_graph(
        [node("Relu", "x", "else_y", "narrow")], "else", [], [_info(("else_y", [4, 64]))]
    )
    body = helper.make_graph(
        [node("MatMul", "state big", "next", "turn"), node("Identity", "more", "again")],
        "body",
        [_info(("i", [], TensorProto.INT64)), _info(("more", [], TensorProto.BOOL)),
         _info(("state", [4, 64]))],
        [_info(("again", [], TensorProto.BOOL)), _info(("next", [4, 64]))],
    )  # fmt: skip
    scanned = helper.make_graph(
        [node("Add", "total item", "sum"), node("Identity", "sum", "each")],
        "scanned",
        [_info(("total", [64])), _info(("item", [64]))],
        [_info(("sum", [64])), _info(("each", [64]))],
    )
    return model(
        [
            node("If", "flag", "chosen", "branch", then_branch=then, else_branch=other),
            node("Loop", "turns flag chosen", "looped", "loop", body=body),
            node("Scan", "start rows", "total sums", "scan", body=scanned, num_scan_inputs=1),
        ],
        [("x", [4, 64]), ("flag", [], TensorProto.BOOL), ("start", [64]), ("rows", [7, 64])],
        [("looped", [4, 64]), ("total", [64])],
        [weight("big", 64, 64), numpy_helper.from_array(np.array(5, np.int64), "turns")],
    )


def quantised():
    """int8 convolution, int4 weights that are dequantised, bfloat16 and float8 values."""
    scale = numpy_helper.from_array(np.array(0.1, np.float32), "scale")
    zero = numpy_helper.from_array(np.array(0, np.uint8), "zero")
    return model(
        [
            node("QLinearConv", "x scale zero w8 scale zero scale zero", "c", "conv", pads=[1] * 4),
            node("DequantizeLinear", "c scale zero", "f", "dequantize"),
            node("Flatten", "f", "flat", "flatten"),
            node("DequantizeLinear", "w4 scales", "w", "weights", axis=0),
            node("MatMul", "flat w", "y", "dense"),
            node("Cast", "y", "b", "to_bfloat16", to=TensorProto.BFLOAT16),
            node("Cast", "b", "e", "to_float8", to=TensorProto.FLOAT8E4M3FN),
        ],
        [("x", [1, 8, 16, 16], TensorProto.UINT8)],
        [("e", [1, 10], TensorProto.FLOAT8E4M3FN)],
        [weight("w8", 16, 8, 3, 3, kind=TensorProto.UINT8), scale, zero,
         weight("w4", 4096, 10, kind=TensorProto.INT4), weight("scales", 4096)],
        opset=21,
        ir_version=10,
    )  # fmt: skip


def fused():
    """As ONNX Runtime's optimiser writes it: with ops that the ONNX library does not know."""
    extra = {"domain": "com.microsoft"}
    return model(
        [
            helper.make_node("Attention", ["x", "qkv", "qkv.bias"], ["a"], "Attention_0",
                             num_heads=4, **extra),
            helper.make_node("SkipLayerNormalization", ["a", "x", "gamma"], ["n"], "Norm_0",
                             **extra),
            node("MatMul", "n w", "m", "MatMul_0"),
            helper.make_node("FastGelu", ["m"], ["y"], "Gelu_0", **extra),
        ],
        [("x", ["batch", 32, 64])],
        [("y", ["batch", 32, 256])],
        [weight("qkv", 64, 192), weight("qkv.bias", 192), weight("gamma", 64),
         weight("w", 64, 256)],
        opsets=[helper.make_opsetid("com.microsoft", 1)],
        producer="onnxruntime.transformers",
    )  # fmt: skip


def language_model(layers=2):
    """As ONNX Runtime's model builder writes it: int4 weights, q, k and v as one, caches."""
    half, whole = TensorProto.FLOAT16, TensorProto.INT64
    extra = {"domain": "com.microsoft"}
    nodes = [node("Gather", "words input_ids", "h0", "/model/embed_tokens/Gather")]
    weights = [weight("words", 1000, 256, kind=half), weight("head", 256, 1000, kind=half)]
    sizes = ["batch_size", 2, "past_sequence_length", 64]
    inputs = [("input_ids", ["batch_size", "sequence_length"], whole)]
    for layer in range(layers):
        at, x = f"/model/layers.{layer}", f"h{layer}"
        weights += [weight(f"{at}/{name}", 256, kind=half) for name in ("before", "after")]
        weights += [
            weight(f"{at}/{name}", n, 8, 16, kind=TensorProto.UINT8)
            for name, n in (("qkv", 512), ("o", 256))
        ]
        weights += [
            weight(f"{at}/{name}_scales", n * 8, kind=half)
            for name, n in (("qkv", 512), ("o", 256))
        ]
        caches = [f"past.{layer}.{part}" for part in ("key", "value")]
        inputs += [(cache, sizes, half) for cache in caches]
        nodes += [
            # ONNX Runtime has this op in the domain of the standard.
            node("SimplifiedLayerNormalization", f"{x} {at}/before", f"{at}/n", f"{at}/norm"),
            node("MatMulNBits", f"{at}/n {at}/qkv {at}/qkv_scales", f"{at}/packed", f"{at}/qkv",
                 K=256, N=512, bits=4, block_size=32, **extra),
            helper.make_node("GroupQueryAttention", [f"{at}/packed", "", "", *caches], [f"{at}/a"],
                             f"{at}/attention", num_heads=4, kv_num_heads=2, **extra),
            node("MatMulNBits", f"{at}/a {at}/o {at}/o_scales", f"{at}/b", f"{at}/o", K=256, N=256,
                 bits=4, block_size=32, **extra),
            helper.make_node("SkipSimplifiedLayerNormalization", [x, f"{at}/b", f"{at}/after"],
                             [f"{at}/c", "", "", f"h{layer + 1}"], f"{at}/sum", **extra),
        ]  # fmt: skip
    nodes.append(node("MatMul", f"h{layers} head", "logits", "/lm_head/MatMul"))
    outputs = [("logits", ["batch_size", "sequence_length", 1000], half)]
    opsets = [helper.make_opsetid("com.microsoft", 1)]
    return model(nodes, inputs, outputs, weights, opsets=opsets, producer="onnxruntime-genai")


def flattened(opset=9):
    """As PyTorch wrote ``x.view(x.size(0), -1)`` for years: the shape is computed on the way."""
    constant = {"value": numpy_helper.from_array(np.array([-1]))}
    unsqueeze = node("Unsqueeze", "first", "rows", "Unsqueeze_5", axes=[0])
    if opset >= 13:
        unsqueeze = node("Unsqueeze", "first zero_axis", "rows", "Unsqueeze_5")
    return model(
        [
            node("Conv", "input.1 0.weight", "3", "Conv_0", kernel_shape=[3, 3], pads=[1] * 4),
            node("Shape", "3", "shape", "Shape_2"),
            node("Gather", "shape zero", "first", "Gather_4"),
            unsqueeze,
            helper.make_node("Constant", [], ["rest"], "Constant_6", **constant),
            node("Concat", "rows rest", "wanted", "Concat_7", axis=0),
            node("Reshape", "3 wanted", "flat", "Reshape_8"),
            node("Gemm", "flat 2.weight", "logits", "Gemm_9", transB=1),
        ],
        [("input.1", ["batch", 3, 8, 8])],
        [("logits", None)],
        [weight("0.weight", 4, 3, 3, 3), weight("2.weight", 7, 256), numbers("zero_axis", 0),
         numpy_helper.from_array(np.array(0), "zero")],
        opset=opset,
        producer="pytorch",
    )  # fmt: skip


def bare():
    """No names, no shapes but that of the input, opset 7, a constant as a node."""
    made = model(
        [
            helper.make_node("Constant", [], ["two"],
                             value=numpy_helper.from_array(np.array([2.0], np.float32))),
            helper.make_node("Mul", ["0", "two"], ["1"]),
            helper.make_node("Relu", ["1"], ["2"]),
            helper.make_node("Relu", ["2"], ["softened"]),
        ],
        [("0", [3, 5])],
        [("softened", None)],
        opset=7,
        ir_version=3,
    )  # fmt: skip
    made.graph.output[0].type.tensor_type.ClearField("shape")
    return made


def body(name, nodes, outputs, weights=(), inputs=()):
    """Make the body of a loop or a branch."""
    return helper.make_graph(
        nodes, name, list(map(_info, inputs)), list(map(_info, outputs)), list(weights)
    )


def floats(name, *shape):
    """Make a weight whose values are in the file, and differ."""
    count = int(np.prod(shape))
    return numpy_helper.from_array((np.arange(count) % 7 - 2).reshape(shape).astype("f4"), name)


def merged_decoder(swapped=False):
    """As Optimum merges it: a decoder with the past and one without, in the branches of an If.

    The outputs of the branches have the names of the If's.
    """
    outputs = [("logits", [1, 1, 9]), ("present.0.key", [1, "n", 8])]

    def branch(name, past):
        present = node("Concat", "past.0.key k", "present.0.key", "concat", axis=1)
        first = node("Identity", "k", "present.0.key", "first")
        nodes = [
            node("MatMul", "x wk", "k", "key"),
            present if past else first,
            node("Transpose", "present.0.key", "turned", "turn", perm=[0, 2, 1]),
            node("MatMul", "x turned", "scores", "scores"),
            node("MatMul", "scores present.0.key", "out", "attend"),
            node("MatMul", "out head", "logits", "lm_head"),
        ]
        return body(name, nodes, outputs)

    branches = [branch("with_past", True), branch("first_call", False)]
    then, other = reversed(branches) if swapped else branches
    return model(
        [
            node("Identity", "use_cache", "cache", "flag"),
            node("If", "cache", "logits present.0.key", "optimum::if", then_branch=then,
                 else_branch=other),
        ],
        [("x", [1, 1, 8]), ("past.0.key", [1, 5, 8]), ("use_cache", [1], TensorProto.BOOL)],
        outputs,
        [floats("wk", 8, 8), floats("head", 8, 9)],
        producer="optimum",
    )  # fmt: skip


def values(made):
    """Make values for the inputs of a model whose sizes are fixed."""
    draw = np.random.default_rng(0)
    return {
        info.name: draw.integers(-3, 4, [d.dim_value for d in info.type.tensor_type.shape.dim])
        .astype(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
        for info in made.graph.input
    }  # fmt: skip


ALL = {
    each.__name__: each
    for each in (
        resnet, bert, dynamo, tf2onnx, keras2onnx, skl2onnx, functions, control_flow, quantised,
        fused, language_model, flattened, bare, merged_decoder,
    )
}  # fmt: skip


def save(made, path):
    """Write a model as it is, without looking for the files of its weights."""
    path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    return path
