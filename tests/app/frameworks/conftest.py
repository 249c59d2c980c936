"""A window with a fake worker, so that no test needs TensorFlow."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from PySide6.QtCore import QSettings
from PySide6.QtWidgets import QApplication, QDialog, QMessageBox

from enplace.frameworks.framework import Framework
from enplace_studio.frameworks.dialogs import TrustQuestion
from enplace_studio.shell.window import MainWindow
from enplace_studio.widgets.theme import theme
from fake_framework import use_worker
from forking import fork_workers

FAKE_WORKER = Path(__file__).with_name("fake_worker.py")


@pytest.fixture(autouse=True)
def fake_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Send jobs to the fake worker, pretend TensorFlow is installed, isolate the trust settings."""
    use_worker(monkeypatch, sys.executable, str(FAKE_WORKER))
    fork_workers(monkeypatch)
    monkeypatch.setattr(Framework, "is_installed", True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def model(tmp_path: Path) -> Callable[[str], Path]:
    """Make a model file whose name selects the fake worker's behaviour."""

    def make(name: str) -> Path:
        path = tmp_path / "models" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("train()\n")
        return path

    return make


@pytest.fixture
def window(
    qapp: QApplication, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MainWindow]:
    """A window that does not solve automatically."""
    theme.set_mode("light")
    settings = QSettings(str(tmp_path / "studio.ini"), QSettings.Format.IniFormat)
    made = MainWindow(settings, tmp_path / "recovery")
    monkeypatch.setattr(made.solver, "solve", lambda *_, **__: None)
    made.show()
    yield made
    monkeypatch.setattr(QMessageBox, "question", lambda *_: QMessageBox.StandardButton.Discard)
    made.close()
    made.deleteLater()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[QDialog]:
    """Accept every dialog immediately, and keep the dialogs that were shown."""
    kept: list[QDialog] = []

    def accept(dialog: QDialog) -> int:
        kept.append(dialog)
        dialog.accept()
        return dialog.result()

    monkeypatch.setattr(QDialog, "exec", accept)
    return kept


@pytest.fixture(scope="session")
def fake() -> ModuleType:
    """The fake worker's module, for tests that need its answers but not its process."""
    spec = importlib.util.spec_from_file_location("fake_worker", FAKE_WORKER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def distrusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer that the folder is not trusted."""
    monkeypatch.setattr(TrustQuestion, "exec", lambda dialog: 0)
