"""What waits for an edit is called in parts, with time for the window in between."""

from PySide6.QtCore import QObject, QTimer

from enplace_studio.turns import call_later, take_turn


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
