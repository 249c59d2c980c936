"""A current folder with modules that no process may import."""

import pytest

from enplace.processes.wire import Message
from enplace.processes.worker import Worker

MODULES = ("argparse", "click", "io", "json", "numpy", "os", "queue", "scipy", "tensorflow")


@pytest.fixture
def evil_folder(tmp_path, monkeypatch):
    """Make the folder current and add it to ``PYTHONPATH``.

    Returns a file that exists once one of its modules has run.
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
    """Return the first answer of a worker."""
    with Worker(program, [Message("profile", job) for job in jobs]) as worker:
        while not (messages := worker.receive(1.0)):
            pass
    return messages[0]
