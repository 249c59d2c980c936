"""The clock that placers go by."""

from numba.core import event

from enplace.placing import clock


def test_it_stands_still_while_loops_are_compiled(monkeypatch):
    times = iter(range(100, 200))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(times)))
    before = clock.now_s()
    with event.trigger_event("numba:compile"):
        still = clock.now_s()
        with event.trigger_event("numba:compile"):
            assert clock.now_s() == still
        assert clock.now_s() == still
    after = clock.now_s()
    assert before <= still <= after
    assert after - before == 2.0  # Three looks at the time, one of them by the compiler.
    assert clock.now_s() - after == 1.0


def test_it_stands_still_when_asked_to():
    with clock.standing_still():
        assert clock.now_s() == clock.now_s()
