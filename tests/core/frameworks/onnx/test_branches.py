"""Large branches, which are opened: the model becomes one of its two graphs."""

import numpy as np
import pytest
from onnx import TensorProto, checker, helper
from onnx.reference import ReferenceEvaluator

from enplace.errors import EnplaceError
from enplace.frameworks.onnx.graph import open_model, read_graph
from enplace.frameworks.onnx.profile import estimated_profile
from enplace.frameworks.roofline import GPUS
from onnx_models import body, floats, merged_decoder, model, node, save, values


@pytest.fixture
def opened(tmp_path):
    """Return a function that opens a model's branches."""

    def read(made, branch=""):
        return open_model(str(save(made, tmp_path / "m.onnx")), branch)

    return read


@pytest.fixture
def profile(tmp_path):
    def read(made, branch=""):
        graph = read_graph(str(save(made, tmp_path / "m.onnx")), branch=branch)
        return estimated_profile("m", graph, GPUS["h200"])

    return read


def test_the_branch_that_reads_the_past_is_opened(profile):
    for swapped in (False, True):
        found = profile(merged_decoder(swapped=swapped))
        assert "concat" in found.op_names
        assert "If" not in found.op_types
        taken, other = ("else", "then") if swapped else ("then", "else")
        assert (
            f"this is '{taken}' (with_past), because it reads the past" in found.measured.notes[0]
        )
        assert f"--branch {other}" in found.measured.notes[0]


@pytest.mark.parametrize(
    ("later", "why"),
    [
        ([node("Concat", "h kv", "z", "grow", axis=1)], "it adds to what it is given"),
        ([node("Add", "h kv", "z", "add")], "it reads more inputs"),
    ],
)
def test_a_past_is_known_by_what_a_branch_does_with_it(profile, later, why):
    """Its input is called anything."""
    first = body("first", [node("MatMul", "x w", "y", "dense")], [("y", None)])
    other = body("later", [node("MatMul", "x w", "h", "dense"), *later], [("z", None)])
    choice = node("If", "flag", "out", "if", then_branch=first, else_branch=other)
    inputs = [("x", [1, 4, 8]), ("kv", [1, 4, 8]), ("flag", [], TensorProto.BOOL)]
    found = profile(model([choice], inputs, [("out", None)], [floats("w", 8, 8)]))
    assert f"this is 'else' (later), because {why}" in found.measured.notes[0]


def test_the_other_branch_is_opened_on_request(profile):
    for wanted in ("else", "first_call"):
        found = profile(merged_decoder(), wanted)
        assert "concat" not in found.op_names
        assert {"past.0.key", "use_cache"}.isdisjoint(found.op_names)  # nothing reads them now
        assert "because" not in found.measured.notes[0]


def test_a_branch_that_nothing_is_called_is_refused_with_those_there_are(profile):
    with pytest.raises(EnplaceError, match="use one of then, else, with_past, first_call"):
        profile(merged_decoder(), "zzz")
    with pytest.raises(EnplaceError, match="it has no If op"):
        profile(model([node("Relu", "x", "y")], [("x", [2])], [("y", [2])]), "then")
    for both in ("then,else", "with_past,first_call"):
        with pytest.raises(EnplaceError, match="name one for each If"):
            profile(merged_decoder(), both)


@pytest.mark.parametrize("branch", ["then", "else"])
def test_what_is_opened_computes_what_the_branch_did(opened, branch):
    made = merged_decoder()
    found, _ = opened(made, branch)
    checker.check_model(found, full_check=True)
    feeds = values(made) | {"use_cache": np.array([branch == "then"])}
    kept = {info.name: feeds[info.name] for info in found.graph.input}
    expected = ReferenceEvaluator(made).run(None, feeds)
    for theirs, ours in zip(expected, ReferenceEvaluator(found).run(None, kept), strict=True):
        np.testing.assert_array_equal(theirs, ours)


