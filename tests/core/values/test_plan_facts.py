"""The facts of a plan file, also of an older one."""

import pytest

from enplace.values.plan_facts import facts_from_json
from enplace.values.rivals import ALL, CONTIGUOUS, STAGED, Rivals

SAMPLE_US = {"time_per_sample_us": 5.0, "bound_us": 5.0, "proven": True}


@pytest.mark.parametrize(
    ("facts", "rivals"),
    [
        ({**SAMPLE_US, "ideals": 12}, STAGED),
        ({**SAMPLE_US, "contiguous": True}, CONTIGUOUS),
        ({**SAMPLE_US, "contiguous": False}, ALL),
        ({"latency_us": 5.0, "pieces": 2}, Rivals(2)),
        ({"latency_us": 5.0, "subgraphs": 1}, CONTIGUOUS),
        ({"latency_us": 5.0}, None),
    ],
)
def test_an_older_file_says_in_its_details_what_its_proof_holds_for(facts, rivals):
    assert facts_from_json(facts)["rivals"] == rivals


@pytest.mark.parametrize("subgraphs", [0, -1, True, "2"])
def test_rivals_that_cannot_be_read_are_not_taken_for_all_placements(subgraphs):
    assert facts_from_json({"rivals": {"subgraphs": subgraphs}})["rivals"] is None
    assert facts_from_json({"subgraphs": subgraphs})["rivals"] is None


@pytest.mark.parametrize("rivals", ["all", None, {"of": 2}, {"staged": "yes"}])
def test_rivals_of_another_shape_are_left_out(rivals):
    assert facts_from_json({"rivals": rivals})["rivals"] is None


def test_details_are_not_taken_for_a_proof():
    """``max-load-dp`` counts ideals also where its plan is evaluated for the latency."""
    found = facts_from_json({"latency_us": 5.0, "ideals": 12})
    assert found["rivals"] is None
    assert found["details"] == {"ideals": 12}


def test_what_a_stranger_noted_stays_in_one_line_and_controls_no_terminal():
    found = facts_from_json({"note": "\x1b[31mred\nProven best.", "a\u202eb": 1, "c": "\x1b[31m"})
    assert found["note"] == "[31mred Proven best."
    assert not found["details"]


@pytest.mark.parametrize("solve_seconds", [-1.0, 1e300])
def test_a_duration_that_cannot_be_is_left_out(solve_seconds):
    assert facts_from_json({"solve_seconds": solve_seconds})["solve_seconds"] is None
