"""The application, and the window with the settings of this account."""

from __future__ import annotations

import gc
import logging
import os
import sys
from importlib import resources
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

import platformdirs
from PySide6.QtCore import QObject, QSettings, QTimer
from PySide6.QtGui import QIcon
from PySide6.QtWidgets import QApplication

from enplace.errors import FileError
from enplace.files.folders import make_private_folder
from enplace.files.writing import remove_abandoned_files
from enplace.system import give_back_memory
from enplace_studio.jobs.call_later import call_later, pause_s
from enplace_studio.shell.parts import text_size_in
from enplace_studio.shell.window import MainWindow
from enplace_studio.widgets.messages import install_excepthook
from enplace_studio.widgets.style import apply_style
from enplace_studio.widgets.theme import theme

NAME = "enplace"
LOG_BYTES = 1 << 20
COLLECT_MS, PAUSE_S = 1000, 2.0
SWITCH_S = 0.00005
"""Longest time that the window waits for a thread that computes in Python: it does so after each
call of Qt, hundreds of times in a frame. With 0.02 ms, all threads take two fifths more CPU time
than with 0.1 ms."""


def make_application() -> QApplication:
    """Make the application with its style, or return the running one."""
    running = QApplication.instance()
    if isinstance(running, QApplication):
        return running
    app = QApplication(sys.argv[:1])
    app.setApplicationName("Enplace")
    app.setDesktopFileName(NAME)
    icon = resources.files("enplace_resources") / "icons" / "enplace.svg"
    app.setWindowIcon(QIcon(str(icon)))
    theme.follow_system()
    apply_style(app, theme)
    sys.setswitchinterval(SWITCH_S)
    _Collector(app)
    return app


class _Collector(QTimer):
    """Collects garbage in this thread only; collecting a widget in another thread would crash.

    When the user pauses, memory that edits and plans have left goes back to the system: it would be
    lost in small gaps.
    """

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent, interval=COLLECT_MS)
        call_later(self, self._collect, self.timeout)  # never in the turn of another
        self.timeout.connect(self._give_back)
        gc.disable()
        # Everything loaded so far stays; scanning it each time would slow the window down.
        gc.freeze()
        self.start()

    def _give_back(self) -> None:
        if pause_s() > PAUSE_S:
            give_back_memory()

    def _collect(self) -> None:
        counts, limits = gc.get_count(), gc.get_threshold()
        for generation in (2, 1, 0):
            if counts[generation] > limits[generation]:
                gc.collect(generation)
                return


class _PrivateLog(RotatingFileHandler):
    """A log that only this user may read: it names files and ops."""

    def _open(self) -> TextIOWrapper:
        file = super()._open()
        os.chmod(self.baseFilename, 0o600)
        return file


def user_window() -> MainWindow:
    """Make the window with this account's settings, recovery folder and log."""
    config, state = (
        Path(platformdirs.user_config_dir(NAME)),
        Path(platformdirs.user_state_dir(NAME)),
    )
    log_file = state / "studio.log"
    logging.raiseExceptions = False  # a full disk must not cover the terminal with tracebacks
    fault = ""
    try:
        for folder in (config, state):
            make_private_folder(folder)
            remove_abandoned_files(folder)
        handler = _PrivateLog(log_file, maxBytes=LOG_BYTES, backupCount=1)
        logging.getLogger().addHandler(handler)
    except FileError as error:
        fault = str(error)
    except OSError as error:
        fault = f"{log_file}: cannot write: {error.strerror}"
    install_excepthook(log_file)
    settings = QSettings(str(config / "studio.ini"), QSettings.Format.IniFormat)
    theme.set_text_size(text_size_in(settings))
    window = MainWindow(settings, state / "recovery")
    if fault:
        window.banner.show_error(f"Settings and unsaved work cannot be kept: {fault}")
    return window
