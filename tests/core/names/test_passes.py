import doctest
from dataclasses import replace

import numpy as np
import pytest

from enplace.machine.op_passes import backward_ops, optimiser_ops, return_ops
from enplace.names import layers, passes, titles
from enplace.names.passes import (
    is_gradient_of_loss,
    is_gradient_of_op,
    is_in_backward_scope,
    is_optimizer,
    is_tape,
    named_backward,
    scopes_by_pass,
    split_pass,
)
from enplace.names.paths import index_ops
from enplace.names.scopes import traced_scopes
from enplace.values.measurement import Measurement
from enplace.values.problem import Problem
from problems import cluster_of, profile_of


@pytest.mark.parametrize("module", [layers, passes, titles])
def test_examples_in_docstrings_are_correct(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("scope", "split"),
    [
        ("", ("", "")),
        ("update", ("update", "")),
        ("update/lstm0", ("update", "lstm0")),
        ("gradients_1/lstm0", ("", "gradients_1/lstm0")),
        ("model/gradients", ("", "model/gradients")),
    ],
)
def test_only_the_first_component_of_a_scope_names_a_pass(scope, split):
    assert split_pass(scope) == split


def test_names_of_tensorflow_are_recognised():
    assert all(map(is_gradient_of_op, ("MatMul_grad", "MatMul_grad_1", "Add_Grad")))
    assert not any(map(is_gradient_of_op, ("gradients", "grader", "grad_ys")))
    assert is_gradient_of_loss("grad_ys_0")
    assert is_tape("gradient_tape_1")
    assert is_optimizer("Adam_2")
    assert not is_optimizer("adam_layer")
    assert is_in_backward_scope("while/gradients/MatMul")
    assert not is_in_backward_scope("model/gradients_like")


def test_a_recorded_backward_pass_overrides_scopes():
    names = {"gradients/a": 1, "update/a": 1, "a": 1}
    profile = profile_of(names)
    assert np.flatnonzero(named_backward(profile)).tolist() == [0, 1]
    object.__setattr__(profile, "measured", Measurement(backward=(2,)))
    assert np.flatnonzero(named_backward(profile)).tolist() == [2]


def test_passes_that_the_profile_says_need_no_names():
    names = dict.fromkeys(("l0/a", "gradients/l0/b", "update/l0/c"), 1.0)
    named = profile_of(names, [("l0/a", "update/l0/c", 8)])
    said = replace(
        named,
        op_names=("l0/a", "l0/b", "l0/c"),
        scopes=("l0", "l0", ""),
        op_passes=("forward", "backward", "update"),
    )
    assert scopes_by_pass(said) == ("l0", "gradients/l0", "update/l0")
    problems = [Problem(profile, cluster_of(2)) for profile in (named, said)]
    for find in (backward_ops, optimiser_ops, return_ops):
        assert np.array_equal(*(find(problem) for problem in problems))
    assert index_ops(said).paths == index_ops(named).paths
    contradicted = replace(named, op_passes=("", "forward", ""))
    assert scopes_by_pass(contradicted) == ("l0", "l0", "update/l0")


def test_an_update_that_waits_for_a_forward_op_does_not_make_it_one():
    nodes = [
        ("x", "Placeholder"),
        ("embedding", "VarHandleOp"),
        ("embedding/Gather", "ResourceGather"),
        ("kernel", "VarHandleOp"),
        ("MatMul/ReadVariableOp", "ReadVariableOp"),
        ("MatMul", "MatMul"),
        ("mul", "Mul"),
        ("AssignSubVariableOp", "AssignSubVariableOp"),
    ]
    number = {name: op for op, (name, _) in enumerate(nodes)}
    edges = [
        ("x", "embedding/Gather"),
        ("embedding", "embedding/Gather"),
        ("kernel", "MatMul/ReadVariableOp"),
        ("embedding/Gather", "MatMul"),
        ("MatMul/ReadVariableOp", "MatMul"),
        ("embedding/Gather", "AssignSubVariableOp"),
        ("MatMul/ReadVariableOp", "AssignSubVariableOp"),
        ("mul", "AssignSubVariableOp"),
    ]
    ends = [(number[source], 0, number[target]) for source, target in edges]
    scopes = dict(zip(number, traced_scopes(nodes, ends), strict=True))
    assert scopes["embedding/Gather"] == scopes["MatMul"] == scopes["x"] == "embedding"
    assert scopes["mul"] == scopes["AssignSubVariableOp"] == "update"


def test_a_gradient_is_where_its_forward_op_is():
    """Keras writes the layer, then either the op that it is the gradient of or its own name."""
    forward = {
        "net/gru/while": "While",
        "net/gru/Transpose": "Transpose",
        "net/norm/Mul": "Mul",
        "net/head/MatMul": "MatMul",
    }
    tape = {
        "head/MatMul/MatMul_1": "head",
        "norm/Reshape": "norm",
        "gru/while/net/gru/while_grad": "gru",
        "gru/while/net/gru/while/cell/Sigmoid_0/accumulator": "gru",
    }
    nodes = [*forward.items(), *((f"gradient_tape/net/{name}", "Op") for name in tape)]
    found = traced_scopes(nodes, [])[len(forward) :]
    assert found == [f"gradients/net/{layer}" for layer in tape.values()]
