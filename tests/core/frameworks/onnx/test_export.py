"""Plans in ONNX files: written into the model, read back, and cut into a file for each stage."""

import json
from importlib.resources import files

import jsonschema
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, checker, helper
from onnx.reference import ReferenceEvaluator

from enplace.errors import EnplaceError
from enplace.frameworks.onnx.cutting import cut
from enplace.frameworks.onnx.exporting import Export
from enplace.frameworks.onnx.graph import read_graph
from enplace.frameworks.onnx.profile import estimated_profile, name_nodes
from enplace.frameworks.roofline import GPUS
from onnx_models import body, floats, merged_decoder, model, node, numbers, save, values
from properties import examples

SCHEMA = json.loads((files("enplace_resources") / "stage-list.schema.json").read_bytes())
NAMES = ("GPU:0", "GPU:1", "CPU:0")


def export_of(path, place, **more):
    """Return the export of a plan that puts each op on ``place(number, name)``."""
    graph = read_graph(str(path), **more)
    ops = [*graph.inputs, *name_nodes(graph, list(graph.nodes))]
    devices = [place(number, name) for number, name in enumerate(ops)]
    return Export(str(path), more.get("branch", ""), dict(graph.sizes), ops, devices, NAMES)


def run_stages(folder, fed):
    """Run the stages in order, as their manifest says; return all tensors between them."""
    manifest = json.loads((folder / "stages.json").read_text())
    jsonschema.validate(manifest, SCHEMA)
    known = {name: fed[name] for name in manifest["inputs"]}
    for stage in manifest["stages"]:
        path = str(folder / stage["file"])
        checker.check_model(path)
        evaluator = ReferenceEvaluator(path)
        assert (evaluator.input_names, evaluator.output_names) == (
            stage["inputs"],
            stage["outputs"],
        )
        taken = {name: known[name] for name in stage["inputs"]}
        known |= dict(zip(stage["outputs"], evaluator.run(None, taken), strict=True))
    return [known[name] for name in manifest["outputs"]]


def layers(n_layers=4):
    """Layers with a skip connection, a shape computed on the way, and a transposed weight."""
    nodes = [
        node("Transpose", "w0", "wt", "turn", perm=[1, 0]),
        node("Shape", "x", "shape", "shape"),
        node("Add", "shape nothing", "same", "same"),
    ]
    x = "x"
    for i in range(n_layers):
        nodes += [
            node("MatMul", f"{x} wt", f"h{i}", f"l{i}/matmul"),
            node("Reshape", f"h{i} same", f"r{i}", f"l{i}/reshape"),
            node("Add", f"r{i} {x}", f"y{i}", f"l{i}/add"),
        ]
        x = f"y{i}"
    weights = [floats("w0", 4, 4), numbers("nothing", 0, 0)]
    return model(nodes, [("x", [2, 4])], [(x, [2, 4]), ("shape", [2], TensorProto.INT64)], weights)


def looping():
    """A loop whose body takes a tensor and a weight from outside."""
    inside = body(
        "turn",
        [
            node("MatMul", "state w", "h"),
            node("Add", "h first", "next"),
            node("Identity", "go", "go_on"),
        ],
        [("go_on", [], TensorProto.BOOL), ("next", [2, 4])],
        inputs=[("i", [], TensorProto.INT64), ("go", [], TensorProto.BOOL), ("state", [2, 4])],
    )
    turns = helper.make_tensor("turns", TensorProto.INT64, [], [2])
    go = helper.make_tensor("go_in", TensorProto.BOOL, [], [True])
    nodes = [
        node("Relu", "x", "first", "first"),
        node("Neg", "first", "second", "second"),
        node("Loop", "turns go_in second", "third", "loop", body=inside),
        node("Add", "third first", "y", "last"),
    ]
    weights = [floats("w", 4, 4), turns, go]
    return model(nodes, [("x", [2, 4])], [("y", [2, 4])], weights)


