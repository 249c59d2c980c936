"""A spoilt file is refused in one printable line, never with a traceback."""

import copy
import json
import random
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from enplace.errors import EnplaceError, EnplaceWarning
from enplace.machine import simulate
from enplace.readers import Project, complete_plan, read_plan, read_profile, read_project
from enplace.readers.clusters import cluster_from
from enplace.values.constraints import Constraints
from enplace.values.problem import Problem
from enplace.values.result import Result
from enplace.writers import write_plan, write_project
from inputs import cluster_file, tarnawski, text_form, tf_profile
from problems import cluster_of, plan_of, profile_of

PROFILE = profile_of({"a": 1.0, "b": 2.0}, [("a", "b", 8)])
PROBLEM = Problem(PROFILE, cluster_of(2))
PLAN = plan_of(PROBLEM, {"a": 0, "b": 1})

ODD_VALUES = (
    None, True, -1, 0, 1, 2**63, 10**400, 1e308, float("nan"), float("inf"), 1.5, "", "x",
    "\ud800", "two\nlines", "A" * 5000, [], {}, [1], {"a": 1}, [[]], "GPU:0", "GPU:9",
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def spoil(data: Any, dice: random.Random) -> Any:
    """Return a copy with one to three values replaced or removed."""
    spoilt = copy.deepcopy(data)
    for _ in range(dice.randint(1, 3)):
        if not (found := list(places(spoilt))):
            break
        *steps, key = dice.choice(found)
        parent = spoilt
        for step in steps:
            parent = parent[step]
        if dice.random() < 0.2:
            del parent[key]
        else:
            parent[key] = dice.choice(ODD_VALUES)
    return spoilt


def refused_in_one_line(read: Callable[[], object]) -> bool:
    """Return whether reading was refused, and check that the refusal is one printable line."""
    line = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EnplaceWarning)
            read()
    except EnplaceError as error:
        line = str(error)
    assert line.isprintable(), repr(line)
    return bool(line)


def plan_file(folder: Path) -> Any:
    write_plan(folder / "plan.json", Result(simulate(PROBLEM, PLAN)))
    return json.loads((folder / "plan.json").read_text())


@pytest.mark.parametrize("kind", ["text form", "tarnawski", "gpu profile", "cluster", "plan"])
def test_spoilt_json_is_read_or_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "spoilt.json"
    sound: dict[str, tuple[Any, Callable[[], object]]] = {
        "text form": (text_form(), lambda: read_profile(path)),
        "tarnawski": (tarnawski(), lambda: read_profile(path)),
        "gpu profile": (tf_profile(), lambda: read_profile(path)),
        "cluster": (cluster_file(), lambda: cluster_from(str(path), PROFILE)),
        "plan": (plan_file(tmp_path), lambda: complete_plan(PROBLEM, read_plan(path, PROBLEM))),
    }
    data, read = sound[kind]
    dice, refused = random.Random(7), 0
    for _ in range(150):
        path.write_text(json.dumps(spoil(data, dice)))
        refused += refused_in_one_line(read)
    assert refused > 30


@pytest.mark.parametrize("member", ["enplace.json", "profile.json", "project.json"])
def test_a_spoilt_project_is_read_or_refused(tmp_path: Path, member: str) -> None:
    path = tmp_path / "project.enplace"
    constraints = Constraints(pins={0: 0}, together=((0, 1),), stay_close=[(((1, 0),), 1)])
    project = Project(PROFILE, PROBLEM.cluster, constraints, plans=(("first", PLAN),))
    write_project(path, project)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    dice, refused = random.Random(7), 0
    for _ in range(60):
        spoilt = json.dumps(spoil(json.loads(members[member]), dice)).encode()
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in (members | {member: spoilt}).items():
                archive.writestr(name, content)
        refused += refused_in_one_line(lambda: read_project(path))
    assert refused > 5
