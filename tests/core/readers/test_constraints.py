"""The file of constraints: what was written is read, and what is wrong is said in one line."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from tests.core.placers.problems import gpus, line, problems

from enplace.errors import EnplaceError
from enplace.readers import read_constraints
from enplace.values.problem import Problem
from enplace.writers import write_constraints

PROBLEM = Problem(line([10, 20, 5, 5], [(0, 3, 8)], names=list("abcd")), gpus(2))


def read(tmp_path, problem=PROBLEM, **rows):
    path = tmp_path / "team.json"
    path.write_text(json.dumps({"format": "enplace-constraints/1", **rows}))
    return read_constraints(path, problem)


def constraints(problem):
    return problem.pins, problem.forbidden, problem.before


@given(problems())
def test_constraints_are_read_as_they_were_written(problem):
    bare = problem.constrained(pins={}, together=(), forbidden=frozenset()).constrained(before=())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "team.json"
        write_constraints(path, problem)
        found = read_constraints(path, bare)
        again = read_constraints(path, found.problem)
    assert found.unknown == ()
    assert constraints(found.problem) == constraints(problem)
    assert np.array_equal(found.problem.unit, problem.unit)
    assert again.problem.together == found.problem.together


def test_the_file_has_a_line_for_each_constraint(tmp_path):
    constrained = PROBLEM.constrained(pins={2: 0, 1: 1}, together=((0, 3),)).constrained(
        before=[(2, 1)]
    )
    write_constraints(tmp_path / "team.json", constrained)
    assert (tmp_path / "team.json").read_text().splitlines() == [
        "{",
        '  "format": "enplace-constraints/1",',
        '  "pin": [',
        '    ["b","GPU:1"],',
        '    ["c","GPU:0"]',
        "  ],",
        '  "colocate": [',
        '    ["a","d"]',
        "  ],",
        '  "before": [',
        '    ["c","b"]',
        "  ]",
        "}",
    ]


def test_unknown_names_are_listed_once_and_their_constraints_left_out(tmp_path):
    found = read(
        tmp_path,
        pin=[["a", "GPU:1"], ["a", "GPU:9"], ["gone", "GPU:0"]],
        forbid=[["gone", "GPU:9"]],
        colocate=[["b", "gone"], ["c", "d"]],
        before=[["other", "a"], ["c", "a"]],
    )
    assert found.unknown == ("GPU:9", "gone", "other")
    assert constraints(found.problem) == ({0: 1}, frozenset(), ((2, 0),))
    assert found.problem.together == ((2, 3),)


def test_pins_of_the_problem_go_before_those_of_the_file(tmp_path):
    found = read(tmp_path, PROBLEM.constrained(pins={0: 0}), pin=[["a", "GPU:1"], ["b", "GPU:1"]])
    assert found.problem.pins == {0: 0, 1: 1}


def test_a_file_without_constraints_changes_nothing(tmp_path):
    found = read(tmp_path, PROBLEM.constrained(pins={0: 0}).constrained(before=[(2, 1)]))
    assert constraints(found.problem) == ({0: 0}, frozenset(), ((2, 1),))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({"pin": "a"}, "pin: must be a list"),
        ({"pin": ["a"]}, 'pin[0]: must be a list of names, not "a"'),
        ({"pin": [["a"]]}, "pin[0]: must be two names, not 1"),
        ({"pin": [["a", 1]]}, "pin[0]: must be a list of names"),
        ({"forbid": [["a", "GPU:0", "GPU:1"]]}, "forbid[0]: must be two names, not 3"),
        ({"colocate": [[]]}, "colocate[0]: must be a list of names"),
        ({"colocate": {"a": "b"}}, "colocate: must be a list"),
        ({"before": [["a", None]]}, "before[0]: must be a list of names"),
        ({"pins": []}, "'pins' means nothing here; did you mean 'pin'?"),
        (
            {"pin": [["b", "GPU:1"], ["a", "GPU:1"], ["a", "GPU:0"]]},
            "op 'a' is pinned to GPU:1 and to GPU:0; keep one of the two",
        ),
        (
            {"pin": [["a", "GPU:0"], ["b", "GPU:1"]], "colocate": [["a", "b"]]},
            "pinned to GPU:0 and op 'b' to GPU:1, but they are colocated",
        ),
        ({"pin": [["a", "GPU:0"]], "forbid": [["a", "GPU:0"]]}, "but it is forbidden there"),
        ({"before": [["d", "a"]]}, "ops would wait for each other"),
        ({"before": [["b", "c"], ["c", "b"]]}, "ops would wait for each other"),
        ({"before": [["a", "a"]]}, "ops would wait for each other: a"),
        ({"format": "enplace-constraints/2"}, "written by a newer Enplace"),
        ({"format": "enplace-plan/1"}, "choose another file"),
        ({"format": None}, "'format' is null"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, rows, words):
    with pytest.raises(EnplaceError) as refused:
        read(tmp_path, **rows)
    message = str(refused.value)
    assert words in message
    assert message.startswith(str(tmp_path / "team.json"))
    assert "\n" not in message


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"format": 1e999}']
)
def test_what_is_no_file_of_constraints_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "team.json"
    path.write_bytes(content)
    with pytest.raises(EnplaceError, match=r"team\.json") as refused:
        read_constraints(path, PROBLEM)
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_refused_in_one_line(tmp_path):
    with pytest.raises(EnplaceError, match=r"team\.json"):
        read_constraints(tmp_path / "team.json", PROBLEM)
