"""A level: the problem with some ops merged, on which searches work, and the way back."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from enplace.coarsen import contract, expand
from enplace.machine.layout import Machine, build_machine
from enplace.names.passes import last_parts, scopes_by_pass, split_pass
from enplace.placing.moves.blocks import Blocks
from enplace.placing.moves.timeline import smooth_shares
from enplace.values.arrays import csr_offsets, inverse, offsets
from enplace.values.limits import MOST_DEPTH
from enplace.values.plan import Plan, follow_graph, position_by_itself
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Level:
    """A problem, the groups of its ops that stay together, and the problem of the groups.

    Attributes
    ----------
    fine : Problem
        The problem to solve.
    group : int array, shape (fine.profile.n_ops,)
        The op of ``problem`` that each op belongs to.
    problem : Problem
        The problem of the groups, on which a search works.
    """

    fine: Problem
    group: IntArray
    problem: Problem

    @cached_property
    def machine(self) -> Machine:
        return build_machine(self.problem)

    @cached_property
    def kept_order(self) -> IntArray | None:
        """The groups in the order that the framework keeps, whatever a plan says; None if none."""
        if not self.fine.profile.measured.runs_as_recorded:
            return None
        first = np.full(self.problem.profile.n_ops, len(self.group))
        np.minimum.at(first, self.group, position_by_itself(self.fine.profile))
        return inverse(follow_graph(self.problem.profile, first))

    @cached_property
    def smooth_shares(self) -> FloatArray:
        """When the groups run, guessed from what they are joined to, as shares of all work."""
        return smooth_shares(self.problem)

    @cached_property
    def tied(self) -> Machine:
        """The machine whose units are all ops of one kind, such as the same op of every layer.

        Units are of one kind as in :attr:`blocks`, and if they are allowed on the same devices.
        """
        profile, machine = self.problem.profile, self.machine
        scopes = scopes_by_pass(profile)
        kinds = [
            (split_pass(scopes[op])[0], last_parts(profile.op_names[op]), row.tobytes())
            for op, row in zip(
                machine.member[machine.unit_ptr[:-1]].tolist(), machine.allowed, strict=True
            )
        ]
        number = {kind: at for at, kind in enumerate(dict.fromkeys(kinds))}
        kind = np.array([number[each] for each in kinds])
        allowed = np.empty((len(number), self.problem.cluster.n_devices), dtype=bool)
        allowed[kind] = machine.allowed
        unit = kind[machine.unit]
        unit.flags.writeable = False  # as that of the machine, or the kernels are compiled again
        member = np.argsort(unit, kind="stable").astype(np.int64)
        unit_ptr = csr_offsets(unit[member], len(number))
        return machine._replace(unit=unit, unit_ptr=unit_ptr, member=member, allowed=allowed)

    @cached_property
    def blocks(self) -> Blocks:
        """Units of every scope at every depth: of each pass, of all passes, and of each kind of op.

        Ops are of one kind if their pass and the last parts of their names agree, such as the
        products that make up the gradient of one weight, over all time steps.
        """
        profile = self.problem.profile
        members: dict[tuple[str, str, str], set[int]] = defaultdict(set)
        for unit, scope, name in zip(
            self.problem.unit.tolist(), scopes_by_pass(profile), profile.op_names, strict=True
        ):
            side, own = split_pass(scope)
            parts, kind = own.split("/", MOST_DEPTH)[:MOST_DEPTH], last_parts(name)
            for depth in range(len(parts) + 1):
                prefix = "/".join(parts[:depth])
                members[prefix, side, kind].add(unit)
                if depth:
                    members[prefix, side, ""].add(unit)
                    members[prefix, "all", ""].add(unit)
        found = sorted(
            {
                tuple(sorted(units))
                for (_, _, kind), units in members.items()
                if not kind or len(units) > 1
            },
            key=lambda units: (len(units), units),
        )
        ptr = offsets(np.array([len(units) for units in found]))
        return Blocks(ptr, np.array([unit for units in found for unit in units], dtype=np.int64))

    def device_of(self, device: IntArray) -> IntArray:
        """Find the device of each group's unit: the one with most of the unit's work.

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
        """Make the plan of all ops from an order and a placement of the groups."""
        plan = Plan(device.copy(), inverse(order), "enplace", policy=policy, links=links)
        return expand(self.fine, self.group, plan)


def make_level(problem: Problem, group: IntArray) -> Level:
    """Contract a problem's groups; see :func:`enplace.coarsen.contract`."""
    return Level(problem, group, contract(problem, group))
