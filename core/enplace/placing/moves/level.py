"""A level: the problem with some ops merged, laid out for the searches, and the way back."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from enplace.coarsen import contract, expand
from enplace.machine.search_layout import Graph, make_graph
from enplace.names.passes import split_pass
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Level:
    """A problem, the groups of its ops that stay together, and the problem of the groups.

    Attributes
    ----------
    fine : Problem
        What is to be solved.
    group : int array, shape (fine.profile.n_ops,)
        Which op of ``problem`` each op belongs to.
    problem : Problem
        What is searched.
    """

    fine: Problem
    group: IntArray
    problem: Problem

    @cached_property
    def graph(self) -> Graph:
        return make_graph(self.problem)

    @cached_property
    def blocks(self) -> tuple[IntArray, IntArray]:
        """Units of every scope, of every depth, each pass alone and all together; as CSR.

        The smallest come first.
        """
        members: dict[tuple[str, str], set[int]] = defaultdict(set)
        for unit, scope in zip(
            self.problem.unit.tolist(), self.problem.profile.scopes, strict=True
        ):
            side, name = split_pass(scope)
            parts = name.split("/")
            for depth in range(1, len(parts) + 1):
                prefix = "/".join(parts[:depth])
                members[prefix, side].add(unit)
                members[prefix, "all"].add(unit)
        found = sorted(
            {tuple(sorted(units)) for units in members.values()},
            key=lambda units: (len(units), units),
        )
        ptr = np.cumsum([0] + [len(units) for units in found]).astype(np.int64)
        return ptr, np.array([unit for units in found for unit in units], dtype=np.int64)

    def device_of(self, device: IntArray) -> IntArray:
        """Where each unit goes if most of its work in a placement of all ops decides.

        Parameters
        ----------
        device : int array, shape (fine.profile.n_ops,)

        Returns
        -------
        int array, shape (problem.profile.n_ops,)
        """
        work_us = np.where(np.isfinite(self.fine.time_us), self.fine.time_us, 0.0).max(axis=1)
        votes: FloatArray = np.zeros((self.problem.n_units, self.problem.cluster.n_devices))
        np.add.at(votes, (self.problem.unit[self.group], device), work_us + 1e-6)
        votes[~self.problem.unit_allowed] = -1.0
        chosen: IntArray = np.argmax(votes, axis=1)[self.problem.unit]
        return chosen

    def plan(self, order: IntArray, device: IntArray, policy: str, links: str) -> Plan:
        """Plan of all ops from an order and a placement of the groups."""
        position = np.empty(len(order), dtype=np.int64)
        position[order] = np.arange(len(order))
        plan = Plan(device.copy(), position, "enplace", policy=policy, links=links)
        return expand(self.fine, self.group, plan)


def make_level(problem: Problem, group: IntArray) -> Level:
    """Contract a problem's groups; see :func:`enplace.coarsen.contract`."""
    return Level(problem, group, contract(problem, group))
