"""Stands in for ``torchrun`` on one machine: its processes are forks, and import PyTorch once.

Usage: forked_ranks.py --nproc-per-node=N [--local-ranks-filter=RANK] (-m MODULE | SCRIPT) WORDS...;
further options are passed over.
"""

from __future__ import annotations

import importlib
import os
import runpy
import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from forking import end_after, popen_fork

TORCHRUN = ["-m", "torch.distributed.run"]
IMPORTED = ("torch.distributed.pipelining", "enplace.frameworks.torch.pipelines.measured")


def fork_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the processes of pipelines forked from this one, not started by ``torchrun``."""
    _import_all()
    start = subprocess.Popen

    def start_forks(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        at = command.index(TORCHRUN[0])
        assert command[at : at + 2] == TORCHRUN
        return popen_fork(start, [sys.executable, __file__, *command[at + 2 :]], **options)

    monkeypatch.setattr(subprocess, "Popen", start_forks)


def _import_all() -> None:
    for name in IMPORTED:
        importlib.import_module(name)


def main(words: list[str]) -> int:
    """Run a module or a script in some processes; return 1 if one of them fails."""
    _import_all()
    options = {}
    while words[0].startswith("--"):
        name, _, options[name] = words.pop(0).partition("=")
    is_module = words[0] == "-m"
    target, *rest = words[is_module:]
    sys.argv[:] = [target, *rest]
    sys.path[0] = os.getcwd()
    sys.modules.pop(target, None)  # else Python warns that it runs what is imported
    world = int(options["--nproc-per-node"])
    # As torchrun does, keep the store: in a process of the pipeline it would end with that process,
    # and the others could not learn that it has told why.
    store = importlib.import_module("torch").distributed.TCPStore("127.0.0.1", 0, is_master=True)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    os.environ |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    run = partial(runpy.run_module, alter_sys=True) if is_module else runpy.run_path
    for rank in range(world):
        if not os.fork():
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            if options.get("--local-ranks-filter", str(rank)) != str(rank):
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            end_after(lambda: run(target, run_name="__main__"))
    statuses = [os.wait()[1] for _ in range(world)]
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
