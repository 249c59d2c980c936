"""Find ops and devices by the names that people use, and read placement rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import re2

from enplace.errors import FileError, ProblemError
from enplace.files.reading import read_bytes
from enplace.text import count, listed
from enplace.values.cluster import Cluster
from enplace.values.device_names import device_label
from enplace.values.problem import Problem
from enplace.values.profile import Profile

ARROW = "->"


def _options(**more: int) -> re2.Options:
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True  # recording nested groups would take quadratic memory
    for name, value in more.items():
        setattr(options, name, value)
    return options


_OPTIONS, _SMALL = _options(), _options(max_mem=1 << 18)
"""A regex must compile in little memory. RE2 then has enough to take the same short time for each
character of a name, however the regex is written."""

MAX_RULES, MAX_MATCHES, MAX_BYTES = 1000, 3_000_000, 4 << 20
"""Most rules in a file, most names that they may be compared with in all, and largest file."""


def read_rules(
    path: str, problem: Problem, check_cancelled: Callable[[], None] = lambda: None
) -> dict[int, int]:
    """Read the device number of each op that a rule matches; the first matching rule decides.

    A rule is a line ``REGEX -> DEVICE``. Empty lines and those that begin with ``#`` are skipped.

    Parameters
    ----------
    check_cancelled : callable
        Called before each rule; may raise an error to end the work.

    Raises
    ------
    FileError, ProblemError
        If a line is not a rule, its regex matches no op, its device does not exist, or an op may
        not run there.
    """
    try:
        lines = read_bytes(path, MAX_BYTES).decode().splitlines()
    except UnicodeDecodeError:
        raise FileError(f"{path}: not a text; write lines such as 'decoder/.* -> GPU:1'") from None
    rules: dict[int, int] = {}
    n_rules, n_ops = 0, problem.profile.n_ops
    free = list(range(n_ops))
    unpinned = problem.constrained(pins={})  # pins go before rules
    for number, line in enumerate(lines, 1):
        text, place = line.strip(), f"{path}: line {number}"
        if not text or text.startswith("#"):
            continue
        pattern, arrow, device = (part.strip() for part in text.rpartition(ARROW))
        if not arrow or not pattern or not device:
            raise FileError(f"{place}: write REGEX -> DEVICE, for example 'decoder/.* -> GPU:1'")
        where = find_device(device, problem.cluster, place)
        n_rules += 1
        if n_rules > MAX_RULES:
            raise ProblemError(f"{place}: more than {MAX_RULES} rules; use broader regexes")
        if n_rules * n_ops > MAX_MATCHES:
            raise ProblemError(
                f"{place}: more than {MAX_MATCHES // n_ops} rules for {count(n_ops, 'op')} take "
                f"too long; use broader regexes"
            )
        check_cancelled()
        for op in find_matching(pattern, problem.profile, place, free):
            if not unpinned.unit_allowed[problem.unit[op], where]:
                raise ProblemError(f"{place}: {_why_not(op, where, unpinned)}")
            rules[op] = where
        free = [op for op in free if op not in rules]
    if not rules:
        raise ProblemError(f"{path}: holds no rule; write lines such as 'decoder/.* -> GPU:1'")
    return rules


def _why_not(op: int, device: int, problem: Problem) -> str:
    """Explain why an op may not run on a device: on its own account, or for a colocated op."""
    names, where = problem.profile.op_names, problem.cluster.devices[device].name
    together = [op, *np.flatnonzero(problem.unit == problem.unit[op]).tolist()]
    runs = np.isfinite(problem.time_us[:, device])
    faults = {at: problem.fault(at, device) for at in together if runs[at]}
    causes = [at for at in together if faults.get(at, True)]
    who, cause = f"op '{names[op]}'", causes[0]
    what = f"is kept off {where}: {faults[cause]}" if runs[cause] else f"cannot run on {where}"
    if cause != op:
        who += f" is colocated with op '{names[cause]}', which"
    return f"{who} {what}; send it elsewhere in a line above"


def find_matching(
    pattern: str, profile: Profile, option: str, among: Sequence[int] | None = None
) -> list[int]:
    """Find ops whose names a regex matches anywhere; a full op name means only that op.

    Parameters
    ----------
    among : sequence of int, optional
        Ops to look at; all by default. The regex must match some op, but not necessarily of these.

    Raises
    ------
    ProblemError
        If RE2 does not accept the regex, or it matches no op.
    """
    if pattern in profile.index:
        named = profile.index[pattern]
        return [named] if among is None or named in among else []
    expression = compile_regex(pattern, option)
    names = profile.op_names
    among = range(profile.n_ops) if among is None else among
    found = [op for op in among if expression.search(names[op])]
    if not found and not any(map(expression.search, names)):
        raise ProblemError(
            f"{option} {pattern!r} matches none of the {count(profile.n_ops, 'op')} of "
            f"'{profile.name}'; check the spelling (names are like '{profile.op_names[0]}')"
        )
    return found


def compile_regex(pattern: str, option: str) -> Any:
    """Compile a regex that may come from a stranger.

    RE2 takes time linear in each name, and bounded memory.

    Raises
    ------
    ProblemError
        If RE2 does not accept it.
    """
    try:
        re2.compile(pattern, _SMALL)
        return re2.compile(pattern, _OPTIONS)
    except (re2.error, UnicodeEncodeError) as error:
        raise ProblemError(f"{option} {pattern!r}: not a regex ({_why(error)})") from None


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
