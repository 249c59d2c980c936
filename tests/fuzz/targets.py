"""What is fuzzed: for each target, valid files, and the function that reads one."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from random import Random

from tests import inputs
from tests.fuzz.multiply import SWOLLEN, VALUES, multiply
from tests.fuzz.mutate import mutate

from enplace.frameworks.source import Source
from enplace.frameworks.trust import may_run, trust
from enplace.machine import simulate
from enplace.names.rules import find_matching, read_rules
from enplace.placers import place
from enplace.processes.wire import Message, encode, read
from enplace.readers import read_constraints, read_plan, read_profile, read_project
from enplace.readers.clusters import cluster_from, presets
from enplace.readers.samples import samples
from enplace.values.problem import Problem
from enplace.values.profile import Profile
from enplace.values.result import Result
from enplace.values.schedule import Schedule
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
    mutate : callable
        Takes a seed and a source of random numbers, and returns a broken file.
    name : str
        The file's path in a folder.
    neighbours : dict
        By its path there, what else the folder holds.
    """

    seeds: list[bytes]
    read: Callable[[Path], object]
    mutate: Callable[[bytes, Random], bytes] = mutate
    name: str = "input"
    neighbours: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """A target that is built when it is needed, which may take long.

    Attributes
    ----------
    build : callable
        Makes the target.
    share : float
        How many files it gets, relative to the others.
    harmless : tuple of str
        Further outcomes that are no fault.
    """

    build: Callable[[], Target]
    share: float = 1.0
    harmless: tuple[str, ...] = ()


@cache
def small_problem() -> Problem:
    """A problem with the tiny GPU profile of the tests, and an order of two of its ops."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.json"
        path.write_text(json.dumps(inputs.tf_profile()))
        problem = Problem(read_profile(path), presets()["pcie-2"])
    return problem.constrained(before=[tuple(problem.profile.topological_order[[0, -1]].tolist())])


@cache
def small_schedule() -> Schedule:
    """A plan for it, simulated."""
    return place(small_problem(), "heft").schedule


def use(profile: Profile) -> None:
    """Place a profile with quick methods, and simulate the plans."""
    problem = Problem(profile, presets()["pcie-2"])
    for method in ("single", "m-etf", "heft"):
        simulate(problem, place(problem, method).plan)


def _profile() -> Target:
    texts = [inputs.tarnawski(), inputs.text_form(), inputs.tf_profile()]
    return Target([_json(text) for text in texts], _open)


def _measured() -> Target:
    return Target([_json({**inputs.text_form(), "measured": _MEASURED})], _open)


def _cluster() -> Target:
    profile = small_problem().profile
    return Target([_json(inputs.cluster_file())], lambda path: cluster_from(str(path), profile))


def _plan() -> Target:
    problem, schedule = small_problem(), small_schedule()
    return Target(
        [_written(lambda path: write_plan(path, Result(schedule)))],
        lambda path: read_plan(path, problem),
    )


def _constraints() -> Target:
    free = small_problem().constrained(before=())
    ops = free.profile.op_names
    rows = {
        "pin": [[ops[5], "GPU:1"]],
        "forbid": [[ops[5], "GPU:0"], [ops[4], "GPU:7"]],
        "colocate": [[ops[2], ops[3]]],
        "before": [[ops[op] for op in pair] for pair in small_problem().before],
    }
    return Target(
        [_json({"format": "enplace-constraints/1", **rows})],
        lambda path: read_constraints(path, free),
    )


def _rules() -> Target:
    return Target(
        [b"t0/.* -> GPU:1\n# none\nw|b -> 0\n"],
        lambda path: read_rules(str(path), small_problem()),
    )


def _many_rules() -> Target:
    """Files of hundreds of rules whose regexes take long, for thousands of ops."""
    ops = [{"name": f"layer_{i % 50}/op{i}", "time_us": {"gpu": 1}} for i in range(1000)]
    text = {"format": "enplace-profile/1", "name": "many", "ops": ops, "edges": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.json"
        path.write_text(json.dumps(text))
        problem = Problem(read_profile(path), presets()["pcie-2"])
    pieces = ("o(.*){1,50}0$", "(p[0-9]{0,3}(.*)){1,20}1$", "layer_1", ".*", "op1", "(?i)OP[13]$")

    def repeat(content: bytes, draw: Random) -> bytes:
        if draw.random() < SWOLLEN:
            return gzip.compress(content + b"\n" * draw.choice(VALUES), 1, mtime=0)
        n_lines = draw.randrange(999)
        lines = (f"{draw.choice(pieces)} -> {draw.randrange(2)}" for _ in range(n_lines))
        return "\n".join(lines).encode()

    return Target([b"op -> 0"], lambda path: read_rules(str(path), problem), repeat)


def _pin() -> Target:
    profile = small_problem().profile
    return Target(
        [b"t0/.*", b"(w|t0)/[a-z]{2,9}"],
        lambda path: find_matching(path.read_text(errors="replace"), profile, "--pin"),
    )


def _enplace() -> Target:
    problem = small_problem()
    return Target(
        [
            _written(lambda path: write_profile(path, problem.measured_profile)),
            _written(lambda path: write_project(path, _project(problem, small_schedule().plan))),
            next(each.path.read_bytes() for each in samples() if "rnnlm" in each.path.name),
        ],
        read_project,
    )


def _message() -> Target:
    arrays = {"device": small_schedule().plan.device}
    return Target([encode(Message("solve", {"a": [1, "x"]}, arrays))], _receive)


def _trusted() -> Target:
    """The file of trusted places: if it is damaged, nothing is trusted, and it can be replaced."""
    folder = Path("/x/trusted")
    known, new = (
        Source(str(folder / "train.py"), "script", ("--a",)),
        Source("/y/new.keras", "keras"),
    )
    commands = [json.dumps(["script", str(folder), known.path, "--a"], separators=(",", ":"))]
    text = {"format": "enplace-trust/1", "places": [str(folder)], "commands": commands}

    def read(path: Path) -> None:
        os.environ["XDG_CONFIG_HOME"] = str(path.parents[1])
        may_run(known, brought=True)
        assert not may_run(new, brought=False)
        trust(new)
        assert may_run(new, brought=True)

    return Target([_json(text)], read, name="enplace/trusted.json")


def _copy_of_work() -> Target:
    """What the studio finds after a crash."""
    from tests.fuzz.studio_files import copy_of_work

    return copy_of_work()


def _shown(build: Callable[[], Target], name: str) -> Callable[[], Target]:
    """Return how to make a target whose files open in the studio."""

    def make() -> Target:
        from tests.fuzz.studio_files import show

        return replace(build(), read=show, name=name)

    return make


def _multiplied(build: Callable[[], Target]) -> Callable[[], Target]:
    """Return how to make a target whose files are valid in each place but long."""
    return lambda: replace(build(), mutate=multiply)


def _of_tensorflow(name: str) -> Callable[[], Target]:
    def build() -> Target:
        os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        from tests.fuzz import tensorflow_files

        target: Target = getattr(tensorflow_files, name)()
        return target

    return build


def _of_onnx(name: str) -> Callable[[], Target]:
    def build() -> Target:
        from tests.fuzz import onnx_files

        target: Target = getattr(onnx_files, name)()
        return target

    return build


_ENDS = ("crash",)
"""A framework's library may end the worker with a model: the worker is there for it."""

