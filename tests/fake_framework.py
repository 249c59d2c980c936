"""Replace TensorFlow's worker, or add a second framework."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from enplace import frameworks
from enplace.frameworks.tensorflow import framework
from enplace.processes.worker import WorkerProgram

SECOND_FRAMEWORK = '''
"""A framework whose models are scripts and .flame files, which it runs and checks by module.

It serves no tasks and has no logical devices. Its workers are this Python program.
"""

import sys

from enplace.errors import FileError
from enplace.frameworks.framework import Framework, ModelKind
from enplace.frameworks.wishes import PROGRAM
from enplace.option import SWITCH, TEXT, WHOLE, Option
from enplace.processes.worker import WorkerProgram
from enplace.writers.registry import Exporter

SPARKS = Option("batch-size", WHOLE, 0, "Sparks. [default: one spark]", least=1, most=9)
LOSS = Option("loss", TEXT, "", "What is left.", suggested=("soot",))
WICK = Option("wick-length", ("short", "long"), "", "How long it burns.")
COMPILE = Option("compile", SWITCH, False, "Whether it is compiled first.")
BRIGHTNESS = Option("brightness", WHOLE, 1, "How bright it is.", least=1, most=3)


def why_not(result):
    return "a flame does not jump" if result.plan.method == "round-robin" else ""


def halves(profile):
    middle = profile.n_ops // 2
    return [range(middle), range(middle, profile.n_ops)]


def recognise(path):
    if path.suffix not in (".py", ".flame"):
        raise FileError(f"{path}: not a flame")
    return path, "script" if path.suffix == ".py" else "flame"


def apply(path, brightness=1):
    return f"{path} lit" + "!" * (brightness - 1)


FRAMEWORK = Framework(
    name="Torchlight",
    module="torchlight",
    extra="torchlight",
    worker=WorkerProgram(WORKER, "Torchlight"),
    runs=True,
    applier="enplace.frameworks.torchlight.framework:apply",
    kinds=(
        ModelKind("script", "A script by torchlight.", (*PROGRAM, COMPILE)),
        ModelKind("module", "A module by torchlight.", (*PROGRAM, COMPILE)),
        ModelKind("flame", "A flame. It burns once.", (SPARKS, LOSS, WICK)),
    ),
    models="a flame (.flame)",
    apply_options=(BRIGHTNESS,),
    run_options=(BRIGHTNESS,),
    suffixes=(".flame",),
    imports=("torchlight",),
    recognise=recognise,
    exporters=(
        Exporter("flame", "Torchlight script", ".fl", lambda result: "burn", why_not=why_not),
    ),
    grains={"half": halves},
)
'''


def use_worker(monkeypatch, *command):
    """Let a command do the jobs of this process."""
    program = WorkerProgram(command, "TensorFlow", framework.explain_end)
    monkeypatch.setattr(framework, "FRAMEWORK", replace(framework.FRAMEWORK, worker=program))


def code_to_use_worker(*command):
    """Return Python code that lets a command do the jobs of another process."""
    return (
        "from dataclasses import replace\n"
        "from enplace.frameworks.tensorflow import framework\n"
        "from enplace.processes.worker import WorkerProgram\n"
        f"program = WorkerProgram({command!r}, 'TensorFlow', framework.explain_end)\n"
        "framework.FRAMEWORK = replace(framework.FRAMEWORK, worker=program)\n"
    )


def interrupt(worker, *words):
    """Run a command whose worker hangs, and send it SIGINT, as Ctrl-C does, once that works.

    It must end in one line, without a traceback.
    """
    code = (
        f"{code_to_use_worker(sys.executable, str(worker), 'hang')}"
        "framework.FRAMEWORK = replace(framework.FRAMEWORK, module='json')\n"
        "import sys; from enplace.processes import worker\n"
        "take = worker.take\n"
        "def announce(buffer):\n"
        "    message = take(buffer)\n"
        "    if message: print('working', flush=True)\n"
        "    return message\n"
        "worker.take = announce\n"
        f"from enplace.cli import main; sys.argv[1:] = {words!r}; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "working\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "enplace: interrupted"
    assert len(err.split("\n\n")) <= 2


def add_second_framework(
    monkeypatch,
    tmp_path: Path,
    worker: tuple[str, ...] = (),
    folder: str = "torchlight",
) -> None:
    """Add a framework named Torchlight as one folder, and nothing else."""
    package = tmp_path / "frameworks" / folder
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "framework.py").write_text(f"WORKER = {worker!r}\n" + SECOND_FRAMEWORK)
    monkeypatch.setattr(frameworks, "__path__", [*frameworks.__path__, str(package.parent)])
    for name in (folder, f"{folder}.framework"):
        monkeypatch.delitem(sys.modules, f"{frameworks.__name__}.{name}", raising=False)
