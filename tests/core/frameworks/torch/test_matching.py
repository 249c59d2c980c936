import pytest

from enplace.errors import PlanError
from enplace.frameworks.torch.measure.costs import MeasuredCosts
from enplace.frameworks.torch.measure.profile import graph_of
from enplace.frameworks.torch.run.matching import key_of, place_step
from enplace.frameworks.torch.step import Timing
from torch_steps import read_step


def made(name):
    step = read_step(name)
    graph = graph_of(step, MeasuredCosts(Timing()))
    return step, graph, {node.name: number % 2 for number, node in enumerate(graph.nodes)}


def test_each_op_of_a_step_is_where_its_name_is_planned():
    step, graph, planned = made("tied")
    placed = place_step(step, graph, planned)
    assert [planned[name] for name in placed.names] == [*placed.device]
    of_ops = {
        placed.names[node]
        for calls in placed.nodes.values()
        for nodes in calls
        for node in nodes
        if node is not None
    }
    no_op = {graph.nodes[node].name for node in (*graph.inputs, *graph.variables.values())}
    marks = {node.name for node in graph.nodes if node.type in ("step", "free", "Input")}
    assert of_ops | no_op | marks == {*planned}


def test_calls_alike_are_told_apart_by_their_turn():
    step, graph, planned = made("mlp")
    calls = [op for op in step.ops if op.kind == "addmm" and op.module == "0"]
    placed = place_step(step, graph, planned)
    assert len(placed.nodes[key_of(calls[0])]) == len(calls)


def test_an_op_of_another_name_is_where_its_module_is():
    step, graph, _ = made("tied")
    planned = {node.name: int("blocks_0" in node.scope) for node in graph.nodes}
    name = next(name for name in planned if name.startswith("blocks_0") and "addmm" in name)
    planned[name.replace("addmm", "addmm_of_a_gpu")] = planned.pop(name)
    placed = place_step(step, graph, planned)
    assert placed.device[placed.names.index(name)] == 1


@pytest.mark.parametrize("change", ["more", "fewer", "another"])
def test_a_plan_of_another_model_is_refused_in_one_line(change):
    step, graph, planned = made("tied")
    if change == "more":
        planned["blocks_9/up/addmm"] = 0
    elif change == "fewer":
        del planned["blocks_0/up/weight"]
    else:
        _, _, planned = made("mlp")
    with pytest.raises(PlanError, match="made for another graph") as caught:
        place_step(step, graph, planned)
    assert "\n" not in str(caught.value)
