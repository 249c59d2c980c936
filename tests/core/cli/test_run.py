"""The command as a whole: streams, exit status, imported modules."""

import io
import subprocess
import sys
import warnings

import click
import pytest

from enplace.cli import run
from enplace.cli.answer import Answer, cli, command
from enplace.errors import EnplaceWarning
from enplace.text import table

HEAVY = {"numba", "numpy", "scipy", "networkx", "tqdm"}


@pytest.fixture
def temporary():
    """Register commands for one test."""
    before = dict(cli.commands)
    yield command
    cli.commands.clear()
    cli.commands.update(before)


def python(code: str, **options) -> subprocess.CompletedProcess:
    words = [sys.executable, "-c", code]
    return subprocess.run(words, capture_output=True, check=False, **{"text": True} | options)


@pytest.mark.parametrize("arguments", [["--help"], ["simulate", "--help"], ["--version"], []])
def test_help_imports_no_heavy_modules(arguments):
    code = f"import sys; from enplace.cli import run; s = run({arguments}); print(s, *sys.modules)"
    status, *loaded = python(code).stdout.splitlines()[-1].split()
    assert status == "0"
    assert not HEAVY & set(loaded)


def test_a_current_folder_that_is_gone_is_named(enplace, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    done = enplace("clusters", "pesto", "-o", "pesto.json")
    assert (done.status, done.err) == (
        2,
        "enplace: the current folder is gone; change to one that exists\n",
    )


def test_a_closed_pipe_ends_the_command_quietly():
    code = "from enplace.cli import main; import sys; sys.argv[1:] = ['completion', 'bash']; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.stdin.read(); {code}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    process.stdin.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait()


def test_an_interrupt_ends_the_command_with_one_line(temporary, enplace):
    @temporary("wait")
    def wait() -> Answer:
        raise KeyboardInterrupt

    done = enplace("wait")
    assert done.status == 130
    assert done.err.strip() == "enplace: interrupted"


def test_a_bug_has_its_own_exit_status_and_one_line(temporary, enplace, monkeypatch):
    @temporary("break")
    def break_() -> Answer:
        raise ZeroDivisionError("oh")

    monkeypatch.delenv("ENPLACE_DEBUG", raising=False)
    done = enplace("break")
    assert done.status == 70
    assert "a fault in Enplace, ZeroDivisionError: oh" in done.err
    assert done.err.count("\n") == 1
    monkeypatch.setenv("ENPLACE_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        enplace("break")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("can't start new thread"),
        ImportError("libhighs.so.1: failed to map segment from shared object"),
    ],
)
def test_too_little_memory_is_said_in_one_line(enplace, temporary, error):
    @temporary("fail")
    def fail():
        try:
            raise error
        finally:
            raise OSError("Could not load the library")

    done = enplace("fail")
    assert done.status == 2
    assert done.err.startswith("enplace: not enough memory; ")


def test_a_note_about_a_file_is_one_line_on_stderr(temporary, enplace):
    @temporary("read")
    def read() -> Answer:
        warnings.warn("odd\nunits", EnplaceWarning, stacklevel=1)
        return Answer({"a": 1}, "done")

    done = enplace("read", "--json")
    assert done.err == "enplace: note: odd units\n"
    assert done.document == {"a": 1}


@pytest.mark.parametrize(
    "arguments", [["frob"], ["place"], ["place", "x"], ["--frob"], ["methods", "x", "y"]]
)
def test_wrong_usage_is_one_line_that_points_to_the_help(enplace, arguments):
    done = enplace(*arguments)
    assert (done.status, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert "--help'" in done.err


@pytest.mark.parametrize("name", sorted(set(cli.commands)))
def test_every_command_takes_json(name):
    assert "as_json" in {parameter.name for parameter in cli.commands[name].params}


def test_every_option_has_a_help_text():
    options = [p for c in cli.commands.values() for p in c.params if isinstance(p, click.Option)]
    assert all(option.help for option in options)


def test_characters_that_the_terminal_cannot_show_are_escaped():
    code = "from enplace.cli import run; import sys; sys.exit(run(['clusters', 'celeritas']))"
    done = python(code, env={"PYTHONIOENCODING": "latin-1"}, encoding="latin-1")
    assert done.returncode == 0, done.stderr
    assert "4 × V100" in done.stdout
    assert "GPU 0 \\u2192 GPU 1" in done.stdout


def test_a_full_disk_is_reported_in_one_line(tmp_path):
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-c", "from enplace.cli import main; main()", "methods"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    told = "enplace: output: No space left on device; free some space on the disk\n"
    assert done.stderr == told


def test_ctrl_c_while_the_command_loads_ends_it_with_one_line():
    code = (
        "import sys; from enplace.__main__ import main\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'enplace.cli': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt()); main()"
    )
    done = python(code)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\nenplace: interrupted\n")


def test_table_columns_are_aligned():
    assert table([["a", "bb"], ["ccc", "1"]], "lr") == "a    bb\nccc   1"


def test_run_without_arguments_shows_the_help(capsys):
    assert run([]) == 0
    assert "Commands:" in capsys.readouterr().out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_only(enplace, folder, monkeypatch):
    methods = ("--cluster", "c.json", "--methods", "single,random")
    assert enplace("compare", "p.json", *methods).err == ""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert enplace("compare", "p.json", *methods).status == 0
    assert "random" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r")
