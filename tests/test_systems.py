"""Enplace starts where Linux's own modules and functions do not exist."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ONLY_POSIX = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty", "posix")
ONLY_POSIX_NAMES = {
    "os": {"fork", "killpg", "pidfd_open", "sched_getaffinity", "setsid", "getuid", "O_NOFOLLOW"}
    | {"O_NONBLOCK", "O_ASYNC", "getpgid", "waitpid", "mkfifo", "sysconf", "uname"},
    "signal": {"SIGKILL", "SIGHUP", "SIGBUS", "SIGXCPU", "SIGPIPE", "SIGALRM", "SIGUSR1"},
    "select": {"epoll", "poll"},
    "selectors": {"EpollSelector"},
    "socket": {"MSG_NOSIGNAL", "AF_UNIX"},
}
ALLOWED = (
    "enplace/system.py",
    "enplace/processes/child.py",
    "enplace/processes/scratch.py",
    "enplace/frameworks/tensorflow/",
)
"""They ask first whether the system has them; TensorFlow's workers run on Linux."""

BLOCK = f"""
import builtins, importlib, os, signal, socket, sys
import numba, numpy, platformdirs, click, tqdm  # these ask first
from PySide6 import QtCore, QtGui, QtSvg, QtWidgets
import asyncio, multiprocessing, subprocess, tempfile

usual = builtins.__import__
def guarded(name, globals=None, *rest, **others):
    if name in {ONLY_POSIX!r} and str((globals or {{}}).get("__name__")).startswith("enplace"):
        raise ImportError(name)
    return usual(name, globals, *rest, **others)
builtins.__import__ = guarded
for module, names in {ONLY_POSIX_NAMES!r}.items():
    for name in names:
        if hasattr(sys.modules.get(module), name):
            delattr(sys.modules[module], name)
sys.platform = sys.argv[1]
for name in sys.argv[2:]:
    importlib.import_module(name)
"""


def modules(folder: str, *but: str) -> list[str]:
    paths = sorted((ROOT / folder).rglob("*.py"))
    names = [".".join(path.relative_to(ROOT / folder).with_suffix("").parts) for path in paths]
    names = [name.removesuffix(".__init__") for name in names]
    return [name for name in names if not name.startswith(but) and not name.endswith("__main__")]


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_every_module_can_be_imported_on_other_systems(platform):
    workers = tuple(f"enplace.frameworks.{name}." for name in ("tensorflow", "onnx", "torch"))
    names = modules("core", *workers) + modules("app")
    command = [sys.executable, "-c", BLOCK, platform, *names]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


MENTIONED = re.compile(
    "|".join(
        [
            rf"\bimport\b.*\b({'|'.join(ONLY_POSIX)})\b",
            *(rf"\b{module}\.({'|'.join(names)})\b" for module, names in ONLY_POSIX_NAMES.items()),
        ]
    )
)
"""What may be a use: few modules have such text, so that few need be parsed."""


def test_nothing_but_the_modules_for_it_uses_what_only_linux_has():
    found = []
    for path in sorted([*(ROOT / "core").rglob("*.py"), *(ROOT / "app").rglob("*.py")]):
        where = path.relative_to(ROOT).as_posix().partition("/")[2]
        text = path.read_text(encoding="utf-8")
        if MENTIONED.search(text) and not where.startswith(ALLOWED):
            tree = ast.parse(text)
            found += [f"{where}:{line}" for node in ast.walk(tree) if (line := only_posix(node))]
    assert found == []


def only_posix(node: ast.AST) -> int:
    """Return the line of what only Linux has; 0 if the node is nothing like that."""
    match node:
        case ast.Attribute(ast.Name(module), name) if name in ONLY_POSIX_NAMES.get(module, ()):
            return node.lineno
        case ast.Import(names) if any(each.name in ONLY_POSIX for each in names):
            return 0 if node.col_offset else node.lineno  # within a function, it is asked for
    return 0
