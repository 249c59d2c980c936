"""What waits for an edit is called in parts, with time for the window in between."""

from PySide6.QtCore import QObject, QTimer

from enplace_studio.jobs import call_later as turns
from enplace_studio.jobs.call_later import InPause, call_later, pause_s, take_turn


def test_the_window_has_its_turn_after_an_edit_and_between_two_slots(qtbot):
    owner, calls = QObject(), []

    def call(name):
        calls.append(name)
        QTimer.singleShot(0, owner, lambda: calls.append("window"))

    for name in ("first", "second"):
        call_later(owner, lambda name=name: call(name)).start()
    QTimer.singleShot(0, owner, lambda: calls.append("window"))
    take_turn()
    qtbot.waitUntil(lambda: len(calls) == 5)
    assert calls == ["window", "first", "window", "second", "window"]


def test_slots_are_called_in_the_order_in_which_they_were_asked_for(qtbot):
    owner, calls = QObject(), []
    slots = [call_later(owner, lambda n=n: calls.append(n)) for n in range(3)]
    for number in (0, 1, 2, 0):  # what is asked for again goes to the end
        slots[number].start()
    take_turn()
    qtbot.waitUntil(lambda: len(calls) == 3)
    assert calls == [1, 2, 0]


def test_an_edit_ends_a_pause(monkeypatch):
    now_s = 1000.0
    monkeypatch.setattr(turns.time, "monotonic", lambda: now_s)
    take_turn()
    assert pause_s() == 0
    now_s += 3
    assert pause_s() == 3


def test_what_waits_for_a_pause_waits_on_after_each_edit(qtbot, monkeypatch):
    owner, now_s, calls = QObject(), 1000.0, []
    monkeypatch.setattr(turns.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(turns, "PAUSE_MS", 30)
    timer = InPause(owner, lambda: calls.append(now_s))
    for _ in range(2):
        take_turn()
        timer.ask()
        timer.timeout.emit()
        assert calls == []
        now_s += 0.02
    now_s += 0.02
    qtbot.waitUntil(lambda: bool(timer.ask() or calls))  # to ask again does not put it off
    assert calls == [now_s]
