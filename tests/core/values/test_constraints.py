"""A kind of constraint says all in one place: a made-up one works everywhere."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.core.placers.problems import gpus, line

import enplace as ep
from enplace.cli import run
from enplace.errors import FileError, PlanError, UnplaceableOpError
from enplace.machine import simulate
from enplace.placers import place
from enplace.processes.codecs import problem_from, problem_to_json
from enplace.readers import read_constraints, read_plan, read_plan_alone, read_profile, read_project
from enplace.readers.archive import Project
from enplace.values.constraints import DEVICE, KINDS, NUMBER, OP, Budget, Constraints, Kind
from enplace.values.plan import check_plan
from enplace.values.problem import Problem
from enplace.values.result import Result
from enplace.writers import write_constraints, write_plan, write_profile, write_project
from enplace.writers.report import report_html

CHAIN = line([10.0, 20, 10, 20], [(i, i + 1, 4) for i in range(3)])


class Even(Kind):
    """A device runs only ops with even numbers."""

    key = "even-only"
    roles = (DEVICE,)
    noun, phrase, label = "even device", "{} runs even ops", "even"
    sentence = "{}: runs only even ops"
    example = "GPU:0"
    help = "Run only even ops on a device."

    def restrict(self, problem, allowed):
        for device in problem.constraints[self.key]:
            allowed[1::2, device] = False

    def fault(self, problem, op, device):
        is_kept_off = op % 2 == 1 and device in problem.constraints[self.key]
        return "it is odd" if is_kept_off else ""


@pytest.fixture
def problem(monkeypatch):
    monkeypatch.setitem(KINDS, Even.key, Even())
    return Problem(CHAIN, gpus(2), Constraints(even_only={0}))


@pytest.fixture
def command(capsys):
    def call(*arguments):
        assert run([str(argument) for argument in arguments]) == 0
        return capsys.readouterr().out

    return call


def test_placers_obey_a_new_kind_and_plans_are_checked(problem):
    for method in ("heft", "single", "expert", "enplace"):
        assert (place(problem, method).plan.device[1::2] == 1).all()
    plan = place(problem, "heft").plan
    with pytest.raises(PlanError, match="'op1' is placed on GPU:0, but it is odd; solve again"):
        check_plan(problem, replace(plan, device=np.zeros(4, dtype=np.int64)))


class Few(Kind):
    """A device runs few ops."""

    key, roles = "few-ops", (DEVICE, NUMBER)
    noun, phrase, label = "limit of ops", "{} runs at most {} ops", "limited"

    def budgets(self, problem):
        for device, most in self.rows(problem.constraints[self.key]):
            yield Budget(np.eye(2)[[device] * 4], most, f"{{}} ops on device {device}")


def test_every_plan_keeps_the_budgets_of_a_new_kind(monkeypatch):
    monkeypatch.setitem(KINDS, Few.key, Few())
    problem = Problem(CHAIN, gpus(2), Constraints(few_ops={(0, 2), (1, 3)}))
    for method in ("heft", "single", "expert", "enplace"):
        plan = place(problem, method).plan
        assert np.count_nonzero(plan.device == 0) in (1, 2)
    with pytest.raises(PlanError, match="4 ops on device 1"):
        check_plan(problem, replace(plan, device=np.ones(4, dtype=np.int64)))
    with pytest.raises(PlanError, match="3 ops on device 0, and other constraints keep them"):
        place(problem.constrained(pins={0: 0, 1: 0, 2: 0}), "single")


def test_a_unit_without_a_device_names_a_new_kind(problem):
    with pytest.raises(
        UnplaceableOpError, match=r"'op1' has no device left; remove .* even devices"
    ):
        problem.constrained(even_only={0, 1})


def test_files_and_messages_carry_a_new_kind(problem, tmp_path):
    bare = problem.constrained(even_only=())
    write_constraints(tmp_path / "team.json", problem)
    assert json.loads((tmp_path / "team.json").read_text())["even-only"] == [["GPU:0"]]
    back = read_constraints(tmp_path / "team.json", bare).problem
    project = Project(CHAIN, problem.cluster, problem.constraints)
    write_project(tmp_path / "p.enplace", project)
    sent = problem_from(CHAIN, json.loads(json.dumps(problem_to_json(problem))))
    for each in (back, read_project(tmp_path / "p.enplace"), sent):
        assert each.constraints["even-only"] == {0}


def test_plans_reports_and_differences_name_a_new_kind(problem, tmp_path, command):
    result = place(problem, "heft")
    write_plan(tmp_path / "new.json", result)
    write_plan(
        tmp_path / "old.json", Result(simulate(problem.constrained(even_only=()), result.plan))
    )
    assert read_plan(tmp_path / "new.json", problem).constraints == {"even-only": ["GPU:0"]}
    assert read_plan_alone(tmp_path / "new.json").constraints == {"even-only": ["GPU:0"]}
    assert "GPU 0: runs only even ops" in report_html(result)
    diff = command("diff", tmp_path / "old.json", tmp_path / "new.json")
    assert "1 even device added: GPU 0" in diff


def test_python_and_the_command_take_a_new_kind(problem, tmp_path, command):
    write_profile(tmp_path / "p.json", CHAIN)
    result = ep.place(tmp_path / "p.json", problem.cluster, "single", even_only="GPU:0")
    assert result.devices["op1"] == result.devices["op3"] == "GPU:1"
    files = (tmp_path / "p.json", "-o", tmp_path / "plan.json")
    command("place", *files, "--cluster=pesto", "--method=single", "--even-only=GPU:0")
    assert json.loads((tmp_path / "plan.json").read_text())["even-only"] == [["GPU:0"]]


@pytest.mark.parametrize(
    "constraints",
    [
        Constraints(pins={0: 1, 2: 0}),
        Constraints(forbidden={(1, 0), (3, 1)}),
        Constraints(locked={0}, pins={0: 0}, together=((0, 1),)),
    ],
)
def test_the_devices_a_kind_allows_are_those_without_a_fault(constraints):
    problem = Problem(CHAIN, gpus(3), constraints)
    for kind in constraints:
        allowed = np.ones((4, 3), dtype=bool)
        kind.restrict(problem, allowed)
        faults = [[kind.fault(problem, op, device) for device in range(3)] for op in range(4)]
        assert allowed.tolist() == [[not fault for fault in row] for row in faults]


def test_a_limit_of_changes_is_read_from_a_plan_and_written_by_name(tmp_path, command):
    write_profile(tmp_path / "p.json", CHAIN)
    files = (tmp_path / "p.json", "--cluster=pesto", "--method=single")
    command("place", *files, "--pin=op3=GPU:1", "-o", tmp_path / "x.json")
    command("place", *files, f"--stay-close={tmp_path / 'x.json'}=0", "-o", tmp_path / "y.json")
    places = {"op0": "GPU:0", "op1": "GPU:0", "op2": "GPU:0", "op3": "GPU:1"}
    written = json.loads((tmp_path / "y.json").read_text())
    assert written["stay-close"] == [[places, 0]]
    assert {row["op"]: row["device"] for row in written["ops"]} == places
    given = ep.read_plan(tmp_path / "x.json", tmp_path / "p.json", "pesto")
    options = {"stay_close": [(given, 1)], "start": None}
    assert ep.place(tmp_path / "p.json", "pesto", "single", **options).devices["op0"] == "GPU:0"
    diff = command("diff", tmp_path / "x.json", tmp_path / "y.json")
    assert "1 change limit added" in diff
    again = command("simulate", tmp_path / "p.json", tmp_path / "y.json")
    assert "step time" in again
    named = read_plan_alone(tmp_path / "y.json").constraints["stay-close"]
    assert named == [(tuple(places.items()), 0)]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("x.json", "^stay-close 'x.json': write PLAN=N, for example 'plan.json=20'"),
        ("none.json=2", "none.json: .*check the path"),
        ("p.json=2", 'p.json: .*not "enplace-plan/1"; choose another file'),
        ([("plan.json", "few")], "^stay-close: 'few' is no number of ops; write 0 or more$"),
        ([("plan.json", -1)], "^stay-close: '-1' is no number of ops"),
    ],
)
def test_a_limit_of_changes_that_cannot_be_read_is_refused(tmp_path, monkeypatch, given, complaint):
    monkeypatch.chdir(tmp_path)
    write_profile("p.json", CHAIN)
    ep.place("p.json", "pesto", "single").save("plan.json")
    with pytest.raises(ep.EnplaceError, match=complaint) as caught:
        ep.place("p.json", "pesto", "single", stay_close=given)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def vgg():
    return read_profile(Path(__file__).parents[3] / "resources/samples/vgg-19.enplace")


def test_a_split_op_is_at_home_on_the_devices_of_its_parts(vgg, tmp_path):
    split = ep.place(vgg, "pesto", "os-dpos")
    assert split.plan.splits
    split.save(tmp_path / "split.json")
    limits = []
    for each in (split, tmp_path / "split.json"):
        result = ep.place(vgg, "pesto", "heft", stay_close=[(each, 9)])
        ((homes, most),) = result.schedule.problem.constraints["stay-close"]
        assert {op for op, _ in homes} == set(range(vgg.n_ops))
        assert len(homes) > vgg.n_ops
        assert most == 9
        limits.append(homes)
    assert set(limits[0]) == set(limits[1])
    result.save(tmp_path / "close.json")
    cluster = result.schedule.problem.cluster
    read = read_plan(tmp_path / "close.json", Problem(vgg, cluster))
    names = {(vgg.op_names[op], cluster.devices[at].name) for op, at in homes}
    assert set(read.constraints["stay-close"][0][0]) == names


def test_a_plan_for_other_devices_or_another_graph_is_no_plan_to_stay_close_to(vgg, tmp_path):
    on_four = ep.place(CHAIN, gpus(4), "single", pins="op3=GPU:3")
    with pytest.raises(PlanError, match=r"the plan: cluster .* has no GPU:3; name a plan for this"):
        ep.place(CHAIN, gpus(2), "heft", stay_close=[(on_four, 1)])
    with pytest.raises(PlanError, match=r"does not place 475 ops .* places 4 ops not in"):
        ep.place(vgg, gpus(4), "heft", stay_close=[(on_four, 1)])
    on_four.save(tmp_path / "four.json")
    longer = line([10.0] * 5, [(i, i + 1, 4) for i in range(4)])
    for each in (on_four, tmp_path / "four.json"):
        with pytest.warns(
            ep.EnplaceWarning, match=r"1 op of the profile \(op4\); only ops of both"
        ):
            result = ep.place(longer, gpus(4), "heft", stay_close=[(each, 0)])
        assert result.devices["op3"] == "GPU:3"


def test_a_kind_with_three_parts_is_refused_when_it_is_made():
    with pytest.raises(TypeError, match="'triple': a row has one part, two, or many with one role"):

        class Triple(Kind):
            key, roles = "triple", (OP, OP, DEVICE)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (5, r"stay-close\[0\]: must be a list of names"),
        ([{"op0": "GPU:0"}], r"stay-close\[0\]: must be two names, not 1"),
        (["op0", 1], r"stay-close\[0\]"),
        ([{"op0": 3}, 1], r"stay-close\[0\]"),
        ([{"op0": "GPU:0"}, 1.5], r"stay-close\[0\]\.number: must be a whole number"),
        ([{"op0": "GPU:0"}, -1], r"stay-close\[0\]\.number: must be a number from 0"),
    ],
)
def test_a_damaged_limit_of_changes_is_refused_in_one_line(tmp_path, row, complaint):
    path = tmp_path / "team.json"
    path.write_text(json.dumps({"format": "enplace-constraints/1", "stay-close": [row]}))
    with pytest.raises(FileError, match=complaint) as caught:
        read_constraints(path, Problem(CHAIN, gpus(2)))
    assert "\n" not in str(caught.value)


def test_of_a_limit_of_changes_ops_that_are_gone_are_left_out(tmp_path):
    path, places = tmp_path / "team.json", {"op0": "GPU:1", "gone": "GPU:0"}
    path.write_text(json.dumps({"format": "enplace-constraints/1", "stay-close": [[places, 0]]}))
    found = read_constraints(path, Problem(CHAIN, gpus(2)))
    assert found.problem.constraints["stay-close"] == {(((0, 1),), 0)}
    assert found.unknown == ("gone",)
    assert (
        read_constraints(path, Problem(CHAIN, gpus(1))).problem.constraints["stay-close"] == set()
    )


def test_constraints_have_no_fields_but_those_of_kinds():
    with pytest.raises(TypeError, match="there is no kind of constraint 'pin'"):
        Constraints(pin={0: 1})
