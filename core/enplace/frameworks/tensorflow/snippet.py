"""A plan as a Python module to put next to the training script."""

from __future__ import annotations

from enplace.frameworks.tensorflow.device_names import device_names
from enplace.text import ms
from enplace.values.result import Result
from enplace.values.splits import rewriting

_HEAD = '''\
"""Device placement made by Enplace. Needs TensorFlow, not Enplace.

    from placement import placement     # the name of this file

    with tf.Graph().as_default(), placement():
        build_the_model()

Ops are found by name, so build the model with the code and the names that were profiled; an op that
is not listed stays where TensorFlow puts it. Device functions exist only while a graph is built:
not in eager mode, not in tf.function. This fixes where each op runs; TensorFlow still chooses the
order.
"""
'''

_FOOT = '''\


def device_of(op):
    """Device of an op that is being added to the graph."""
    return PLACEMENT.get(op.name, op.device)


def placement():
    """Context in which the graph has to be built."""
    import tensorflow as tf

    return tf.compat.v1.device(device_of)
'''


def why_no_snippet(result: Result) -> str:
    """Say that a device function cannot split ops, nor place those in functions of a SavedModel."""
    measured, splits = result.schedule.problem.measured_profile.measured, result.plan.splits
    if measured.source.get("kind") == "saved-model":
        return (
            "the ops of a SavedModel are in functions, in which a Python module of devices places "
            "none; --format saved-model writes the model with the devices in its functions"
        )
    if not splits:
        return ""
    return (
        f"the plan {rewriting(splits)}, and a Python module of devices only places ops; "
        f"apply the plan's file with enplace.apply"
    )


def python_snippet(result: Result) -> str:
    """Return Python source: devices by op name, and a context for ``tf.compat.v1.device``."""
    schedule = result.schedule
    profile, plan = schedule.problem.profile, schedule.plan
    devices = device_names(schedule.problem.cluster)
    facts = (
        f"# Model {profile.name!a}, method {plan.method!a}, "
        f"predicted step time {ms(schedule.makespan_us)}."
    )
    constants = [f"DEVICE_{i} = {device!r}" for i, device in enumerate(devices)]
    entries = [
        f"    {name!a}: DEVICE_{device},"
        for name, device in zip(profile.op_names, plan.device.tolist(), strict=True)
    ]
    body = ["", facts, *constants, "", "PLACEMENT = {", *entries, "}"]
    return _HEAD + "\n".join(body) + "\n" + _FOOT
