"""A current folder with modules that no process may import."""

import pytest

from enplace.processes.wire import Message
from enplace.processes.worker import Worker

EVIL = "evil was imported"
"""What they write to standard error; a file that some workers write, nobody sees."""

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
        (folder / f"{module}.py").write_text(
            f"import sys\nopen({str(mark)!r}, 'w').write(__name__)\nsys.stderr.write({EVIL!r})\n"
        )
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", ":.:../evil")
    return mark


def first_message(program, *jobs):
    """Return the first answer of a worker."""
    with Worker(program, [Message("profile", job) for job in jobs]) as worker:
        while not (messages := worker.receive(1.0)):
            pass
    return messages[0]


def end_of(program, *jobs):
    """Return the last answer of a worker, and what it wrote to standard error."""
    with Worker(program, [Message("profile", job) for job in jobs]) as worker:
        messages = []
        while not worker.over:
            messages += worker.receive(1.0)
        return messages[-1], worker.last_lines
