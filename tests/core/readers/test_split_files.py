"""Splits in plan files, projects and messages between processes."""

import json

import numpy as np
import pytest
from tests.core.values.splits.test_splits import training_step

from enplace.cli import run
from enplace.errors import FileError, SplitError
from enplace.machine import simulate
from enplace.placers import place
from enplace.processes.codecs import plan_from, plan_message, problem_from, problem_to_json
from enplace.readers import Project, read_plan, read_plan_alone, read_project
from enplace.values.problem import Problem, split_problem
from enplace.values.result import Result
from enplace.writers import write_plan, write_profile, write_project
from problems import cluster_of


@pytest.fixture
def split():
    """A problem and a plan that splits its ops."""
    problem = Problem(training_step(), cluster_of(2, b1_us_per_byte=1e-6))
    plan = place(problem, "os-dpos").plan
    assert plan.splits
    return problem, plan


@pytest.fixture
def path(split, tmp_path):
    """The file of the plan."""
    problem, plan = split
    schedule = simulate(problem, plan)
    write_plan(tmp_path / "plan.json", Result(schedule))
    return tmp_path / "plan.json"


def same(one, other):
    return (
        np.array_equal(one.device, other.device)
        and np.array_equal(one.position, other.position)
        and one.splits == other.splits
    )


def test_a_plan_file_contains_the_splits(split, path):
    problem, plan = split
    found = read_plan(path, problem)
    assert same(found.plan, plan)
    assert found.same_graph
    assert found.problem.splits == plan.splits
    assert not found.missing + found.unknown
    lone = read_plan_alone(path)
    bare, alone = lone.problem, lone.plan
    assert alone.splits == plan.splits
    at = dict(zip(bare.profile.op_names, alone.device.tolist(), strict=True))
    assert at == dict(zip(found.problem.profile.op_names, plan.device.tolist(), strict=True))
    simulate(bare, alone)  # its ops are already parts
    schedule = simulate(problem, plan)
    assert lone.step_time_us == schedule.makespan_us
    assert list(lone.peak_bytes.values()) == schedule.peak_bytes.tolist()


def test_the_file_of_a_plan_without_splits_has_none(split, tmp_path):
    problem, _ = split
    plan = place(problem, "dpos").plan
    write_plan(tmp_path / "plain.json", Result(simulate(problem, plan)))
    assert "splits" not in json.loads((tmp_path / "plain.json").read_text())
    assert read_plan(tmp_path / "plain.json", problem).plan.splits == ()


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({"op": "relu", "dimension": "batch"}, r"splits\[0\]: 'parts' is missing"),
        ({"op": "relu", "dimension": "batch", "parts": 1}, r"splits\[0\].parts: .* from 2 to 256"),
        ({"op": "relu", "dimension": "batch", "parts": 2, "n": 1}, "'n' means nothing here"),
    ],
)
def test_a_damaged_split_is_named(split, path, entry, complaint):
    data = json.loads(path.read_text()) | {"splits": [entry]}
    path.write_text(json.dumps(data))
    with pytest.raises(FileError, match=rf"plan.json: .*{complaint}"):
        read_plan(path, split[0])


def test_a_split_that_the_graph_does_not_allow_is_refused(split, path):
    entry = {"op": "norm", "dimension": "batch", "parts": 2}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"splits": [entry]}))
    with pytest.raises(SplitError, match=r"plan\.json: an op of type 'FusedBatchNormV3'"):
        read_plan(path, split[0])


def test_a_project_keeps_plans_of_split_graphs(split, tmp_path):
    problem, plan = split
    whole = place(problem, "dpos").plan
    write_project(
        tmp_path / "p.enplace",
        Project(
            problem.profile,
            problem.cluster,
            plans=(("whole", whole), ("split", plan)),
            splits=plan.splits,
        ),
    )
    found = read_project(tmp_path / "p.enplace")
    assert same(found.plans[0][1], whole)
    assert same(found.plans[1][1], plan)
    assert found.splits == plan.splits


def test_a_project_whose_plans_split_without_end_is_refused(split, tmp_path, monkeypatch):
    problem, plan = split
    path = tmp_path / "p.enplace"
    twice = (("first", plan), ("second", plan))  # the same graph counts once
    write_project(path, Project(problem.profile, problem.cluster, plans=twice))
    n_edges = split_problem(problem, plan.splits).profile.n_edges
    monkeypatch.setattr("enplace.readers.archive.MOST_SPLIT_GROWTH", 0)
    monkeypatch.setattr("enplace.readers.archive.MOST_SPLIT_EDGES", 3 * n_edges)
    assert len(read_project(path).plans) == 2
    monkeypatch.setattr("enplace.readers.archive.MOST_SPLIT_EDGES", n_edges)
    with pytest.raises(FileError, match=r"plans\[0\]: the plans split more ops"):
        read_project(path)


def test_messages_keep_the_splits_of_problems_and_plans(split):
    problem, plan = split
    assert same(plan_from(plan_message("solved", plan, {})), plan)
    graph = split_problem(problem, plan.splits)
    assert problem_from(graph.profile, problem_to_json(graph)).splits == plan.splits


def test_the_commands_accept_plans_with_splits(split, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_profile("p.json", split[0].profile)
    plan = ["p.json", "plan.json"]
    place = ["place", "p.json", "--cluster", "a100-2-nvlink", "--method", "os-dpos"]
    assert run([*place, "-o", "plan.json", "--json"]) == 0
    placed = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "plan.json").read_text())["splits"]
    assert placed["split_ops"] > 0
    assert placed["expert_step_time_us"] > placed["step_time_us"]
    assert run(["simulate", *plan, "--schedule", "schedule.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time_us"] == placed["step_time_us"]
    ops = {entry["op"] for entry in json.loads((tmp_path / "schedule.json").read_text())["ops"]}
    assert "product/split/part_0" in ops
    for form in ("csv", "trace", "svg", "html"):
        assert run(["export", *plan, "--format", form, "-o", f"out.{form}"]) == 0
    assert run(["export", *plan, "--format", "python", "-o", "out.py"]) == 2
    assert "a Python module of devices only places ops" in capsys.readouterr().err
    start = ["place", "p.json", "--cluster", "a100-2-nvlink", "--start", "plan.json"]
    capsys.readouterr()
    assert run([*start, "--option", "rounds=1", "--json"]) == 0
    better = json.loads(capsys.readouterr().out)
    assert better["split_ops"] == placed["split_ops"]
    assert better["step_time_us"] <= placed["step_time_us"]
