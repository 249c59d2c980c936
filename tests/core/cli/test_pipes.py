"""A closed standard output ends the command quietly; any other closed pipe does not."""

import json
import os
import subprocess
import sys

from tests.core.cli.conftest import model

COMMAND = "import sys; from enplace.cli import main; sys.argv[0] = 'enplace'; main()"


def test_a_closed_standard_output_ends_the_command_quietly():
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "methods", "--json"], stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    _, errors = process.communicate()
    assert process.returncode == 141  # as a shell reports SIGPIPE
    assert errors == b""


def test_a_result_written_to_a_closed_standard_output_ends_the_command_quietly(folder):
    (folder / "p.json").write_text(json.dumps(model(["layer_1/MatMul"])))
    words = ["place", "p.json", "--cluster", "pcie-2", "--method", "single", "-o", "/dev/stdout"]
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words], stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (141, b"")


def test_a_solver_that_closes_its_input_does_not_end_the_command(folder):
    (folder / "p.json").write_text(json.dumps(model([f"layer_{i}/MatMul" for i in range(40)])))
    code = (
        "import sys\n"
        "from enplace.processes.worker import WorkerProgram\n"
        "from enplace.solvers import ask_solver as ask\n"
        "ask.handler_program = lambda *_: WorkerProgram((sys.executable, '-c', ''), 'solver')\n"
    )
    words = ["place", "p.json", "--cluster", "c.json", "--method", "pesto", "-o", "plan.json"]
    done = subprocess.run(
        [sys.executable, "-c", code + COMMAND, *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "the solver process ended without a result" in done.stdout
