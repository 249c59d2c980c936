"""Proven bounds, and when they are kept."""

import numpy as np
import pytest

from enplace.bounds import Proof, Proofs, lower_bound_us
from enplace.values.constraints import Constraints
from enplace.values.problem import Problem
from problems import cluster_of, profile_of


@pytest.fixture
def problem():
    return Problem(profile_of({"a": 10, "b": 10, "c": 4}, [("a", "c", 8)]), cluster_of(2))


def test_the_lower_bound_is_calculated_once(problem, monkeypatch):
    calls = []
    monkeypatch.setattr(
        "enplace.bounds.proofs.lower_bound_us", lambda p, stop: calls.append(p) or lower_bound_us(p)
    )
    proofs = Proofs()
    assert proofs.find(problem) == proofs.find(problem) == (lower_bound_us(problem), "")
    assert calls == [problem]


def test_a_bound_that_was_stopped_is_not_kept(problem):
    proofs = Proofs()
    stopped = proofs.find(problem, np.ones(1, dtype=bool))
    assert proofs.known(problem) is None
    assert proofs.find(problem) == proofs.known(problem)
    assert proofs.find(problem).bound_us >= stopped.bound_us == 14


def test_the_highest_proven_bound_is_kept(problem):
    proofs = Proofs()
    for us in (15.0, 17.0, 16.0):
        proofs.add(problem, Proof(us, "CP-SAT"))
    assert proofs.find(problem) == (17.0, "CP-SAT")


def test_a_proof_still_holds_after_constraints_are_added(problem):
    proofs = Proofs()
    proofs.add(problem, Proof(15.0))
    pinned = problem.constrained(pins={0: 1})
    both = pinned.constrained(together=((0, 2),), forbidden=frozenset({(1, 0)}))
    assert proofs.known(pinned) == proofs.known(both) == Proof(15.0)


def test_a_proof_is_dropped_when_constraints_are_removed(problem):
    proofs = Proofs()
    pinned = problem.constrained(pins={0: 1})
    proofs.add(pinned, Proof(15.0))
    assert proofs.known(problem) is None
    assert proofs.known(problem.constrained(pins={0: 0})) is None
    assert proofs.known(Problem(problem.profile, cluster_of(3), Constraints(pins={0: 1}))) is None


def test_the_best_proof_that_holds_is_known_after_each_new_one(problem):
    proofs = Proofs()
    pinned = problem.constrained(pins={0: 1})
    both = pinned.constrained(forbidden=frozenset({(1, 0)}))
    assert proofs.known(both) is None
    for where, us, known_us in ((problem, 15.0, 15.0), (both, 14.0, 15.0), (pinned, 16.0, 16.0)):
        proofs.add(where, Proof(us))
        assert proofs.known(both) == Proof(known_us)
    proofs.drop(pinned)
    assert proofs.known(both) == Proof(15.0)


def test_two_runs_share_no_proofs(problem):
    one, other = Proofs(), Proofs()
    one.add(problem, Proof(99.0))
    assert other.find(problem).bound_us == lower_bound_us(problem)