def test_a_small_choice_stays_whole(profile):
    """As PyTorch scripts it: squeeze or not."""
    then = body("squeezed", [node("Squeeze", "h", "s")], [("s", None)])
    other = body("other", [node("Identity", "h", "i")], [("i", None)])
    weight = helper.make_tensor("w", TensorProto.FLOAT, [64, 64], [0.0] * 64 * 64)
    nodes = [
        node("MatMul", "x w", "h", "dense"),
        node("If", "flag", "y", "squeeze", then_branch=then, else_branch=other),
    ]
    inputs = [("x", [1, 64]), ("flag", [], TensorProto.BOOL)]
    found = profile(model(nodes, inputs, [("y", None)], [weight]))
    assert found.op_types[found.index["squeeze"]] == "If"
    with pytest.raises(EnplaceError, match='name the branch to open: "squeezed", "other"'):
        profile(model(nodes, inputs, [("y", None)], [weight]), "else")
    named = profile(model(nodes, inputs, [("y", None)], [weight]), "other")
    assert "If" not in named.op_types


def test_names_of_two_choices_may_be_the_same_and_outputs_may_come_from_outside(opened):
    """Two Ifs with equal names inside; an inner If, a loop; an output that only hands on."""
    made = nested()
    found, notes = opened(made)
    checker.check_model(found, full_check=True)
    assert len(notes) == 3
    assert [n.op_type for n in found.graph.node].count("If") == 0
    assert [n.op_type for n in found.graph.node].count("Loop") == 2
    feeds = values(made) | {"flag": np.array(True)}
    kept = {info.name: feeds[info.name] for info in found.graph.input}
    expected = ReferenceEvaluator(made).run(None, feeds)
    for theirs, ours in zip(expected, ReferenceEvaluator(found).run(None, kept), strict=True):
        np.testing.assert_array_equal(theirs, ours)


def nested():
    """Make a model of two choices that take the same branches with other weights."""

    def loop(source, made):
        inside = body(
            "turn",
            [node("MatMul", "state square", "h"), node("Identity", "go", "go_on")],
            [("go_on", [], TensorProto.BOOL), ("h", [2, 4])],
            inputs=[("i", [], TensorProto.INT64), ("go", [], TensorProto.BOOL), ("state", [2, 4])],
        )
        return node("Loop", f"turns flag {source}", made, "loop", body=inside)

    def choice(source, outputs, name, weight, end):
        nodes = [node("MatMul", f"{source} {weight}", "a"), loop("a", "l"), *end]
        brought = [floats("w", 4, 4)] if weight == "w" else []
        taken = body(f"{name}_taken", nodes, [("z", [2, 4]), (source, [2, 4])], brought)
        other = body(f"{name}_other", [node("Relu", source, "z")], [("z", [2, 4]), ("z", [2, 4])])
        return node("If", "flag", outputs, name, then_branch=taken, else_branch=other)

    deep = body(
        "deep",
        [node("MatMul", "l square", "m"), node("Add", "m row", "b"), node("Relu", "b", "c")],
        [("b", [2, 4]), ("c", [2, 4])],
        [floats("row", 4)],
    )
    flat = body("flat", [node("Relu", "l", "c")], [("c", [2, 4]), ("l", [2, 4])])
    inner = node("If", "flag", "t u", "inner", then_branch=deep, else_branch=flat)
    first = choice("x", "p q", "first", "square", [inner, node("Sum", "l t u", "z")])
    second = choice("p", "r s", "second", "w", [node("Neg", "l", "n"), node("Abs", "n", "z")])
    turns = helper.make_tensor("turns", TensorProto.INT64, [], [2])
    inputs = [("x", [2, 4]), ("flag", [], TensorProto.BOOL)]
    last = node("Sum", "r s q", "y")
    return model([first, second, last], inputs, [("y", [2, 4])], [floats("square", 4, 4), turns])


def test_a_loop_that_holds_the_model_stays_whole_and_says_so(profile):
    inside = body(
        "turn",
        [node("MatMul", "state w", "h"), node("Identity", "go", "go_on")],
        [("go_on", [], TensorProto.BOOL), ("h", [64, 64])],
        [helper.make_tensor("w", TensorProto.FLOAT, [64, 64], [0.0] * 64 * 64)],
        [("i", [], TensorProto.INT64), ("go", [], TensorProto.BOOL), ("state", [64, 64])],
    )
    turns = helper.make_tensor("turns", TensorProto.INT64, [], [3])
    go = helper.make_tensor("go_in", TensorProto.BOOL, [], [True])
    made = model(
        [node("Loop", "turns go_in x", "y", "loop", body=inside)],
        [("x", [64, 64])],
        [("y", [64, 64])],
        [turns, go],
    )
    notes = profile(made).measured.notes
    assert "100.0 % of the weights are in one Loop op, which cannot be split." in notes
