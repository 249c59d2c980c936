"""A folder that is the current one, with modules that no process may run."""

import pytest

from enplace.processes.wire import Message
from enplace.processes.worker import Worker

MODULES = ("argparse", "click", "io", "json", "numpy", "os", "queue", "scipy", "tensorflow")


@pytest.fixture
def evil_folder(tmp_path, monkeypatch):
    """Make it the current folder, and an entry of the path of modules.

    Returns the file that is there once one of its modules has run.
    """
    mark = tmp_path / "ran"
    folder = tmp_path / "evil"
    folder.mkdir()
    for module in MODULES:
        (folder / f"{module}.py").write_text(f"open({str(mark)!r}, 'w').write(__name__)\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", ":.:../evil")
    return mark


def first_message(program, *jobs):
    """What a worker answers first."""
    with Worker(program, [Message("profile", job) for job in jobs]) as worker:
        while not (messages := worker.receive(1.0)):
            pass
    return messages[0]
