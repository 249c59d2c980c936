"""A plan runs only with its own model."""

from dataclasses import replace

import pytest

from enplace.errors import PlanError
from enplace.frameworks.work import check_same_graph, is_whole
from enplace.values.measurement import Measurement
from problems import profile_of


def test_a_model_with_missing_or_new_ops_is_refused():
    check_same_graph({"a", "b"}, ["a", "b"], whole=True)
    with pytest.raises(PlanError, match="has no b"):
        check_same_graph({"a"}, ["a", "b"], whole=True)
    with pytest.raises(PlanError, match="does not place dense"):
        check_same_graph({"a", "b", "dense"}, ["a", "b"], whole=True)


def test_a_trace_may_omit_ops_of_the_model():
    check_same_graph({"a", "b", "folded"}, ["a", "b"], whole=False)


@pytest.mark.parametrize(
    ("measured", "whole"),
    [
        (Measurement(), True),
        (Measurement(source={"kind": "script"}), True),
        (Measurement(source={"kind": "trace"}), False),
        (Measurement(step_time_us=5.0), False),
        (Measurement(paper="odd"), False),
    ],
)
def test_profiles_of_whole_models_are_recognised(measured, whole):
    assert is_whole(replace(profile_of({"a": 1}), measured=measured)) is whole
