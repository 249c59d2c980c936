"""Stands in for ``torchrun`` on one machine: its processes are forks, and import PyTorch once.

Usage: forked_ranks.py --nproc-per-node=N -m MODULE WORDS...; other options are passed over.
"""

from __future__ import annotations

import importlib
import os
import runpy
import socket
import subprocess
import sys
from typing import Any

import pytest

from forking import end_after

TORCHRUN = ["-m", "torch.distributed.run"]


def fork_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the processes of pipelines forked, not started by ``torchrun``, until the test ends."""
    start = subprocess.Popen

    def start_forks(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        at = command.index(TORCHRUN[0])
        assert command[at : at + 2] == TORCHRUN
        return start([*command[: at - 1], __file__, *command[at + 2 :]], **options)

    monkeypatch.setattr(subprocess, "Popen", start_forks)


def main(words: list[str]) -> int:
    """Run a module in some processes; return 1 if one of them fails."""
    (number,) = (each for each in words if each.startswith("--nproc-per-node="))
    world = int(number.partition("=")[2])
    module, *sys.argv[1:] = words[words.index("-m") + 1 :]
    importlib.import_module("torch.distributed.pipelining")
    importlib.import_module(module)
    del sys.modules[module]  # else Python warns that it runs what is imported
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    for rank in range(world):
        if not os.fork():
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            end_after(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))
    statuses = [os.wait()[1] for _ in range(world)]
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
