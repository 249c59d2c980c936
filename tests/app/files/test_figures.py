"""Random work in the studio: every figure it shows or writes is what ``enplace simulate`` says."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from documents import document_of
from enplace.bounds import with_bound
from enplace.cli import run
from enplace.machine import simulate
from enplace.machine.check_claims import check_claims
from enplace.placing.registry import EVERY
from enplace.placing.settle import settle
from enplace.text import ms
from enplace.values.load_rule import LoadRule
from enplace.values.plan import Plan
from enplace.values.plan_facts import VALUE_KEYS
from enplace.values.problem import split_problem
from enplace.values.result import Result
from enplace.values.splits import OFFLOAD, Split
from enplace.writers import write_plan, write_profile
from enplace.writers.archive import write_project
from enplace.writers.report import report_html
from enplace_studio.files import session
from enplace_studio.jobs.solver import Solver
from enplace_studio.model import edits
from enplace_studio.model.open_project import PlanEntry
from enplace_studio.model.prices import PER, headline
from enplace_studio.shell.status import StatusLine
from enplace_studio.views.plans.card import PlanCard
from problems import cluster_of, profile_of

N_OPS, STEPS = 7, 12


def model(chance):
    names = "abcdefg"
    times = {name: chance.randint(1, 30) for name in names}
    n_bytes = {name: chance.randint(1, 40) for name in names}
    sources = [names[chance.randrange(at)] for at in range(1, N_OPS)]
    edges = [(one, names[at + 1], n_bytes[one]) for at, one in enumerate(sources)]
    return profile_of(times, edges)


def made_plan(document, objective, chance):
    """Add a plan for an objective, as a method would bring it."""
    plan = document.current.plan
    device = plan.device.copy()
    device[chance.randrange(N_OPS)] = chance.choice(document.project.cluster.gpus)
    rule = LoadRule() if objective == "throughput" else None
    plan = replace(plan, device=device, objective=objective, load_rule=rule, value_us=None)
    plan = edits.repair(document.problem, replace(plan, subgraph=None))
    plan = check_claims(document.problem, plan)
    own_us = plan.value_us
    plan = plan if own_us is None else replace(plan, bound_us=own_us, proven=True)
    entry = PlanEntry(objective, plan, simulate(document.problem, plan))
    document.take_plan(entry, document.project.cluster)


def keep_on_host(document, chance):
    """Add a plan that keeps an output on the host, for its last reader to fetch."""
    profile = document.project.model.profile
    readers = {profile.op_names[a]: profile.op_names[b] for a, _, b, _ in profile.edges.tolist()}
    op = chance.choice(sorted(readers))
    problem = split_problem(document.project.model, (Split(op, OFFLOAD, 2, (readers[op],)),))
    order = np.argsort(np.argsort(problem.profile.topological_order))
    device = settle(problem, np.full(problem.profile.n_ops, problem.cluster.gpus[0]))
    device[problem.profile.index[f"{op}/fetched"]] = problem.cluster.n_devices - 1
    plan = Plan(device, order, "enplace-offload", splits=problem.splits)
    document.take_plan(PlanEntry("offload", plan, simulate(problem, plan)), problem.cluster)


def work(document, chance):
    """Do one thing that a user may do."""
    ops, device = [chance.randrange(N_OPS)], chance.choice(document.project.cluster.gpus)
    do = chance.choice(
        [
            *("move", "pin", "here", "together", "scale", "cluster"),
            *("solve", "show", "undo", "unpin", "keep", "order"),
        ]
    )
    if do in ("move", "pin"):
        document.place(ops, device, pin=do == "pin")
    elif do == "here":
        document.pin_here(ops)
    elif do == "together":
        document.colocate([*ops, (ops[0] + 1) % N_OPS])
    elif do == "scale":
        document.set_scale(chance.choice([1.0, 2.0]), chance.choice([0.5, 1.0, 3.1]))
    elif do == "cluster":
        document.set_cluster(cluster_of(chance.choice([2, 3]), cpu_lanes=1))
    elif do == "solve":
        made_plan(document, chance.choice(EVERY), chance)
    elif do == "show":
        document.choose_plan(chance.choice(document.plans))
    elif do == "order":
        document.run_next(ops, earlier=chance.random() < 0.5)
    elif do == "keep":
        keep_on_host(document, chance)
    elif do == "undo":
        document.undo_stack.undo()
    else:
        document.unpin(ops)


@pytest.mark.parametrize("seed", range(4))
def test_every_figure_is_what_simulate_says(seed, tmp_path, capsys, qtbot):
    chance = random.Random(seed)
    profile = model(chance)
    document = document_of(profile, cluster_of(2, cpu_lanes=1), dict.fromkeys(profile.op_names, 0))
    made_plan(document, "throughput", chance)
    status = StatusLine(document, Solver())
    qtbot.addWidget(status)
    write_profile(tmp_path / "p.json", profile)
    for _ in range(STEPS):
        work(document, chance)
    compare_all(document, status, tmp_path, capsys)


def test_a_constraint_that_moves_nothing_is_in_every_file_and_makes_no_new_row(
    tmp_path, capsys, qtbot
):
    profile = model(random.Random(0))
    document = document_of(profile, cluster_of(2, cpu_lanes=1), dict.fromkeys(profile.op_names, 0))
    (only,) = document.plans
    status = StatusLine(document, Solver())
    qtbot.addWidget(status)
    write_profile(tmp_path / "p.json", profile)
    document.pin_here([0, 2])
    document.colocate([3, 4])
    document.forbid([1], 1)
    for wanted, index in (("ac", 3), ("ac", 1), ("", 0), ("ac", 3)):
        document.undo_stack.setIndex(index)
        assert [entry.name for entry in document.plans] == [only.name]
        compare_all(document, status, tmp_path, capsys)
        written = json.loads((tmp_path / "a.plan.json").read_text())
        assert "".join(written.get("pins", {})) == wanted
        assert ("None: every op was free" in report_html(Result(document.schedule))) == (not index)


def test_what_is_proven_under_a_constraint_is_not_once_that_is_gone():
    chance = random.Random(0)
    profile = model(chance)
    document = document_of(profile, cluster_of(2, cpu_lanes=1), dict.fromkeys(profile.op_names, 0))
    document.pin_here(range(N_OPS))
    made_plan(document, "throughput", chance)
    document.colocate([0, 1])
    assert document.current.plan.proven
    document.unpin([0])
    assert document.current.name == "throughput"
    assert not document.current.plan.proven
    assert document.current.plan.bound_us is None


def simulated(folder, capsys):
    """Return what the command says of the exported plan."""
    status = run(["simulate", str(folder / "p.json"), str(folder / "a.plan.json"), "--json"])
    assert status in (0, 1)
    return json.loads(capsys.readouterr().out)


def compare_all(document, status, folder, capsys):
    project = document.project
    for entry in document.plans:
        exported = with_bound(entry.schedule, document.bounds.proofs.of_rivals(entry.schedule))
        write_plan(folder / "a.plan.json", exported)
        told, objective = simulated(folder, capsys), entry.plan.objective
        if objective == "step-time":
            assert told["gap"] == pytest.approx(exported.gap)
        own_us = told[VALUE_KEYS.get(objective, "step_time_us")]
        card = PlanCard(project, document.bounds, entry)
        assert card.step == ms(own_us) + PER.get(objective, "")
        is_scaled = entry.cluster is None and project.scale != (1.0, 1.0)
        assert ("what if" in card.notes[0]) == is_scaled
        report = report_html(Result(entry.schedule))
        assert ms(own_us) in report
        assert ms(told["step_time_us"]) in report
        assert ("as fast" in report) == (project.scale != (1.0, 1.0))
    if document.current is not None:
        status._show_document()
        assert headline(document.current.plan, document.schedule) in status.step.text()
        assert status.step.text().startswith("What if") == (project.scale != (1.0, 1.0))
    write_project(folder / "p.enplace", session.to_project(project, {}))
    again = session.open_file(folder / "p.enplace").project
    assert again.scale == (1.0, 1.0)
    plain = edits.set_scale(project, 1.0, 1.0)
    for kept, entry in zip(again.plans, plain.plans, strict=True):
        assert headline(kept.plan, kept.schedule) == headline(entry.plan, entry.schedule)
        assert kept.schedule.makespan_us == pytest.approx(entry.schedule.makespan_us)
        assert kept.schedule.problem.constraints == entry.schedule.problem.constraints
