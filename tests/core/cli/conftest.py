"""A small model on disk, and the ``enplace`` command run in the process of the test."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from enplace.cli import run

MIB = 1 << 20
OPS = [f"encoder/layer_{i}/{part}" for i in range(3) for part in ("MatMul", "Relu")] + ["loss"]


class Done(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


def model(names: list[str] = OPS, **more: Any) -> dict[str, Any]:
    """Return a chain of ops; each has 100 µs of work, 4 MiB of variables and 1 MiB of output."""
    ops = [
        {"name": name, "type": "MatMul", "time_us": {"gpu": 100.0, "cpu": 900.0}}
        | {"persistent_bytes": 4 * MIB}
        for name in names
    ]
    edges = [{"src": a, "output": 0, "dst": b, "bytes": MIB} for a, b in pairwise(names)]
    return {"format": "enplace-profile/1", "name": "tiny", "ops": ops, "edges": edges} | more


def machine(capacity_bytes: int = 1 << 30) -> dict[str, Any]:
    return {
        "name": "pair",
        "devices": [
            {"name": f"GPU:{i}", "kind": "gpu", "capacity_bytes": capacity_bytes} for i in range(2)
        ],
        "default_links": {"gpu-gpu": {"b0_us": 5.0, "b1_us_per_byte": 1e-5}},
    }


@pytest.fixture
def enplace(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    def call(*arguments: object) -> Done:
        capsys.readouterr()
        status = run([str(argument) for argument in arguments])
        output = capsys.readouterr()
        return Done(status, output.out, output.err)

    return call


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, which holds ``p.json``, ``c.json`` and ``small.json``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.json").write_text(json.dumps(model()))
    (tmp_path / "c.json").write_text(json.dumps(machine()))
    (tmp_path / "small.json").write_text(json.dumps(machine(10 * MIB)))
    return tmp_path
