"""The tree of name scopes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from enplace.names.paths import OpIndex
from enplace.names.titles import Path, ordinal, split_number
from enplace.values.profile import IntArray


@dataclass(eq=False)
class Scope:
    """A node of the tree; ``ops`` are directly in it, the numbers count everything below.

    Constants, variables and what only reads them are not among the ``n_working`` ops.
    """

    path: Path
    children: dict[str, Scope] = field(default_factory=dict)
    ops: list[int] = field(default_factory=list)
    weight: float = 0.0
    time_us: float = 0.0
    n_working: int = 0

    @property
    def name(self) -> str:
        return self.path[-1]

    def all_ops(self) -> list[int]:
        """Return its own ops and those of all scopes below."""
        found = list(self.ops)
        for child in self.children.values():
            found += child.all_ops()
        return found

    @cached_property
    def families(self) -> list[tuple[str, list[Scope]]]:
        """Children by stem, in the order of their numbers."""
        found: dict[str, list[Scope]] = {}
        for name, child in self.children.items():
            found.setdefault(split_number(name)[0], []).append(child)
        for members in found.values():
            members.sort(key=lambda member: ordinal(member.name))
        return list(found.items())


def build_tree(index: OpIndex, ops: IntArray) -> Scope:
    """Build the tree of some ops, without the scopes that all of them share."""
    root = Scope(())
    scopes: dict[Path, Scope] = {(): root}
    for op in ops.tolist():
        _find_or_add(scopes, index.paths[op]).ops.append(op)
    for path in sorted(scopes, key=len, reverse=True):
        scope = scopes[path]
        scope.weight += float(index.weight[scope.ops].sum())
        scope.time_us += float(index.time_us[scope.ops].sum())
        scope.n_working += int(index.is_working[scope.ops].sum())
        if path:
            above = scopes[path[:-1]]
            above.weight += scope.weight
            above.time_us += scope.time_us
            above.n_working += scope.n_working
    while not root.ops and len(root.children) == 1:
        root = next(iter(root.children.values()))
    return root


def _find_or_add(scopes: dict[Path, Scope], path: Path) -> Scope:
    if path not in scopes:
        scope = Scope(path)
        _find_or_add(scopes, path[:-1]).children[path[-1]] = scope
        scopes[path] = scope
    return scopes[path]
