"""Queries find ops by what they are, where they run and what they cost."""

import numpy as np
import pytest

from documents import chain_document, document_of
from enplace_studio.model.document import Document
from enplace_studio.model.queries import QueryError, completions, find_ops
from problems import cluster_of, profile_of

MIB = 1 << 20


@pytest.fixture
def document():
    times = {"enc/a": 500.0, "enc/b": 2000.0, "dec/c": 1000.0, "dec/d": 4000.0}
    names = list(times)
    edges = [(names[0], names[1], 3 * MIB), (names[1], names[2], 8), (names[2], names[3], 8)]
    profile = profile_of(times, edges, persistent={names[3]: 20 * MIB})
    places = {names[0]: 0, names[1]: 0, names[2]: 1, names[3]: 1}
    return document_of(profile, cluster_of(2), places)


def found(document, query):
    names = document.problem.profile.op_names
    return [names[op] for op in np.flatnonzero(find_ops(document.project, query))]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", []),
        ("enc", ["enc/a", "enc/b"]),
        ("ENC/B", ["enc/b"]),
        ("name:c", ["enc/a", "enc/b", "dec/c", "dec/d"]),
        ("device:0", ["enc/a", "enc/b"]),
        ("device:GPU:1", ["dec/c", "dec/d"]),
        ('device:"gpu 1" time>1ms', ["dec/d"]),
        ("time>=1ms", ["enc/b", "dec/c", "dec/d"]),
        ("time<1ms", ["enc/a"]),
        ("time>1000us time<4ms", ["enc/b"]),
        ("time>0.003s", ["dec/d"]),
        ("weights>10MiB", ["dec/d"]),
        ("out>1", ["enc/a"]),
        ("out>4b out<9B", ["enc/b", "dec/c"]),
        ("crossing", ["enc/b", "dec/c"]),
        ("critical", ["enc/a", "enc/b", "dec/c", "dec/d"]),
        ("-device:0", ["dec/c", "dec/d"]),
        ("critical -time>1ms", ["enc/a", "dec/c"]),
        ("nothing-like-this", []),
        ("pinned", []),
    ],
)
def test_every_term_narrows_what_is_found(document, query, names):
    assert found(document, query) == names


def test_pins_are_found(document):
    document.pin_here([2])
    assert found(document, "pinned") == ["dec/c"]


def test_an_exact_type_goes_before_types_that_contain_it():
    document = chain_document()
    assert find_ops(document.project, "type:op").all()
    assert not find_ops(document.project, "type:matmul").any()


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("device:7", "has no device '7'"),
        ("device:", "needs a value, for example device:GPU:0"),
        ("time>1parsec", "time>1ms"),
        ("time>1.2.3ms", "time>1ms"),
        ("weights>1ms", "weights>10MiB"),
        ("speed>1", "cannot be compared; use one of time, weights, out"),
    ],
)
def test_a_wrong_term_is_named_with_the_right_one(document, query, complaint):
    with pytest.raises(QueryError, match=complaint):
        find_ops(document.project, query)


def test_without_a_plan_the_terms_about_it_say_so(document):
    while document.plans:
        document.remove_plan(document.plans[0])
    assert found(document, "time>3ms") == ["dec/d"]
    for query in ("critical", "crossing", "device:0"):
        with pytest.raises(QueryError, match="press Solve first"):
            find_ops(document.project, query)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("t", ["type:", "time>"]),
        ("type:", ["type:Op"]),
        ("enc -dev", ["enc -device:"]),
        ("device:g", ["device:GPU:0", "device:GPU:1"]),
        ("device:1", ["device:GPU:1"]),
        ("crit", ["critical"]),
        ("critical", []),
    ],
)
def test_completions_go_on_from_the_last_term(document, typed, offered):
    assert completions(document.project, typed) == offered


def test_every_completion_of_a_field_finds_something(document):
    for typed in ("type:", "scope:", "device:"):
        for query in completions(document.project, typed):
            assert find_ops(document.project, query).any(), query


def test_a_scope_is_offered_once_as_the_graph_prints_it():
    times = {f"decoder/layer_{at}/op{n}": 10.0 for at in range(6) for n in range(30)}
    document = document_of(profile_of(times), cluster_of(2), dict.fromkeys(times, 0))
    offered = completions(document.project, "scope:layer")
    assert 'scope:"decoder / layer 0"' in offered
    assert "scope:decoder/layer_0" not in offered


def test_saved_queries_of_a_damaged_file_are_dropped():
    document = Document()
    document.view = {"queries": {"good": "critical", "bad": 7}}
    assert document.queries == {"good": "critical"}
    document.view = {"queries": [1, 2]}
    assert document.queries == {}


def test_what_is_no_time_is_called_so(document):
    with pytest.raises(QueryError, match="“abc” is not a time; write for example time>1ms"):
        find_ops(document.project, "time>abc")
    with pytest.raises(QueryError, match="“big” is not a size"):
        find_ops(document.project, "out>big")
