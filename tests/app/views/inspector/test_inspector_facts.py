from dataclasses import replace

import numpy as np

from documents import chain_document, document_of
from enplace.values.problem import Problem
from enplace_studio.views.inspector.inspector_facts import (
    largest_outgoing,
    op_facts,
    place_sentence,
    totals,
)
from problems import cluster_of, profile_of


def ops(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def test_totals_count_each_tensor_that_leaves_once():
    profile = profile_of({"a": 10, "x": 5, "y": 5}, [("a", "x", 1024), ("a", "y", 1024)])
    document = document_of(profile, cluster_of(2), {"a": 0, "x": 0, "y": 1})
    assert totals(document.problem, document.schedule, ops(0)) == "1 op · 0.010 ms · 1.0 KiB out"
    assert totals(document.problem, document.schedule, ops(0, 1, 2)) == "3 ops · 0.020 ms · 0 B out"


def test_the_largest_tensors_come_first_with_their_consumers():
    profile = profile_of(
        {"net/a": 1, "net/b": 1, "net/x": 1},
        [("net/a", "net/x", 10), ("net/b", "net/x", 30), ("net/a", "net/b", 10)],
    )
    document = document_of(profile, cluster_of(1), {"net/a": 0, "net/b": 0, "net/x": 0})
    found = largest_outgoing(document.problem, document.project.grouping, ops(0, 1))
    assert [(tensor.name, tensor.bytes) for tensor in found] == [("b", 30), ("a", 10)]
    assert found[0].op_name == "net/b"
    assert found[0].goes_to


def test_tensors_with_equal_names_are_distinguished():
    profile = profile_of(
        {"t0/cell": 1, "t1/cell": 1, "end": 1}, [("t0/cell", "end", 9), ("t1/cell", "end", 8)]
    )
    document = document_of(profile, cluster_of(1), {"t0/cell": 0, "t1/cell": 0, "end": 0})
    found = largest_outgoing(document.problem, document.project.grouping, ops(0, 1))
    assert [tensor.name for tensor in found] == ["t0/cell", "t1/cell"]


def test_the_sentence_names_pins_and_devices():
    document = chain_document()
    problem, schedule = document.problem, document.schedule
    assert place_sentence(problem, schedule, ops(0, 1)) == "Not pinned."
    assert place_sentence(problem, schedule, ops(0, 2)) == "1 on GPU 0, 1 on GPU 1. Not pinned."
    later = place_sentence(problem.constrained(pins={0: 1}), schedule, ops(0))
    assert later == "Pinned to GPU 1; this plan was made without that."
    document.pin_here([0])
    assert place_sentence(document.problem, document.schedule, ops(0)) == "Pinned to GPU 0."
    assert (
        place_sentence(document.problem, document.schedule, ops(0, 1))
        == "1 of 2 ops pinned to GPU 0."
    )


def test_the_sentence_names_colocated_ops_and_forbidden_devices():
    profile = profile_of({"v": 1, "w": 1, "x": 1}, colocation={"v": "loc", "w": "loc"})
    document = document_of(profile, cluster_of(2), {"v": 0, "w": 0, "x": 0})
    document.forbid([0], 1)
    assert place_sentence(document.problem, document.schedule, ops(0)) == (
        "Not pinned. Shares its device with 1 other op, which would move with it. Kept off GPU 1."
    )
    assert place_sentence(document.problem, document.schedule, ops(0, 2)).endswith(
        "1 of 2 ops kept off GPU 1."
    )
    together = place_sentence(document.problem, document.schedule, ops(0, 1))
    assert together == "Not pinned. Kept off GPU 1."


def test_the_facts_of_an_op_are_its_costs_on_this_cluster():
    profile = profile_of(
        {"a": 10}, persistent={"a": 2048}, temporary={"a": 1024}, cpu={"a": 50, "b": 1}
    )
    document = document_of(profile, cluster_of(1, speeds=[2.0], cpu_lanes=1), {"a": 0, "b": 1})
    assert op_facts(document.problem, document.schedule, 0) == [
        ("type", "Op"),
        ("on a GPU", "0.0050 ms"),
        ("on a CPU", "0.050 ms"),
        ("variables", "2.0 KiB"),
        ("while it runs", "1.0 KiB"),
        ("runs from", "0 ms to 0.0050 ms"),
    ]
    assert ("on a GPU", "cannot run") in op_facts(document.problem, None, 1)


def test_an_op_shows_the_columns_that_say_something_of_it():
    plain = profile_of({"a": 10.0})
    said = replace(plain, flops=np.array([2.5e9]), op_kinds=("conv",), op_passes=("forward",))
    found, before = (op_facts(Problem(each, cluster_of(1)), None, 0) for each in (said, plain))
    more = [fact for fact in found if fact not in before]
    assert more == [("kind", "conv"), ("pass", "forward"), ("arithmetic", "2.5 GFLOP")]


def test_the_facts_of_a_view_name_whose_memory_it_shows():
    profile = profile_of({"a": 1, "view": 1, "end": 1}, [("a", "view", 8), ("view", "end", 8)])
    problem = Problem(replace(profile, tensor_base=np.array([-1, 0])), cluster_of(1))
    assert ("in memory of", "a") in op_facts(problem, None, 1)
    assert "in memory of" not in dict(op_facts(problem, None, 0))


def test_tensors_without_bytes_are_not_among_the_largest():
    profile = profile_of({"a": 1, "b": 1, "c": 1}, [("a", "c", 0), ("b", "c", 10)])
    found = largest_outgoing(Problem(profile, cluster_of(2)), None, ops(0, 1))
    assert [each.bytes for each in found] == [10]
