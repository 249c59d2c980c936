import io
import zipfile
from dataclasses import MISSING, fields, replace

import numpy as np
import pytest
from hypothesis import given

from enplace.processes import codecs, wire
from enplace.processes.wire import Message, WireError
from enplace.values.load_rule import LoadRule
from enplace.values.measurement import Measurement
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.rivals import Rivals
from enplace.values.splits.rules import Split
from problems import cluster_of, plan_of, planned_problems, profile_of


def encode_and_decode(message):
    buffer = bytearray(wire.encode(message))
    received = wire.take(buffer)
    assert not buffer
    return received


@given(planned_problems())
def test_a_problem_survives_encoding(drawn):
    problem, plan = drawn
    pins = {0: int(plan.device[0])}
    order = problem.profile.topological_order[[0, -1]].tolist()
    before = [tuple(order)] if order[0] != order[1] else []
    problem = problem.constrained(pins=pins, together=((0,),)).constrained(before=before)
    measured = codecs.profile_message(problem.measured_profile)
    profile = codecs.profile_from(encode_and_decode(measured))
    head = encode_and_decode(Message("solve", {"problem": codecs.problem_to_json(problem)})).details
    arrived = codecs.problem_from(profile, head["problem"])
    assert arrived.profile.fingerprint == problem.profile.fingerprint
    assert arrived.cluster == problem.cluster
    assert (arrived.pins, arrived.together) == (dict(problem.pins), problem.together)
    assert (arrived.forbidden, arrived.before) == (problem.forbidden, problem.before)
    np.testing.assert_array_equal(arrived.time_us, problem.time_us)
    np.testing.assert_array_equal(arrived.profile.edge_op, problem.profile.edge_op)


def test_every_field_of_a_plan_survives_encoding():
    """Every value differs from its default, so a field added later cannot be forgotten."""
    splits = (Split("a", "batch", 2),)
    plan = Plan(
        device=np.array([1, 0]),
        position=np.array([1, 0]),
        method="mine",
        policy="strict",
        links="ordered",
        objective="throughput",
        value_us=3.0,
        bound_us=2.0,
        proven=True,
        rivals=Rivals(2, staged=True),
        load_rule=LoadRule("overlap"),
        subgraph=np.array([0, 1]),
        nothing_fits=True,
        note="by hand",
        noted_us=5.0,
        noted_for="0123456789abcdef",
        solve_seconds=1.5,
        seed=7,
        details={"ideals": 12},
        replicas=((0, 2), (1, 3)),
        recompute=(1,),
        pace_us=4.0,
        splits=splits,
    )
    told = [field for field in fields(Plan) if field.name != "claim"]  # that is of a file
    for field in told:
        assert field.default is MISSING or not np.array_equal(
            getattr(plan, field.name), field.default
        )
    arrived = codecs.plan_from(encode_and_decode(codecs.plan_message("solved", plan, {})))
    for field in told:
        np.testing.assert_equal(getattr(arrived, field.name), getattr(plan, field.name))


def test_partial_messages_are_kept_until_they_are_complete():

    problem = Problem(profile_of({"a": 1}), cluster_of(2))
    plan = plan_of(problem, {"a": 1}, policy="strict")
    sent = wire.encode(codecs.plan_message("solved", plan, {"job": 3})) + wire.encode(Message("x"))
    buffer, received = bytearray(), []
    for byte in sent:
        buffer.append(byte)
        if message := wire.take(buffer):
            received.append(message)
    assert [message.do for message in received] == ["solved", "x"]
    arrived = codecs.plan_from(received[0])
    assert (arrived.device.tolist(), arrived.policy) == ([1], "strict")


def test_an_array_of_objects_is_refused():
    bad = Message("profile", {}, {"device": np.array([{}], dtype=object)})
    with pytest.raises(WireError, match="not a message"):
        encode_and_decode(bad)


def test_measurements_survive_encoding():
    measured = Measurement(step_time_us=12.5, op_deviation={"a": 0.1, "b": np.nan})
    profile = replace(profile_of({"a": 1}), measured=measured)
    arrived = codecs.profile_from(encode_and_decode(codecs.profile_message(profile, "done")))
    assert arrived.measured.step_time_us == 12.5
    assert arrived.measured.op_deviation["a"] == 0.1
    assert np.isnan(arrived.measured.op_deviation["b"])


def test_text_between_messages_is_reported():
    with pytest.raises(WireError, match="step 1: loss"):
        wire.take(bytearray(b"step 1: loss 0.25 and so on"))


def test_an_incomplete_last_message_is_ignored():
    whole = wire.encode(Message("x", {"path": "caf\udce9"}))
    for n_bytes in range(len(whole)):
        assert wire.read(io.BytesIO(whole[:n_bytes])) is None
    assert wire.read(io.BytesIO(whole)).details == {"path": "caf\udce9"}


def test_a_wrong_length_takes_no_memory():
    class Stream(io.BytesIO):
        def read(self, count=-1):
            assert 0 <= count < 1 << 25
            return super().read(count)

    start = (1 << 32).to_bytes(8, "little") + (0).to_bytes(8, "little")
    assert wire.read(Stream(start + b"{")) is None


@pytest.mark.parametrize(
    ("shape", "compression"),
    [("(65536,)", zipfile.ZIP_DEFLATED), ("(999999999999,)", zipfile.ZIP_STORED)],
)
def test_arrays_larger_than_their_message_are_refused(shape, compression):
    array = io.BytesIO()
    np.save(array, np.zeros(1 << 16))
    content = array.getvalue().replace(b"(65536,), }       ", f"{shape}, }}".encode().ljust(18))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compression) as archive:
        archive.writestr("x.npy", content)
    head, blob = b'{"do": "x"}', packed.getvalue()
    lengths = len(head).to_bytes(8, "little") + len(blob).to_bytes(8, "little")
    with pytest.raises(WireError):
        wire.take(bytearray(lengths + head + blob))
