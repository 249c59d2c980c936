"""Work in the background of the window."""

import os
import sys
import threading

import pytest
from PySide6.QtCore import QObject

from enplace_studio.jobs.background import Background


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_the_window_goes_before_work_in_the_background():
    found, work = [], Background(QObject())

    def niceness():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    work.start(niceness, found.append)
    work.wait()
    assert found[0] > niceness()
