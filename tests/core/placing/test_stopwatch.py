"""The stopwatch of one run."""

import itertools
from contextlib import ExitStack

from numba.core import event

from enplace.placing.stopwatch import Stopwatch


def ticking():
    """Return a stopwatch whose clock advances by a second at each look."""
    return Stopwatch(itertools.count(100.0).__next__)


def test_a_stopwatch_starts_when_it_is_made():
    stopwatch = ticking()
    assert [stopwatch.seconds, stopwatch.seconds] == [1.0, 2.0]
    assert stopwatch.restart().seconds == 1.0


def test_a_stopwatch_pauses_while_kernels_are_compiled():
    stopwatch = ticking()
    with stopwatch.paused_by_compiler():
        with event.trigger_event("numba:compile"):
            began_s = stopwatch.seconds
            with event.trigger_event("numba:compile"):
                assert stopwatch.seconds == began_s
            assert stopwatch.seconds == began_s
        assert stopwatch.seconds == began_s + 1.0
    with event.trigger_event("numba:compile"):
        assert stopwatch.seconds < stopwatch.seconds, "nobody listens any more"


def test_a_function_that_another_thread_began_to_compile_before_stops_no_stopwatch():
    """Else the search that begins meanwhile would never come to its time limit."""
    stopwatch = ticking()
    with ExitStack() as run:
        with event.trigger_event("numba:compile"):
            run.enter_context(stopwatch.paused_by_compiler())
        assert stopwatch.seconds < stopwatch.seconds
        with event.trigger_event("numba:compile"):
            assert stopwatch.seconds == stopwatch.seconds
        assert stopwatch.seconds < stopwatch.seconds


def test_a_pause_does_not_count():
    stopwatch = ticking()
    with stopwatch.paused():
        assert stopwatch.seconds == stopwatch.seconds


def test_stopwatches_are_independent():
    one, other = ticking(), ticking()
    with one.paused():
        assert other.seconds < other.seconds


def test_compiling_is_reported_unless_a_pause_has_another_reason():
    stopwatch, reports = ticking(), []
    with stopwatch.paused_by_compiler(lambda: reports.append(stopwatch.seconds)):
        with stopwatch.paused(), event.trigger_event("numba:compile"):
            assert reports == []
        with event.trigger_event("numba:compile"), event.trigger_event("numba:compile"):
            assert len(reports) == 1
