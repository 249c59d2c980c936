"""Ops related to some ops: what they need, what needs them, and those like them. No Qt."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from enplace.names.blocks import find_blocks
from enplace.names.paths import index_ops
from enplace.values.arrays import BoolArray, IntArray, marked
from enplace.values.profile import Profile


@dataclass(frozen=True)
class Relation:
    """A way from some ops to others.

    Attributes
    ----------
    id, title : str
        The id of its action, and what menus call it.
    keys : str
        Its shortcut as Qt writes it.
    word : str
        The field of a query that finds the same ops, ``up:softmax``; empty if it has another.
    find : callable
        Takes a profile and the numbers of ops; returns the related ones, shape (n_ops,).
    missing : str
        What to say if there are none.
    """

    id: str
    title: str
    keys: str
    word: str
    find: Callable[[Profile, IntArray], BoolArray]
    missing: str


def reach(profile: Profile, ops: IntArray, backward: bool) -> BoolArray:
    """Find the ops on paths that lead to some ops, or from them; shape (n_ops,)."""
    return profile.reach(marked(profile.n_ops, ops), backward)


def inputs_of(profile: Profile, ops: IntArray) -> BoolArray:
    """Find the ops whose outputs some ops consume, without these."""
    return _across(profile, ops, profile.edge_op, profile.edge_source)


def outputs_of(profile: Profile, ops: IntArray) -> BoolArray:
    """Find the ops that consume outputs of some ops, without these."""
    return _across(profile, ops, profile.edge_source, profile.edge_op)


def _across(profile: Profile, ops: IntArray, near: IntArray, far: IntArray) -> BoolArray:
    chosen = marked(profile.n_ops, ops)
    found = marked(profile.n_ops, far[chosen[near]])
    return found & ~chosen


def upstream_of(profile: Profile, ops: IntArray) -> BoolArray:
    """Find all ops on paths that lead to some ops, without these."""
    return reach(profile, ops, backward=True) & ~marked(profile.n_ops, ops)


def downstream_of(profile: Profile, ops: IntArray) -> BoolArray:
    """Find all ops on paths that lead from some ops, without these."""
    return reach(profile, ops, backward=False) & ~marked(profile.n_ops, ops)


def same_scope(profile: Profile, ops: IntArray) -> BoolArray:
    """Find the ops in the same scopes as some ops, and those in scopes inside them."""
    paths = index_ops(profile).paths
    wanted = {paths[op] for op in ops.tolist()}
    lengths = {len(path) for path in wanted}
    known = {path: any(path[:n] in wanted for n in lengths) for path in set(paths)}
    return np.fromiter((known[path] for path in paths), bool, profile.n_ops)


def same_type(profile: Profile, ops: IntArray) -> BoolArray:
    """Find the ops of the same types as some ops."""
    wanted = {profile.op_types[op] for op in ops.tolist()}
    return np.fromiter((kind in wanted for kind in profile.op_types), bool, profile.n_ops)


def copies_of(profile: Profile, ops: IntArray) -> BoolArray:
    """Find some ops and the blocks like them: the same ops with the same edges between them."""
    blocks = find_blocks(profile, ops.tolist()) if len(ops) else ops
    return marked(profile.n_ops, blocks.ravel())


RELATIONS = (
    Relation("select-inputs", "Select its inputs", "Ctrl+Up", "inputs", inputs_of,
             "these ops have no inputs from others"),
    Relation("select-outputs", "Select what uses it", "Ctrl+Down", "outputs", outputs_of,
             "no other op uses what these produce"),
    Relation("select-upstream", "Select everything upstream", "Ctrl+Shift+Up", "up", upstream_of,
             "nothing leads to these ops"),
    Relation("select-downstream", "Select everything downstream", "Ctrl+Shift+Down", "down",
             downstream_of, "these ops lead to no others"),
    Relation("select-scope", "Select the same scope", "Shift+S", "", same_scope, ""),
    Relation("select-type", "Select the same type", "Shift+T", "", same_type, ""),
    Relation("select-like", "Select all like this one", "Shift+L", "like", copies_of,
             "no other layer has a part like this: the same ops with the same edges between them"),
)  # fmt: skip
"""All ways, in the order of the menus."""


def related(profile: Profile, relation: Relation, ops: Collection[int]) -> IntArray:
    """Find the ops related to some ops, lowest first."""
    chosen = np.array(sorted(ops), dtype=np.int64)
    found: IntArray = np.flatnonzero(relation.find(profile, chosen))
    return found
