"""The handler that runs placers in a worker, so that they never block the window."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from enplace.errors import EnplaceError
from enplace.placers import DEFAULT_METHOD, PlaceOptions, Progress, Stop, place, placers
from enplace.placers.enplace.kernels import load_all_kernels
from enplace.processes import codecs
from enplace.processes.main import Connection
from enplace.processes.wire import Message
from enplace.system import yield_to_main_thread
from enplace.values.profile import Profile
from enplace_studio.jobs.move_worker import serve_search

REPORT_EVERY_S = 0.08

Send = Callable[[Message], None]


def serve(connection: Connection) -> Message:
    """Serve the studio until it closes the connection."""
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
    cancelled: set[int] = set()
    threading.Thread(
        target=_sort, args=(connection, inbox, cancelled), name="cancels", daemon=True
    ).start()
    connection.send(Message("hello", {"default": DEFAULT_METHOD, "methods": _methods()}))
    threading.Thread(target=_compile, name="kernels", daemon=True).start()
    profile: Profile | None = None
    free = threading.Event()
    while True:
        free.set()
        message = inbox.get()
        if message.do == "profile":
            profile = codecs.profile_from(message)
        elif profile is not None and message.do == "find moves":
            given = profile, message, cancelled, free, connection.send
            threading.Thread(target=serve_search, args=given, name="moves", daemon=True).start()
        elif profile is not None:
            free.clear()
            _solve(profile, message, cancelled, connection.send)


def _compile() -> None:
    """Compile before the user waits for it; the first plans appear while the rest compiles."""
    yield_to_main_thread()
    load_all_kernels(lambda _: None)


def _sort(connection: Connection, inbox: queue.SimpleQueue[Message], cancelled: set[int]) -> None:
    """Handle cancels at once; everything else waits for the placer."""
    while message := connection.receive():
        if message.do == "cancel":
            cancelled.add(message.details["job"])
        else:
            inbox.put(message)


def _methods() -> list[dict[str, Any]]:
    keys = (
        *("name", "title", "source", "objectives", "capabilities", "why_not"),
        *("summary", "good"),
    )
    return [
        {key: getattr(placer, key) for key in keys}
        | {"options": [asdict(option) for option in placer.options]}
        for placer in placers().values()
    ]


def _solve(profile: Profile, message: Message, cancelled: set[int], send: Send) -> None:
    job = message.details
    number = job["job"]
    reporter = _Reporter(number, send)
    options = PlaceOptions(
        objective=job["objective"],
        stop=Stop(job["time_limit_s"], cancelled=lambda: number in cancelled),
        progress=reporter,
        values=job["values"],
        start=codecs.plan_from(message) if "plan" in job else None,
    )
    try:
        problem = codecs.problem_from(profile, job["problem"])
        result = place(problem, job["method"], options=options)
    except EnplaceError as error:
        send(Message("unsolved", {"job": number, "why": str(error)}))
    else:
        reporter.send_pending()
        # A bound on the graph with split ops is not a bound on the original graph, and one on plans
        # that need not keep all is lower than the bound on those that do.
        same = result.schedule.problem.splits == problem.splits and result.plan.keeps_all
        bound_us = result.step_bound_us if same else None
        proof = {"bound_us": bound_us, "proven_by": result.proven_by}
        send(codecs.plan_message("solved", result.plan, {"job": number, **proof}))


class _Reporter:
    """Passes on progress, at most as often as the eye can follow."""

    def __init__(self, job: int, send: Send) -> None:
        self._job, self._send = job, send
        self._last_s = 0.0
        self._held: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        self._held = progress if self._held is None else _merged(self._held, progress)
        now_s = time.monotonic()
        if now_s - self._last_s >= REPORT_EVERY_S:
            self._last_s = now_s
            self.send_pending()

    def send_pending(self) -> None:
        """Send the progress that came too soon after the last message."""
        progress, self._held = self._held, None
        if progress is None:
            return
        known = {key: value for key, value in vars(progress).items() if key != "incumbent"}
        details = {"job": self._job, **known}
        if progress.incumbent is None:
            self._send(Message("progress", details))
        else:
            self._send(codecs.plan_message("progress", progress.incumbent, details))


def _merged(earlier: Progress, later: Progress) -> Progress:
    """Merge two reports: keep the later plan and the better bound."""
    found = later if later.incumbent is not None or earlier.incumbent is None else earlier
    bound = max((earlier, later), key=lambda progress: progress.bound_us or 0.0)
    return replace(found, fraction=later.fraction, bound_us=bound.bound_us, bound_by=bound.bound_by)
