"""Waiting for threads in tests of the studio."""

from PySide6.QtCore import QCoreApplication, QObject

from enplace_studio.jobs.background import Background


def finish_work(owner: QObject) -> None:
    """Wait until the threads of an object and its children have delivered their results.

    What waits for a pause begins first.
    """
    QCoreApplication.processEvents()
    while busy := [work for work in owner.findChildren(Background) if work.is_busy]:
        for work in busy:
            work.wait()
        QCoreApplication.processEvents()