OF_ONNX = {"onnx model": Entry(_of_onnx("onnx_model"), 0.5, _ENDS)}

OF_TENSORFLOW = {
    "trace": Entry(_of_tensorflow("trace"), 0.5),
    "meta graph": Entry(_of_tensorflow("meta_graph"), 0.05, _ENDS),
    "graph": Entry(_of_tensorflow("graph"), 0.05, _ENDS),
    "saved model": Entry(_of_tensorflow("saved_model"), 0.02, _ENDS),
    "keras model": Entry(_of_tensorflow("keras_model"), 0.01, _ENDS),
}

OTHERS = {
    "profile": Entry(_profile),
    "measured block": Entry(_measured),
    "cluster": Entry(_cluster),
    "plan": Entry(_plan),
    "constraints": Entry(_constraints),
    "rules": Entry(_rules),
    "pin": Entry(_pin),
    "enplace": Entry(_enplace),
    "message": Entry(_message),
    "trusted places": Entry(_trusted),
    "copy of work": Entry(_copy_of_work),
    "shown profile": Entry(_shown(_profile, "work.json"), 0.2),
    "shown project": Entry(_shown(_enplace, "work.enplace"), 0.1),
}

MULTIPLIED = {
    f"long {name}": Entry(_multiplied(build), 0.02)
    for name, build in {
        "profile": _profile,
        "measured block": _measured,
        "cluster": _cluster,
        "plan": _plan,
        "constraints": _constraints,
        "enplace": _enplace,
        "copy of work": _copy_of_work,
        "shown profile": _shown(_profile, "work.json"),
    }.items()
}

MULTIPLIED |= {
    "long rules": Entry(_many_rules, 0.02),
    "long trace": Entry(_of_tensorflow("long_trace"), 0.02),
    "long onnx model": Entry(_of_onnx("long_onnx_model"), 0.02),
}

TARGETS = OTHERS | OF_TENSORFLOW | OF_ONNX | MULTIPLIED

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

    constraints = problem.constraints.replaced(
        pins={0: 2}, together=((2, 3),), forbidden={(4, 0)}, stay_close=[(((0, 2),), 1)]
    )
    return Project(problem.measured_profile, problem.cluster, constraints, (("heft", plan),))


def _open(path: Path) -> None:
    use(read_profile(path))


def _receive(path: Path) -> None:
    with path.open("rb") as stream:
        while read(stream):
            pass
