"""Replace TensorFlow's worker."""

from dataclasses import replace

from enplace.frameworks.tensorflow import framework
from enplace.processes.worker import Program


def use_worker(monkeypatch, *command):
    """Let a command do the jobs of this process."""
    program = Program(command, "TensorFlow", framework.explain_end)
    monkeypatch.setattr(framework, "FRAMEWORK", replace(framework.FRAMEWORK, worker=program))


def code_to_use_worker(*command):
    """Return Python code that lets a command do the jobs of another process."""
    return (
        "from dataclasses import replace\n"
        "from enplace.frameworks.tensorflow import framework\n"
        "from enplace.processes.worker import Program\n"
        f"program = Program({command!r}, 'TensorFlow', framework.explain_end)\n"
        "framework.FRAMEWORK = replace(framework.FRAMEWORK, worker=program)\n"
    )
