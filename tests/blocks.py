"""The code blocks of the README and of the manual, for tests that run them as they stand.

A page is run from top to bottom in a folder of its own, which has ``resources`` and ``examples`` of
the checkout. A comment on the line before a block says what to do with it:

- ``<!-- file: NAME -->`` writes it to a file;
- ``<!-- exit status N -->`` expects this status of its last command, where others expect 0;
- ``<!-- not run: REASON -->`` leaves it out.

Without one, ``sh`` is typed into a shell, line by line, ``python`` runs in one namespace for each
page, ``json`` is parsed, and ``text`` is what the block before prints: numbers may differ.
"""

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from enplace.cli import run

ROOT = Path(__file__).parents[1]
README, MANUAL = ROOT / "README.md", ROOT / "docs"
LENT = ("resources", "examples")

FENCE = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*) -->\n)?^```(?P<kind>\S*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
NOT_RUN, TO_FILE, STATUS = "not run: ", "file: ", "exit status "
DIRECTIVE = re.compile(r"\{.*\}")
PROGRESS = re.compile(r"enplace: .*, [\d.]+( min \d+)? s")
COMPILING = re.compile(", after .* of compiling$")
NUMBER = re.compile(r"[−+]?\d[\d.,]*")
SEARCHES = re.compile(r"enplace place (?!.*--(method|objective|rounds))")


@dataclass(frozen=True)
class Block:
    """A code block of a page; ``note`` is the comment before it."""

    page: Path
    line: int
    kind: str
    text: str
    note: str

    @property
    def why_not_run(self) -> str:
        return self.note.removeprefix(NOT_RUN) if self.note.startswith(NOT_RUN) else ""

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}, line {self.line}"


def pages() -> list[Path]:
    """Return the README and every page of the manual that is written by hand."""
    return [README, *sorted(MANUAL.rglob("*.md"))]


def blocks_of(page: Path) -> list[Block]:
    """Return the code blocks of a page, without the directives of Sphinx."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text[: at.start()].count("\n") + 1, at["kind"], at["text"], at["note"] or "")
        for at in FENCE.finditer(text)
        if not DIRECTIVE.fullmatch(at["kind"])
    ]


def commands_of(block: Block) -> list[str]:
    """Return the lines that a person types, without comments."""
    typed = (line.partition(" #")[0].strip() for line in block.text.splitlines())
    return [line for line in typed if line and not line.startswith("#")]


def quick(text: str) -> str:
    """End searches at once: one second, or one round, instead of the time that people give them."""
    text = re.sub(r"--time-limit \d+", "--time-limit 1", text)
    text = re.sub(r"time_limit_s=\d+", "time_limit_s=1", text)
    searches = SEARCHES.match(text)
    return text.replace("--time-limit 1", "") + " --rounds 1" if searches else text


def without_progress(stderr: str) -> str:
    """Return what a command wrote to stderr besides progress, of which slow machines see more."""
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if not PROGRESS.fullmatch(line.rstrip("\n")))


def shell(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess:
    """Run a command in bash."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def prepare(folder: Path) -> None:
    """Give a folder what pages refer to: folders of the checkout, and a script that trains."""
    for name in LENT:
        (folder / name).symlink_to(ROOT / name)
    for block in blocks_of(MANUAL / "getting-started.md"):
        if block.note == f"{TO_FILE}train.py":
            (folder / "train.py").write_text(block.text, encoding="utf-8")


@dataclass
class Reader:
    """Someone who does what pages say, in a folder, from top to bottom.

    Commands of Enplace run in this process, which saves the seconds that they take to start. One
    that was typed before, or differs in its time limit only, is not run again: what it wrote is
    still there. ``enplace profile`` starts TensorFlow anew; ``enplace run`` finds it imported if
    there is a function ``run_python``.
    """

    folder: Path
    run_python: Callable[..., subprocess.CompletedProcess[str]] | None = None
    said: str = ""
    typed: dict[str, str] = field(default_factory=dict)
    names: dict[str, object] = field(default_factory=dict)

    def follow(self, block: Block) -> None:
        """Do what a block says; fail with its place in the page."""
        if block.note.startswith(TO_FILE):
            name = block.note.removeprefix(TO_FILE)
            (self.folder / name).write_text(block.text, encoding="utf-8")
        elif not block.why_not_run:
            getattr(self, f"_{block.kind}")(block)

    def _sh(self, block: Block) -> None:
        *first, last = commands_of(block)
        status = int(block.note.removeprefix(STATUS)) if block.note.startswith(STATUS) else 0
        self.said = "".join([self._type(line, 0, block) for line in first])
        self.said += self._type(last, status, block)

    def _type(self, command: str, status: int, block: Block) -> str:
        command = quick(command)
        if command in self.typed:
            return self.typed[command]
        plain = command.startswith("enplace ")
        do = self._in_this_process if plain else self._as_typed
        if command.startswith("enplace run ") and self.run_python:
            do = self._in_a_warm_process
        returned, out, err = do(command)
        told = f"{block.where}: {command}\n{out}\n{err}"
        assert returned == status, told
        assert "Traceback" not in err, told
        said = out + without_progress(err)
        if plain:
            self.typed[command] = said
        return said

    def _as_typed(self, command: str) -> tuple[int, str, str]:
        done = shell(command, self.folder)
        return done.returncode, done.stdout, done.stderr

    def _in_a_warm_process(self, command: str) -> tuple[int, str, str]:
        assert self.run_python is not None
        done = self.run_python(self.folder, "-m", *shlex.split(command))
        return done.returncode, done.stdout, done.stderr

    def _in_this_process(self, command: str) -> tuple[int, str, str]:
        command, _, target = command.partition(" > ")
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            status = run(shlex.split(command)[1:])
        if target:
            (self.folder / target).write_text(out.getvalue(), encoding="utf-8")
        return status, out.getvalue(), err.getvalue()

    def _python(self, block: Block) -> None:
        code = compile(quick(block.text), block.where, "exec")
        said = io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(said):
            exec(code, self.names)
        self.said = said.getvalue()

    def _json(self, block: Block) -> None:
        json.loads(block.text)

    def _text(self, block: Block) -> None:
        printed = list(map(masked, self.said.splitlines()))
        at = 0
        for line in filter(str.strip, block.text.splitlines()):
            wanted = masked(line)
            assert wanted in printed[at:], f"{block.where}: not printed: {line}\n{self.said}"
            at += printed[at:].index(wanted) + 1


def masked(line: str) -> str:
    """Return a line with every number as ``#`` and single spaces, without the time to compile."""
    return " ".join(NUMBER.sub("#", COMPILING.sub("", line)).split())


def links_of(page: Path) -> list[str]:
    """Return the relative targets of the links and pictures of a page."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
