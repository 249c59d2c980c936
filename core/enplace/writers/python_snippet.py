"""A plan as a Python module that a teammate puts next to the training script."""

from __future__ import annotations

import re

from enplace.errors import PlanError
from enplace.text import count, ms
from enplace.values.cluster import Cluster
from enplace.values.schedule import Schedule
from enplace.writers.registry import exporter

_FULL_NAME = re.compile(r"/(job|replica|task|device):.*")
_SHORT_NAME = re.compile(r"(gpu|cpu):(\d+)", re.IGNORECASE)

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


@exporter("python", title="Python module", suffix=".py")
def python_snippet(schedule: Schedule) -> str:
    """Python source: a dict of devices by op name, and a context for ``tf.compat.v1.device``.

    Raises
    ------
    PlanError
        If the plan splits ops, which a device function cannot do.
    """
    profile, plan = schedule.problem.profile, schedule.plan
    if plan.splits:
        raise PlanError(
            f"the plan splits {count(len(plan.splits), 'op')}, and a Python module of devices "
            f"cannot split ops; apply the plan's file with enplace.apply"
        )
    devices = tensorflow_devices(schedule.problem.cluster)
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


def tensorflow_devices(cluster: Cluster) -> list[str]:
    """TensorFlow's name of each device.

    A full name (``/job:worker/task:1/device:GPU:0``) stays, and ``GPU:1`` gets its prefix. If a
    name has no number, or two devices have the same, devices are numbered by kind.
    """
    found = [_tensorflow_device(device.name) for device in cluster.devices]
    if all(found) and len(set(found)) == len(found):
        return found
    counts: dict[str, int] = {}
    names = []
    for device in cluster.devices:
        number = counts[device.kind] = counts.get(device.kind, -1) + 1
        names.append(f"/device:{device.kind.upper()}:{number}")
    return names


def _tensorflow_device(name: str) -> str:
    if _FULL_NAME.fullmatch(name):
        return name
    match = _SHORT_NAME.fullmatch(name)
    return f"/device:{match[1].upper()}:{int(match[2])}" if match else ""
