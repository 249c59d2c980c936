import json
import tracemalloc
import zipfile

import pytest

from enplace.errors import FileError
from enplace.frameworks.torch.open.exported import MAX_DEPTH, Graph, Ref, read_program


def tensor(name):
    return {"as_tensor": {"name": name}}


def meta(*sizes, dtype=7):
    return {"dtype": dtype, "sizes": [*sizes], "strides": [], "requires_grad": False}


def whole(number):
    return {"as_int": number}


BATCH = {"as_expr": {"expr_str": "Symbol('s7', positive=True, integer=True)",
                     "hint": {"as_int": 4}}}  # fmt: skip


def node(name, target, *given, stack=""):
    inputs = [{"name": f"a{i}", "arg": each, "kind": 1} for i, each in enumerate(given)]
    return {"name": name, "target": target, "inputs": inputs, "outputs": [tensor(name)],
            "metadata": {"nn_module_stack": stack, "stack_trace": "x.py"}}  # fmt: skip


STACK = "L__self__,,app.Net;L__self__layers.0,layers.0@1,torch.nn.modules.linear.Linear"


def program():
    return {
        "graph_module": {
            "graph": {
                "inputs": [tensor("p_w"), tensor("p_v"), tensor("x")],
                "outputs": [tensor("relu")],
                "nodes": [
                    node("mm", "torch.ops.aten.mm.default", tensor("x"), tensor("p_w"),
                         stack=STACK),
                    node("relu", "torch.ops.aten.relu.default", tensor("mm"),
                         stack="L__self__,,app.Net"),
                ],
                "tensor_values": {
                    "p_w": meta(whole(8), whole(8)),
                    "p_v": meta(whole(8), whole(8)),
                    "x": meta(BATCH, whole(8)),
                },
                "sym_int_values": {},
            },
            "signature": {
                "input_specs": [
                    {"parameter": {"arg": {"name": "p_w"}, "parameter_name": "layers.0.weight"}},
                    {"parameter": {"arg": {"name": "p_v"}, "parameter_name": "head.weight"}},
                    {"user_input": {"arg": tensor("x")}},
                ],
                "output_specs": [],
            },
        },
        "range_constraints": {"s7": {"min_val": 2, "max_val": 64}},
        "schema_version": {"major": 8, "minor": 20},
    }  # fmt: skip


TIED = {"config": {name: {"path_name": "weight_0", "is_param": True, "use_pickle": False}
                   for name in ("layers.0.weight", "head.weight")}}  # fmt: skip


def save(path, model, config=TIED, how=zipfile.ZIP_STORED, name="m/models/model.json"):
    text = model if isinstance(model, str) else json.dumps(model)
    with zipfile.ZipFile(path, "w", how) as archive:
        archive.writestr("m/archive_format", "pt2")
        archive.writestr(name, text)
        archive.writestr("m/data/weights/model_weights_config.json", json.dumps(config))
        archive.writestr("m/data/sample_inputs/model.pt", b"\x80\x04cos\nsystem\n")
    return str(path)


def test_a_program_has_ops_by_module_and_sizes_that_can_be_chosen(tmp_path):
    found = read_program(save(tmp_path / "m.pt2", program()))
    assert found.title == "Net"
    assert [(each.target, each.module) for each in found.graph.nodes] == [
        ("torch.ops.aten.mm.default", "layers.0"),
        ("torch.ops.aten.relu.default", ""),
    ]
    assert found.graph.nodes[0].arguments == (("a0", Ref("x")), ("a1", Ref("p_w")))
    assert found.symbols() == {"s7": ("x", 0, 4)}
    (given,) = (each for each in found.inputs if each.role == "user_input")
    assert found.shape(given.meta, found.chosen(0, {})) == (4, 8)
    assert found.shape(given.meta, found.chosen(16, {})) == (16, 8)
    assert found.shape(given.meta, found.chosen(0, {"s7": 5})) == (5, 8)
    with pytest.raises(FileError, match=r"the batch size \(s7\) can be 2 to 64, not 65"):
        found.chosen(65, {})
    with pytest.raises(FileError, match="no size is called 'n'; it leaves s7 open"):
        found.chosen(0, {"n": 5})