@examples(30)
@given(st.data())
def test_stages_of_any_plan_compute_what_the_model_does(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("m")
    make = data.draw(st.sampled_from((layers, looping, merged_decoder)))
    made = make()
    devices = data.draw(st.lists(st.integers(0, 2), min_size=30, max_size=30))
    done = export_of(save(made, folder / "m.onnx"), lambda number, _: devices[number])
    (folder / "s").mkdir()
    done.write_stages(folder / "s", folder / "s")
    fed = values(made) | ({"use_cache": np.array([True])} if make is merged_decoder else {})
    expected = ReferenceEvaluator(made).run(None, fed)
    for theirs, ours in zip(expected, run_stages(folder / "s", fed), strict=True):
        np.testing.assert_array_equal(theirs, ours)


def test_each_device_has_one_stage_if_it_need_not_wait_for_another(tmp_path):
    path = save(layers(), tmp_path / "m.onnx")
    done = export_of(path, lambda _, name: int(name.startswith(("l2", "l3"))))
    place = tmp_path / "s"
    place.mkdir()
    assert done.write_stages(place, place) == []
    stages = json.loads((place / "stages.json").read_text())["stages"]
    assert [(stage["device"], stage["inputs"]) for stage in stages] == [
        ("GPU:0", ["x"]),
        ("GPU:1", ["y1", "same"]),
    ]
    assert "y1" in stages[0]["outputs"]


def test_a_device_that_waits_for_another_has_more_stages_and_too_many_are_refused(tmp_path):
    done = export_of(
        save(layers(), tmp_path / "m.onnx"), lambda _, name: int(name.startswith(("l1", "l3")))
    )
    (tmp_path / "s").mkdir()
    notes = done.write_stages(tmp_path / "s", tmp_path / "t")
    assert notes == ["The plan comes back to devices, so there are 4 stages on 2 devices."]
    many = model(
        [node("Relu", f"x{i}", f"x{i + 1}") for i in range(120)],
        [("x0", [2])],
        [("x120", [2])],
    )
    with pytest.raises(EnplaceError, match="back and forth between devices, which makes 120 parts"):
        cut(many.graph, [i % 2 for i in range(120)])


def test_pieces_that_need_each_other_are_not_joined():
    """No path leaves a device and comes back, but each device has something for the other."""
    crossing = model(
        [node(*op) for op in (
            ("Relu", "x", "a"), ("Neg", "a", "b"), ("Abs", "x", "c"), ("Exp", "c", "d"),
        )],
        [("x", [2])],
        [("b", [2]), ("d", [2])],
    )  # fmt: skip
    parts = cut(crossing.graph, [0, 1, 1, 0])
    made = {"x"}
    for part in parts:
        assert made.issuperset(part.inputs)
        made.update(part.outputs)
    assert len(parts) == 3


def test_weights_beside_the_model_move_to_the_stages_that_need_them(tmp_path):
    source, place = tmp_path / "models", tmp_path / "s"
    source.mkdir()
    place.mkdir()
    made = layers()
    made.graph.initializer.append(floats("w1", 4, 4))
    made.graph.node[-3].input[1] = "w1"
    fed = values(made)
    expected = ReferenceEvaluator(made).run(None, fed)
    onnx.save(made, source / "m.onnx", save_as_external_data=True, size_threshold=0, location="w")
    done = export_of(source / "m.onnx", lambda _, name: int(name.startswith("l3")))
    assert done.write_stages(place, place) == []
    assert (place / "stage-2.onnx.data").stat().st_size == 64
    for theirs, ours in zip(expected, run_stages(place, fed), strict=True):
        np.testing.assert_array_equal(theirs, ours)
    (source / "w").unlink()
    (tmp_path / "t").mkdir()
    again = export_of(source / "m.onnx", lambda _, name: int(name.startswith("l3")))
    notes = again.write_stages(tmp_path / "t", tmp_path / "t")
    assert notes[-1].startswith(f'The weights in "w" are not in {source}, beside the model: put')


def test_a_model_says_the_device_and_the_stage_of_each_node(tmp_path):
    source, out = tmp_path / "models", tmp_path / "out.onnx"
    source.mkdir()
    made = layers()
    made.configuration.add(name="theirs", num_devices=1)
    made.graph.node[0].device_configurations.add(configuration_id="theirs")
    onnx.save(made, source / "m.onnx", save_as_external_data=True, size_threshold=0, location="w")
    before = (source / "m.onnx").read_bytes()
    place = lambda _, name: 2 if name == "x" else int(name.startswith("l3"))  # noqa: E731
    done = export_of(source / "m.onnx", place)
    assert done.write_model(out) == ["Its weights are copied beside it: w."]
    checker.check_model(str(out), full_check=True)
    assert (source / "m.onnx").read_bytes() == before
    found = onnx.load(out)
    assert found.ir_version >= 11
    assert [each.name for each in found.configuration] == ["theirs", "enplace"]
    assert list(found.configuration[1].device) == ["GPU:0", "GPU:1"]
    last = found.graph.node[-1].device_configurations[0]
    assert (last.pipeline_stage, list(last.sharding_spec[0].device)) == (1, [1])
    recorded = profile(out).measured
    assert recorded.op_devices["l3/add"] == "GPU:1"
    assert set(recorded.op_devices.values()) == {"CPU:0", "GPU:0", "GPU:1"}
    assert 'The file holds a plan, "enplace", for 2 devices; one of 2.' in recorded.notes[-1]
    (tmp_path / "w").write_bytes(b"another file")
    with pytest.raises(EnplaceError, match="another file than the model's"):
        export_of(source / "m.onnx", place).write_model(out)


def profile(path):
    return estimated_profile("m", read_graph(str(path)), GPUS["h200"])


def test_a_model_that_has_changed_since_is_refused(tmp_path):
    path = save(layers(), tmp_path / "m.onnx")
    graph = read_graph(str(save(layers(2), tmp_path / "other.onnx")))
    ops = [*graph.inputs, *name_nodes(graph, list(graph.nodes))]
    with pytest.raises(EnplaceError, match="made for another graph; import the model again"):
        Export(str(path), "", {}, ops, [0] * len(ops), NAMES)


def recorded(tmp_path, devices, assign):
    """Read the plan of a chain of four ops."""
    made = model(
        [node("Relu", f"x{i}", f"x{i + 1}", f"op{i}") for i in range(4)],
        [("x0", [2])],
        [("x4", [2])],
    )
    made.ir_version = 11
    made.configuration.add(name="c", num_devices=len(devices) or 4, device=devices)
    for number, each in enumerate(made.graph.node):
        assign(number, each)
    return profile(save(made, tmp_path / "m.onnx")).measured


def test_a_plan_of_stages_alone_puts_each_on_the_device_of_its_number(tmp_path):
    def assign(number, each):
        if number != 2:  # joins its producer
            each.device_configurations.add(configuration_id="c", pipeline_stage=number // 2)

    found = recorded(tmp_path, [], assign)
    assert [found.op_devices[f"op{i}"] for i in range(4)] == ["GPU:0", "GPU:0", "GPU:0", "GPU:1"]
    assert found.op_devices["x0"] == "CPU:0"
    assert "1 op without a device joins its neighbours" in found.notes[-1]


def test_tensors_on_several_devices_count_as_on_the_first_and_devices_by_their_names(tmp_path):
    def assign(number, each):
        said = each.device_configurations.add(configuration_id="c", pipeline_stage=number // 2)
        spec = said.sharding_spec.add(tensor_name=each.output[0], device=[-1])
        spec.index_to_device_group_map.add(key=-1, value=[1 - number // 2, 2])

    found = recorded(tmp_path, ["cuda:3", "gpu1", "host/GPU_7"], assign)
    assert [found.op_devices[f"op{i}"] for i in range(4)] == ["GPU:1", "GPU:1", "GPU:3", "GPU:3"]
    assert "4 ops on several devices count as on the first of them" in found.notes[-1]


def test_devices_that_do_not_exist_are_no_plan(tmp_path):
    def assign(_, each):
        each.device_configurations.add(configuration_id="c", pipeline_stage=-5)

    assert not recorded(tmp_path, [], assign).op_devices
