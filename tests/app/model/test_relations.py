"""From some ops to those they need, those that need them, and those like them."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from documents import document_of
from enplace_studio.model.ordering import Slot
from enplace_studio.model.queries import completions, find_ops
from enplace_studio.model.relations import RELATIONS
from problems import cluster_of, profile_of

BY_WORD = {relation.id.removeprefix("select-"): relation for relation in RELATIONS}


@pytest.fixture
def document():
    """Three layers of two ops in a chain, and a loss."""
    names = [*(f"layer_{n}/{op}" for n in range(3) for op in ("a", "b")), "loss"]
    edges = [(one, other, 8) for one, other in pairwise(names)]
    profile = profile_of(dict.fromkeys(names, 10), edges)
    profile = replace(profile, op_types=tuple(name[-1].upper() for name in names))
    return document_of(profile, cluster_of(2), dict.fromkeys(names, 0))


def select(document, *names):
    document.select(document.problem.profile.index[name] for name in names)


def selected(document):
    return [document.problem.profile.op_names[op] for op in sorted(document.selection)]


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("inputs", ["layer_0/b"]),
        ("outputs", ["layer_1/b"]),
        ("upstream", ["layer_0/a", "layer_0/b"]),
        ("downstream", ["layer_1/b", "layer_2/a", "layer_2/b", "loss"]),
        ("scope", ["layer_1/a", "layer_1/b"]),
        ("type", ["layer_0/a", "layer_1/a", "layer_2/a"]),
        ("like", ["layer_0/a", "layer_1/a", "layer_2/a"]),
    ],
)
def test_a_command_goes_from_the_selection_to_related_ops(document, word, names):
    select(document, "layer_1/a")
    assert document.select_related(BY_WORD[word])
    assert selected(document) == names


def test_an_order_makes_no_op_the_input_of_another():
    profile = profile_of(dict.fromkeys("abc", 10), [("a", "c", 8)])
    document = document_of(profile, cluster_of(2), dict.fromkeys("abc", 0))
    assert document.reorder([1], Slot(2, earlier=True))
    select(document, "c")
    assert document.select_related(BY_WORD["inputs"])
    assert selected(document) == ["a"]
    assert find_ops(document.project, "inputs:name:c").tolist() == [True, False, False]


def test_neighbours_of_several_ops_are_those_outside(document):
    select(document, "layer_1/a", "layer_1/b")
    document.select_related(BY_WORD["inputs"])
    assert selected(document) == ["layer_0/b"]


def test_where_there_is_none_the_selection_stays_and_it_says_so(document, qtbot):
    select(document, "layer_0/a")
    with qtbot.waitSignal(document.failed) as failed:
        assert not document.select_related(BY_WORD["inputs"])
    assert "no inputs" in failed.args[0]
    assert selected(document) == ["layer_0/a"]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("inputs:name:layer_1/a", ["layer_0/b"]),
        ("outputs:layer_2", ["loss"]),
        ("up:layer_1", ["layer_0/a", "layer_0/b"]),
        ('down:"layer_2/a"', ["layer_2/b", "loss"]),
        ("like:name:layer_0/b", ["layer_0/b", "layer_1/b", "layer_2/b"]),
        ("up:loss type:B", ["layer_0/b", "layer_1/b", "layer_2/b"]),
    ],
)
def test_a_query_has_words_for_neighbours(document, query, names):
    found = np.flatnonzero(find_ops(document.project, query))
    assert [document.problem.profile.op_names[op] for op in found] == names


def test_what_follows_such_a_word_is_completed_too(document):
    assert "up:" in completions(document.project, "u")
    assert "up:type:A" in completions(document.project, "up:type:")
