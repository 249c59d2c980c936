"""A choice applied to all layers like the one it was made for."""

from dataclasses import replace
from itertools import pairwise

import pytest

from documents import document_of
from enplace.machine import simulate
from enplace_studio.model.constraints import list_constraints
from enplace_studio.model.open_project import PlanEntry
from enplace_studio.model.ordering import Slot
from problems import cluster_of, plan_of, profile_of

LAYERS = 4


@pytest.fixture
def document():
    """Layers of two ops on GPU 0, in a chain."""
    names = [f"layer_{n}/{op}" for n in range(LAYERS) for op in ("a", "b")]
    edges = [(one, other, 8) for one, other in pairwise(names)]
    profile = profile_of(dict.fromkeys([*names, "loss"], 10), edges)
    return document_of(profile, cluster_of(2), dict.fromkeys([*names, "loss"], 0))


def ops_of(document, *names):
    return [document.problem.profile.index[name] for name in names]


def places(document):
    names = document.problem.profile.op_names
    return {name: int(d) for name, d in zip(names, document.schedule.plan.device, strict=True)}


def test_all_layers_are_placed_alike_in_one_step_of_undo(document):
    document.place(ops_of(document, "layer_1/b"), 1)
    assert document.offer_stamp(ops_of(document, "layer_1/a", "layer_1/b"))
    assert document.stamp.title.startswith("3 more blocks of 2 ops like ")
    assert len(document.selection) == 8
    assert document.apply_stamp()
    assert places(document) == {
        **{f"layer_{n}/a": 0 for n in range(LAYERS)},
        **{f"layer_{n}/b": 1 for n in range(LAYERS)},
        "loss": 0,
    }
    assert len(document.problem.pins) == 8
    document.undo_stack.undo()
    assert sum(places(document).values()) == 1
    assert len(document.problem.pins) == 1


def test_the_price_is_told_before_and_is_right(document):
    document.place(ops_of(document, "layer_0/a"), 1)
    before_us = document.schedule.makespan_us
    document.offer_stamp(ops_of(document, "layer_0/a"))
    price = document.stamp.price
    assert places(document)["layer_1/a"] == 0, "nothing is done yet"
    document.apply_stamp()
    change_ms = (document.schedule.makespan_us - before_us) / 1000
    assert price.startswith(f"All pinned to GPU 1: +{change_ms:.3f} ms")
    assert "at the peak" in price


def test_colocation_is_repeated_but_pinned_ops_need_not_be_kept_off_other_devices(document):
    layer = ops_of(document, "layer_2/a", "layer_2/b")
    document.colocate(layer)
    document.forbid(layer, 1)
    document.offer_stamp(layer)
    document.apply_stamp()
    assert len(document.problem.together) == LAYERS
    assert document.problem.forbidden == {(op, 1) for op in layer}
    kinds = {c.kind for c in list_constraints(document.problem, document.project.grouping)}
    assert kinds == {"pin", "colocate", "forbid"}


@pytest.mark.parametrize("policy", ["priority", "strict"])
def test_an_order_inside_a_layer_is_repeated(policy):
    parts = ("begin", "one", "other")
    names = [f"layer_{n}/{part}" for n in range(LAYERS) for part in parts]
    inside = [(f"layer_{n}/begin", f"layer_{n}/{end}") for n in range(LAYERS) for end in parts[1:]]
    between = [(f"layer_{n}/{end}", f"layer_{n + 1}/begin") for n in range(LAYERS - 1)
               for end in parts[1:]]  # fmt: skip
    profile = profile_of(dict.fromkeys(names, 10), [(*e, 8) for e in [*inside, *between]])
    document = document_of(profile, cluster_of(2))
    plan = replace(plan_of(document.problem, dict.fromkeys(names, 0)), policy=policy)
    document.add_plan(PlanEntry("mine", plan, simulate(document.problem, plan)))
    one, other = ops_of(document, "layer_1/one", "layer_1/other")
    assert document.reorder([other], Slot(one, earlier=True))
    assert document.offer_stamp([one, other]), "an order makes no layer unlike the others"
    assert document.stamp.title.startswith("3 more blocks of 2 ops like ")
    assert document.apply_stamp()
    start_us = document.schedule.op_start_us
    for n in range(LAYERS):
        one, other = ops_of(document, f"layer_{n}/one", f"layer_{n}/other")
        assert (other, one) in document.problem.before
        assert start_us[other] < start_us[one]


def test_without_a_plan_pins_and_forbidden_devices_are_repeated(document):
    document.pin_here(ops_of(document, "layer_0/a"))
    document.forbid(ops_of(document, "layer_0/b"), 1)
    while document.plans:
        document.remove_plan(document.plans[-1])
    document.offer_stamp(ops_of(document, "layer_0/a", "layer_0/b"))
    document.apply_stamp()
    assert set(document.problem.pins) == set(
        ops_of(document, *(f"layer_{n}/a" for n in range(LAYERS)))
    )
    assert len(document.problem.forbidden) == LAYERS


def test_one_line_says_that_nothing_is_like_it(document, qtbot):
    with qtbot.waitSignal(document.failed) as failed:
        assert not document.offer_stamp(ops_of(document, "loss"))
    assert failed.args[0].startswith("no other layer has a part like")
    assert document.stamp is None


@pytest.mark.parametrize("leave", ["select", "cancel", "edit"])
def test_an_offer_is_gone_once_something_else_happens(document, leave):
    layer = ops_of(document, "layer_0/a")
    document.offer_stamp(layer)
    if leave == "select":
        document.select([0])
    elif leave == "cancel":
        document.drop_stamp()
        assert document.selection == set(layer)
    else:
        document.pin_here(layer)
    assert document.stamp is None
    assert not document.apply_stamp()
