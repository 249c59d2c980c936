import gc
import logging
import os
import subprocess
import sys
import tempfile

import pytest
from PySide6.QtGui import QIcon
from PySide6.QtWidgets import QMessageBox

from documents import chain_document
from enplace_studio.__main__ import main
from enplace_studio.shell.application import user_window
from enplace_studio.shell.demo import private_window
from enplace_studio.widgets.style import FILE_ICONS, make_sheet, use_file_icons
from enplace_studio.widgets.theme import theme

SCRIPT = """
import threading
from PySide6.QtCore import QElapsedTimer
from PySide6.QtTest import QTest
from enplace_studio.shell.application import make_application

app = make_application()

class Cyclic:
    died_in = set()
    def __init__(self):
        self.me = self
    def __del__(self):
        self.died_in.add(threading.current_thread())

def litter():
    for _ in range(50_000):
        Cyclic()

thread = threading.Thread(target=litter)
thread.start()
thread.join()
print(len(Cyclic.died_in))
clock = QElapsedTimer()
clock.start()
while not Cyclic.died_in and clock.elapsed() < 10_000:
    QTest.qWait(50)
print(Cyclic.died_in == {threading.main_thread()})
"""


def test_garbage_is_collected_only_in_the_windows_thread():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.stdout.split() == ["0", "True"], done.stderr


def test_the_studio_starts_where_nothing_can_be_written_and_says_so(monkeypatch, qtbot, tmp_path):
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, "/dev/null/home")
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(logging, "raiseExceptions", True)
    window = user_window()
    qtbot.addWidget(window)
    assert "Settings and unsaved work cannot be kept: /dev/null/home" in window.banner.text
    told = []
    window.studio.failed.connect(told.append)
    document = chain_document()
    window.document.open(document.project)
    window.document.place([2], 0)
    window.studio.recovery.write()
    qtbot.waitUntil(lambda: bool(told))
    assert "A crash would lose your unsaved work" in told[0]
    window.document.open(None)
    window.close()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_only_the_user_may_read_the_log(monkeypatch, qtbot, tmp_path):
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [*root.handlers])
    window = user_window()
    qtbot.addWidget(window)
    log = root.handlers[-1]
    log.doRollover()
    log.close()
    files = [*(tmp_path / "enplace").glob("studio.log*")]
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]
    window.close()


@pytest.mark.parametrize("words", [[], ["--offscreen-demo", "unused"]])
def test_a_missing_library_is_named_in_one_line(words):
    code = (
        "import sys; sys.modules['PySide6'] = None\n"
        "from enplace_studio.__main__ import main\n"
        f"sys.exit(main({words!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        "enplace-studio: needs PySide6; install it with: pip install 'enplace[studio]'\n"
    )


def test_a_missing_library_of_the_system_is_named_in_one_line(monkeypatch, capsys):
    why = "libglib-2.0.so.0: cannot open shared object file: No such file or directory"

    def fail(_):
        raise ImportError(why)

    monkeypatch.setattr("enplace_studio.__main__._run", fail)
    assert main([]) == 2
    assert capsys.readouterr().err == (
        f"enplace-studio: {why}; install the system's package that has it\n"
    )


def test_a_missing_display_is_told_in_one_line(monkeypatch, capsys):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    assert main([]) == 2
    told = capsys.readouterr().err
    assert told == "enplace-studio: there is no display; log in on a desktop, or use ssh -X\n"


def test_a_setting_that_would_end_numba_is_told_in_one_line(monkeypatch, capsys):
    monkeypatch.setenv("NUMBA_NUM_THREADS", "-3")
    assert main([]) == 2
    told = capsys.readouterr().err
    assert told == "enplace-studio: NUMBA_NUM_THREADS=-3: must be 1 or more; unset it\n"


def test_the_file_dialog_has_our_icons_and_message_boxes_have_none(qtbot):
    use_file_icons()
    folder = QIcon.fromTheme("folder")
    assert not folder.isNull()
    assert QIcon.themeName() == FILE_ICONS
    box = QMessageBox(QMessageBox.Icon.Question, "Title", "Text?")
    qtbot.addWidget(box)
    box.setStyleSheet(make_sheet(theme))
    box.setIcon(QMessageBox.Icon.Question)
    assert box.iconPixmap().isNull()


def test_a_private_window_leaves_no_file_behind(monkeypatch, tmp_path, qapp):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with private_window((800, 600)):
        assert list(tmp_path.iterdir())
    gc.collect()
    assert not list(tmp_path.iterdir())