def test_weights_with_the_same_bytes_are_tied_and_an_older_file_does_not_tell(tmp_path):
    assert read_program(save(tmp_path / "m.pt2", program())).tied == {
        "head.weight": "layers.0.weight"
    }
    with zipfile.ZipFile(tmp_path / "old.pt2", "w") as archive:
        archive.writestr("serialized_exported_program.json", json.dumps(program()))
        archive.writestr("serialized_state_dict.pt", b"\x80\x04cos\nsystem\n")
    old = read_program(str(tmp_path / "old.pt2"))
    assert not old.tied
    assert not old.knows_ties


def nested(depth):
    graph = {"inputs": [], "outputs": [], "nodes": []}
    for _ in range(depth):
        inner = {"as_graph": {"name": "g", "graph": graph}}
        graph = {"inputs": [], "outputs": [], "nodes": [
            node("n", "torch.ops.higher_order.wrap_with_set_grad_enabled", inner)]}  # fmt: skip
    return graph


def test_graphs_within_graphs_are_read(tmp_path):
    model = program()
    model["graph_module"]["graph"]["nodes"] += nested(2)["nodes"]
    ((_, inner),) = read_program(save(tmp_path / "m.pt2", model)).graph.nodes[2].arguments
    assert isinstance(inner, Graph)
    assert isinstance(inner.nodes[0].arguments[0][1], Graph)


def spoilt(change):
    model = program()
    change(model["graph_module"]["graph"], model)
    return model


def too_deep(graph, model):
    graph["nodes"] = nested(MAX_DEPTH + 1)["nodes"]


def of_another_version(graph, model):
    model["schema_version"]["major"] = 9


def with_an_odd_value(graph, model):
    graph["nodes"][0]["inputs"][0]["arg"] = {"as_custom_obj": {"name": "x"}}


def with_a_text_for_a_number(graph, model):
    graph["nodes"][0]["inputs"][0]["arg"] = {"as_int": "9" * 100}


def with_a_huge_size(graph, model):
    graph["tensor_values"]["x"] = meta(whole(1 << 50))


def without_an_input(graph, model):
    del graph["tensor_values"]["x"]


def with_an_odd_input(graph, model):
    model["graph_module"]["signature"]["input_specs"][0] = {"token": {"arg": {"name": "t"}}}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (too_deep, "more than 20 deep"),
        (of_another_version, "has version 9 of the schema"),
        (with_an_odd_value, r"nodes\[0\]\.inputs\[0\]: a value of the kind \"as_custom_obj\""),
        (with_a_text_for_a_number, "must be a whole number, not"),
        (with_a_huge_size, r"as_int: must be a number from 0 to"),
        (without_an_input, "'tensor_values' has no \"x\""),
        (with_an_odd_input, "an input of the kind \"token\" is none that Enplace reads"),
        (lambda graph, model: model.pop("graph_module"), "'graph_module' is missing"),
        (lambda graph, model: graph.update(nodes=[1]), r"nodes\[0\]: must be an object, not 1"),
    ],
)  # fmt: skip
def test_a_fault_in_the_graph_is_one_line_with_its_place(tmp_path, change, why):
    path = save(tmp_path / "m.pt2", spoilt(change))
    with pytest.raises(FileError, match=why) as error:
        read_program(path)
    assert str(error.value).startswith(f"{path}: m/models/model.json: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"PK\x03\x04 cut off", "not a zip, as torch.export writes, or a damaged one"),
        (b"\x80\x02 a pickle", "not a zip"),
    ],
)
def test_what_is_no_zip_is_refused(tmp_path, content, why):
    (path := tmp_path / "m.pt2").write_bytes(content)
    with pytest.raises(FileError, match=why):
        read_program(str(path))


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path):
    bomb = "[" + " " * (300 << 20) + "]"
    path = save(tmp_path / "m.pt2", bomb, how=zipfile.ZIP_DEFLATED)
    del bomb
    tracemalloc.start()
    with pytest.raises(FileError, match=r"unpacks to 314,572,802 bytes; do not trust it"):
        read_program(path)
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()


def test_json_that_is_too_deep_is_refused(tmp_path):
    path = save(tmp_path / "m.pt2", '{"graph_module":' + "[" * 200_000)
    with pytest.raises(FileError, match="the nesting too deep"):
        read_program(path)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("m/other.json", "has no 'models/model.json': it is no program"),
        ("m/data/aotinductor/model/x.so", "holds compiled code, and no graph"),
    ],
)
def test_an_archive_without_a_program_is_refused(tmp_path, name, why):
    with pytest.raises(FileError, match=why):
        read_program(save(tmp_path / "m.pt2", program(), name=name))
