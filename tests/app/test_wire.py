from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from enplace_studio import wire
from enplace_studio.wire import Message
from problems import cluster_of, plan_of, planned_problems, profile_of


def through(message):
    buffer = bytearray(wire.encode(message))
    received = wire.take(buffer)
    assert not buffer
    return received


@given(planned_problems())
def test_a_problem_survives_the_journey(drawn):
    problem, plan = drawn
    pins = {0: int(plan.device[0])}
    problem = replace(problem, pins=pins, together=((0,),))
    profile = wire.profile_from(through(wire.profile_message(problem.profile)))
    head = through(Message("solve", {"problem": wire.problem_to_json(problem)})).details
    arrived = wire.problem_from(profile, head["problem"])
    assert arrived.profile.fingerprint == problem.profile.fingerprint
    assert arrived.cluster == problem.cluster
    assert (arrived.pins, arrived.together) == (dict(problem.pins), problem.together)
    assert arrived.forbidden == problem.forbidden
    np.testing.assert_array_equal(arrived.time_us, problem.time_us)
    np.testing.assert_array_equal(arrived.profile.edge_op, problem.profile.edge_op)


def test_messages_that_arrive_in_pieces_wait_until_they_are_whole():
    from enplace.problem import Problem

    problem = Problem(profile_of({"a": 1}), cluster_of(2))
    plan = plan_of(problem, {"a": 1}, policy="strict")
    sent = wire.encode(wire.plan_message("solved", plan, {"job": 3})) + wire.encode(Message("x"))
    buffer, received = bytearray(), []
    for byte in sent:
        buffer.append(byte)
        if message := wire.take(buffer):
            received.append(message)
    assert [message.do for message in received] == ["solved", "x"]
    arrived = wire.plan_from(received[0])
    assert (arrived.device.tolist(), arrived.policy) == ([1], "strict")


def test_an_array_of_objects_is_refused():
    bad = Message("profile", {}, {"device": np.array([{}], dtype=object)})
    with pytest.raises(ValueError, match="allow_pickle"):
        through(bad)
