"""What becomes of ops that a model's own code puts on devices."""

import math

import pytest

from enplace.inputs import make_problem
from enplace.values.cluster import Cluster, Device, Link
from enplace.values.device_scopes import about_scopes, scope_pins
from enplace.values.measurement import Measurement
from enplace.values.profile import make_profile

DEVICES = (Device("GPU:0", "gpu", 1 << 30), Device("CPU:0", "cpu", 1 << 30))
LINKS = (Link(0, 1, 1.0, 0.0, (0,)), Link(1, 0, 1.0, 0.0, (0,)))
CLUSTER = Cluster("two", DEVICES, ("bus",), LINKS)
SCOPES = {"a": "CPU:0", "b": "GPU:0", "c": "GPU:1", "gone": "CPU:0"}


def profile(keeps, scopes=SCOPES, groups=("", "", "")):
    measured = Measurement(cluster=CLUSTER, device_scopes=scopes, keeps_device_scopes=keeps)
    times = [[1, 1], [math.nan, 1], [1, 1]]
    return make_profile(
        "m", op_names=["a", "b", "c"], time_us=times, colocation=groups, measured=measured
    )


def test_scopes_are_void_unless_they_are_kept():
    assert scope_pins(profile(None), CLUSTER) == []
    assert dict(make_problem(profile(None), CLUSTER).pins) == {}
    assert "4 ops with tf.device; the plan decides instead" in about_scopes(
        profile(None), "train.py"
    )


def test_scopes_that_are_kept_are_pins_where_the_op_can_run():
    assert scope_pins(profile(True), CLUSTER) == [(0, 1)]
    assert dict(make_problem(profile(True), CLUSTER).pins) == {0: 1}
    assert "but for 3" in about_scopes(profile(True), "train.py")
    kept = profile(True, {"a": "CPU:0"})
    assert about_scopes(kept, "x") == "x places 1 op with tf.device; they are pinned there."


def test_a_pin_of_the_person_comes_before_a_scope():
    problem = make_problem(profile(True), CLUSTER, pins=[("a", "GPU:0")])
    assert dict(problem.pins) == {0: 0}
    together = profile(True, {"a": "CPU:0", "c": "CPU:0"}, ("shared", "", "shared"))
    assert dict(make_problem(together, CLUSTER, pins=[("c", "GPU:0")]).pins) == {2: 0}


@pytest.mark.parametrize("keeps", [None, True])
def test_without_scopes_nothing_is_said(keeps):
    assert about_scopes(profile(keeps, {}), "train.py") == ""
