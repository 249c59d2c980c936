"""Find ops and devices by the names that people use, and read placement rules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import re2

from enplace.disk import read_bytes
from enplace.errors import FileError, ProblemError
from enplace.text import count, listed
from enplace.values.cluster import Cluster
from enplace.values.device_names import device_label
from enplace.values.problem import Problem
from enplace.values.profile import Profile

ARROW = "->"

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.never_capture = True  # recording nested groups would take quadratic memory


def read_rules(path: str, problem: Problem) -> dict[int, int]:
    """Read the device number of each op that a rule matches; the first matching rule decides.

    A rule is a line ``REGEX -> DEVICE``. Empty lines and those that begin with ``#`` are skipped.

    Raises
    ------
    FileError, ProblemError
        If a line is not a rule, its regex matches no op, its device does not exist, or an op may
        not run there.
    """
    try:
        lines = read_bytes(path).decode().splitlines()
    except UnicodeDecodeError:
        raise FileError(f"{path}: not a text; write lines such as 'decoder/.* -> GPU:1'") from None
    rules: dict[int, int] = {}
    allowed = replace(problem, pins={}).unit_allowed  # pins go before rules
    for number, line in enumerate(lines, 1):
        text, place = line.strip(), f"{path}: line {number}"
        if not text or text.startswith("#"):
            continue
        pattern, arrow, device = (part.strip() for part in text.rpartition(ARROW))
        if not arrow or not pattern or not device:
            raise FileError(f"{place}: write REGEX -> DEVICE, for example 'decoder/.* -> GPU:1'")
        where = find_device(device, problem.cluster, place)
        for op in find_matching(pattern, problem.profile, place):
            if rules.setdefault(op, where) == where and not allowed[problem.unit[op], where]:
                raise ProblemError(f"{place}: {_why_not(op, where, problem)}")
    if not rules:
        raise ProblemError(f"{path}: holds no rule; write lines such as 'decoder/.* -> GPU:1'")
    return rules


def _why_not(op: int, device: int, problem: Problem) -> str:
    """Explain why an op may not run on a device: on its own account, or for a colocated op."""
    names, where = problem.profile.op_names, problem.cluster.devices[device].name
    together = [op, *np.flatnonzero(problem.unit == problem.unit[op]).tolist()]
    runs = np.isfinite(problem.time_us[:, device])
    cause = next(at for at in together if not runs[at] or (at, device) in problem.forbidden)
    what = f"is forbidden on {where}" if runs[cause] else f"cannot run on {where}"
    who = f"op '{names[op]}'"
    if cause != op:
        who += f" is colocated with op '{names[cause]}', which"
    return f"{who} {what}; send it elsewhere in a line above"


def find_matching(pattern: str, profile: Profile, option: str) -> list[int]:
    """Find ops whose names a regex matches anywhere; a full op name means only that op.

    The regex may come from a stranger. RE2 takes time linear in each name, and bounded memory.

    Raises
    ------
    ProblemError
        If RE2 does not accept the regex, or it matches no op.
    """
    if pattern in profile.index:
        return [profile.index[pattern]]
    try:
        expression = re2.compile(pattern, _OPTIONS)
    except (re2.error, UnicodeEncodeError) as error:
        raise ProblemError(f"{option} {pattern!r}: not a regex ({_why(error)})") from None
    found = [op for op, name in enumerate(profile.op_names) if expression.search(name)]
    if not found:
        raise ProblemError(
            f"{option} {pattern!r} matches none of the {count(profile.n_ops, 'op')} of "
            f"'{profile.name}'; check the spelling (names are like '{profile.op_names[0]}')"
        )
    return found


def _why(error: Exception) -> str:
    """Return RE2's explanation, which is in bytes, without the part of the regex after it."""
    reason = error.args[0]
    if not isinstance(reason, bytes):
        return "half a character"
    return reason.partition(b":")[0].decode(errors="replace")


def find_device(text: str, cluster: Cluster, option: str) -> int:
    """Find a device by ``GPU:0``, ``gpu:0``, ``0`` or its name on screen, such as ``GPU 0``.

    Raises
    ------
    ProblemError
        With the devices of the cluster.
    """
    names = [device.name for device in cluster.devices]
    if text in names:
        return names.index(text)
    labels = [device_label(name).casefold() for name in names]
    for wanted in (text, f"GPU:{text}"):
        if labels.count(label := device_label(wanted).casefold()) == 1:
            return labels.index(label)
    if text.isascii() and text.isdigit() and int(text) < len(names):
        return int(text)
    raise ProblemError(
        f"{option}: cluster '{cluster.name}' has no device {text!r}; use one of {listed(names)}"
    )
