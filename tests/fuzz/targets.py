"""What is fuzzed: for each target, valid files, and the function that reads one."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests import inputs

from enplace.machine import simulate
from enplace.names.rules import find_matching, read_rules
from enplace.placers import place
from enplace.processes.wire import Message, encode, read
from enplace.readers import read_plan, read_profile, read_project
from enplace.readers.clusters import cluster_from, presets
from enplace.readers.samples import samples
from enplace.values.problem import Problem
from enplace.writers import write_plan, write_profile, write_project


@dataclass(frozen=True)
class Target:
    """A reader.

    Attributes
    ----------
    seeds : list of bytes
        Valid files.
    read : callable
        Takes a path; everything that a person would do next with what it holds belongs here.
    """

    seeds: list[bytes]
    read: Callable[[Path], object]


def small_problem() -> Problem:
    """A problem with the tiny GPU profile of the tests."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.json"
        path.write_text(json.dumps(inputs.tf_profile()))
        return Problem(read_profile(path), presets()["pcie-2"])


def targets() -> dict[str, Target]:
    """Return the targets that need no TensorFlow."""
    problem = small_problem()
    schedule = place(problem, "heft").schedule
    texts = [inputs.tarnawski(), inputs.text_form(), inputs.tf_profile()]
    measured = {**inputs.text_form(), "measured": _MEASURED}
    rules = [b"t0/.* -> GPU:1\n# none\nw|b -> 0\n"]
    return {
        "profile": Target([_json(text) for text in texts], _open),
        "measured block": Target([_json(measured)], _open),
        "cluster": Target(
            [_json(inputs.cluster_file())], lambda path: cluster_from(str(path), problem.profile)
        ),
        "plan": Target(
            [_written(lambda path: write_plan(path, problem, schedule.plan, schedule))],
            lambda path: read_plan(path, problem),
        ),
        "rules": Target(rules, lambda path: read_rules(str(path), problem)),
        "pin": Target(
            [b"t0/.*", b"(w|t0)/[a-z]{2,9}"],
            lambda path: find_matching(path.read_text(errors="replace"), problem.profile, "--pin"),
        ),
        "enplace": Target(
            [
                _written(lambda path: write_profile(path, problem.profile)),
                _written(lambda path: write_project(path, _project(problem, schedule.plan))),
                next(each.path.read_bytes() for each in samples() if "rnnlm" in each.path.name),
            ],
            read_project,
        ),
        "message": Target(
            [encode(Message("solve", {"a": [1, "x"]}, {"device": schedule.plan.device}))],
            _receive,
        ),
    }


_MEASURED = {
    "step_time_us": 12.5,
    "op_devices": {"net/a": "GPU:0"},
    "op_kernels": {"net/a": 2},
    "op_deviation": {"net/a": 0.1},
    "peak_bytes": {"GPU:0": 100},
    "launch_gap_us": 1.5,
    "op_overhead_us": 0.5,
    "cluster": inputs.cluster_file(),
    "links": [],
    "devices": "cpu:2",
    "source": {
        "path": "/x/train.py",
        "kind": "script",
        "arguments": ["--batch", "2"],
        "loss": "",
        "optimizer": "",
        "batch_size": 0,
        "signature": "",
        "framework_name": "tensorflow",
    },
    "function": "step",
    "left_out": ["a", "b"],
    "compiled": False,
    "steps": 20,
    "warm_ups": 3,
    "config": {"layers": "2"},
    "backward": [1],
    "split_lengths": {},
}


def _json(data: object) -> bytes:
    return json.dumps(data).encode()


def _written(write: Callable[[Path], object]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.enplace"
        write(path)
        return path.read_bytes()


def _project(problem: Problem, plan: object) -> object:
    from enplace.readers import Project

    return Project(
        problem.profile, problem.cluster, {0: 1}, ((2, 3),), frozenset({(5, 0)}), (("heft", plan),)
    )


def _open(path: Path) -> None:
    """Read a profile, place it with the quickest method, and simulate the plan."""
    profile = read_profile(path)
    problem = Problem(profile, presets()["pcie-2"])
    plan = place(problem, "single").plan
    simulate(problem, plan)


def _receive(path: Path) -> None:
    with path.open("rb") as stream:
        while read(stream):
            pass
