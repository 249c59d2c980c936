"""Everything that the command palette can do: actions, methods, plans, devices, groups and ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from PySide6.QtGui import QAction

from enplace.text import count
from enplace.values.profile import Profile
from enplace_studio.model.method_facts import OBJECTIVES, time_text, why_not_for
from enplace_studio.model.open_project import OpenProject
from enplace_studio.model.prices import headline
from enplace_studio.shell.key_sheet import native_keys
from enplace_studio.shell.menus import Menus
from enplace_studio.shell.parts import Studio
from enplace_studio.views import all_views
from enplace_studio.views.view import Commanding

FEWEST_LETTERS = 2
"""Ops are listed only once this much is typed: there are too many."""
MOST_OPS = 50


@dataclass(frozen=True, eq=False)
class Command:
    """Something the palette can do.

    Attributes
    ----------
    note : str
        Its keys, or a fact about it.
    """

    title: str
    run: Callable[[], object]
    note: str = ""


def all_commands(menus: Menus, studio: Studio) -> dict[str, list[Command]]:
    """Return what can be done now, ops excepted, by kind."""
    commands = {"Commands": list(_actions(menus))}
    if (project := studio.document.project) is not None:
        commands |= {
            "Methods": list(_methods(studio, project)),
            "Plans": list(_plans(studio)),
            "Devices": list(_devices(studio, project)),
            **{title: list(found) for title, found in _of_views(studio)},
            "Groups": list(_groups(studio, project)),
        }
    return {kind: members for kind, members in commands.items() if members}


def op_commands(studio: Studio, typed: str) -> list[Command]:
    """Return commands that select an op each, for the ops that match what is typed.

    Of many, the first; names with the very words come before those with the words elsewhere.
    """
    project = studio.document.project
    if project is None or len(typed.strip()) < FEWEST_LETTERS:
        return []
    words = [w for w in typed.lower().split() if w != "op" and not "select".startswith(w)]
    names, wanted = _lower_names(project.problem.profile), " ".join(words)
    found = [op for op, name in enumerate(names) if all(word in name for word in words)]
    found.sort(key=lambda op: wanted not in names[op])
    return [_op_command(studio, project, op) for op in found[:MOST_OPS]]


@lru_cache(maxsize=1)
def _lower_names(profile: Profile) -> tuple[str, ...]:
    return tuple(name.lower() for name in profile.op_names)


def _op_command(studio: Studio, project: OpenProject, op: int) -> Command:
    title = f"Select op {project.problem.profile.op_names[op]}"
    return Command(title, _select(studio, [op]), _op_note(project, op))


def _op_note(project: OpenProject, op: int) -> str:
    kind = project.problem.profile.op_types[op]
    if project.current is None:
        return kind
    cluster = project.current.schedule.problem.cluster
    return f"{kind}, {cluster.devices[project.current.plan.device[op]].label}"


def _actions(menus: Menus) -> Iterable[Command]:
    for spec in menus.specs:
        action = menus.by_id[spec.id]
        if action.isEnabled() and spec.id != "palette":
            title = action.text().replace("&", "").rstrip("…")
            keys = native_keys(spec.keys[0]) if spec.keys else ""
            yield Command(title, action.trigger, keys)


def _methods(studio: Studio, project: OpenProject) -> Iterable[Command]:
    solver = studio.solver
    if solver.is_asked or studio.is_measuring:
        return
    for method in solver.methods.values():
        if why_not_for(method, project.problem):
            continue
        for objective in method.objectives:
            aim = "" if objective == method.aim("") else f": {OBJECTIVES[objective].lower()}"
            yield Command(
                f"Solve with {method.title}{aim}",
                partial(_solve, studio, method.name, objective),
                time_text(method, studio.chosen.time_limit_s),
            )


def _solve(studio: Studio, method: str, objective: str) -> None:
    studio.chosen.set_method(method, objective=objective)
    studio.solving.solve()


def _plans(studio: Studio) -> Iterable[Command]:
    document = studio.document
    for entry in document.plans:
        if entry is not document.current:
            yield Command(
                f"Show plan {entry.name}",
                partial(document.choose_plan, entry),
                headline(entry.plan, entry.schedule),
            )


def _devices(studio: Studio, project: OpenProject) -> Iterable[Command]:
    """Yield what the menus of devices offer."""
    document, schedule = studio.document, studio.document.schedule
    if schedule is None:
        return
    problem, chosen = project.problem, document.selection
    n_here = np.bincount(schedule.plan.device, minlength=problem.cluster.n_devices).tolist()
    for device, n_ops in enumerate(n_here):
        where, note = project.device_label(device), count(n_ops, "op")
        here = np.flatnonzero(schedule.plan.device == device).tolist()
        yield Command(f"Select what runs on {where}", partial(document.select, here), note)
        if device in problem.locked:
            yield Command(f"Unlock {where}", partial(document.unlock, device), note)
        else:
            yield Command(f"Lock {where} as it is", partial(document.lock, device), note)
        if any((op, device) in problem.forbidden for op in chosen):
            allow = partial(document.allow, chosen, device)
            yield Command(f"Allow the selection on {where} again", allow)
        elif chosen:
            keep_off = partial(document.forbid, chosen, device)
            yield Command(f"Keep the selection off {where}", keep_off)


def _of_views(studio: Studio) -> Iterable[tuple[str, Iterable[Command]]]:
    """Yield the panes to open or close, and the commands of views under their titles."""
    toggles = studio.panes.toggles
    yield "Panes", [Command(_toggle_title(each), each.trigger) for each in toggles]
    for view in all_views():
        widget: object = studio.panes.views.get(view.id)
        if isinstance(widget, Commanding):
            yield view.title, [Command(title, run) for title, run in widget.commands()]


def _toggle_title(toggle: QAction) -> str:
    return f"{'Close' if toggle.isChecked() else 'Open'} the pane {toggle.text()}"


def _groups(studio: Studio, project: OpenProject) -> Iterable[Command]:
    grouping = project.grouping
    for number, (name, n_ops) in enumerate(
        zip(grouping.names, grouping.sizes.tolist(), strict=True)
    ):
        select = _select(studio, grouping.ops(number))
        yield Command(f"Select {name}", select, count(n_ops, "op"))


def _select(studio: Studio, ops: Iterable[int]) -> Callable[[], None]:
    def run() -> None:
        studio.document.select(ops)
        studio.panes.focus_selection()

    return run
