"""The part of the worker that looks for next moves, and its messages. No Qt."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from typing import Any

import numpy as np

from enplace.errors import EnplaceError
from enplace.placing.next_moves import Idle, NextMove, next_moves
from enplace.placing.next_moves.search import USUAL_S
from enplace.placing.stop import Stop
from enplace.placing.stopwatch import Stopwatch
from enplace.processes import codecs
from enplace.processes.wire import Message
from enplace.system import yield_to_main_thread
from enplace.values.arrays import IntArray
from enplace.values.plan import Plan
from enplace.values.profile import Profile
from enplace.values.splits import Split

REPORT_EVERY_S = 0.2

_TOLD = ("kind", "title", "reason", "devices", "before_us", "after_us")
_EXCESS = ("before_excess_bytes", "after_excess_bytes")


def serve_search(
    profile: Profile,
    message: Message,
    cancelled: Collection[int],
    free: threading.Event,
    send: Callable[[Message], None],
) -> None:
    """Look for next moves in the worker; report them as they are found.

    Parameters
    ----------
    cancelled : set of int
        The numbers of the searches that were ended.
    free : Event
        Set while no placer runs, which has all of the machine.
    """
    yield_to_main_thread()
    asked = message.details
    number, plan = asked["search"], codecs.plan_from(message)
    last_s = 0.0

    def is_cancelled() -> bool:
        free.wait()
        return number in cancelled

    def report(moves: Sequence[NextMove]) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= REPORT_EVERY_S:
            last_s = time.monotonic()
            send(moves_message(number, moves, plan, over=False))

    found: Sequence[NextMove] = ()
    with suppress(EnplaceError):  # the constraints have changed since: another search follows
        found = next_moves(
            codecs.problem_from(profile, asked["problem"]),
            plan,
            stop=Stop(USUAL_S, is_cancelled, Stopwatch(time.thread_time)),
            idle=Idle(*asked["idle"]) if asked["idle"] else None,
            again=[(np.array(ops, dtype=np.int64), device) for ops, device in asked["again"]],
            opened=asked["opened"],
            report=report,
        )
    if number not in cancelled:
        send(moves_message(number, found, plan, over=True))


def moves_message(number: int, moves: Sequence[NextMove], plan: Plan, over: bool) -> Message:
    """Write moves of a plan as a message: what each changes of it."""
    arrays, rows = {}, []
    for at, move in enumerate(moves):
        made = move.plan
        arrays[f"ops{at}"] = move.ops
        is_split = made.splits != plan.splits
        if is_split or not np.array_equal(made.device, plan.device):
            arrays[f"device{at}"] = made.device.astype(np.int32)
        if is_split or not np.array_equal(made.position, plan.position):
            arrays[f"position{at}"] = made.position.astype(np.int32)
        rows.append(
            {key: getattr(move, key) for key in (*_TOLD, *_EXCESS)}
            | {"splits": list(map(astuple, made.splits)), "recompute": made.recompute}
            | {"policy": made.policy, "links": made.links}
        )
    return Message("moves", {"search": number, "over": over, "moves": rows}, arrays)


def moves_from(message: Message, plan: Plan) -> tuple[NextMove, ...]:
    """Read what :func:`moves_message` wrote."""
    rows: list[Mapping[str, Any]] = message.details["moves"]
    return tuple(_move_from(row, message, at, plan) for at, row in enumerate(rows))


def _move_from(row: Mapping[str, Any], message: Message, at: int, plan: Plan) -> NextMove:
    def array(name: str, usual: IntArray) -> IntArray:
        return message.arrays.get(f"{name}{at}", usual).astype(np.int64)

    made = replace(
        plan,
        device=array("device", plan.device),
        position=array("position", plan.position),
        policy=row["policy"],
        links=row["links"],
        splits=tuple(Split(*split) for split in row["splits"]),
        recompute=tuple(row["recompute"]),
        subgraph=None,
    )
    told = {key: row[key] for key in (*_TOLD, *_EXCESS)}
    told["devices"] = tuple(told["devices"])
    return NextMove(ops=message.arrays[f"ops{at}"], plan=made, **told)
