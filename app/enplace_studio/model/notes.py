"""The user's notes on ops, and on plans. No Qt."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from enplace.text import one_line
from enplace_studio.model.open_project import Note, OpenProject, PlanEntry


@dataclass(frozen=True, eq=False)
class Noted:
    """A note on ops of the open graph: which, what they are called, and what the note says."""

    ops: frozenset[int]
    title: str
    text: str


def write_note(project: OpenProject, ops: Collection[int], text: str) -> OpenProject:
    """Replace the note on these ops; an empty text removes it."""
    names = project.problem.profile.op_names
    on, text = frozenset(names[op] for op in ops), one_line(text)
    others = tuple(note for note in project.notes if note.on != on)
    notes = (*others, Note(on, text)) if text else others
    return project if set(notes) == set(project.notes) else replace(project, notes=notes)


def all_notes(project: OpenProject) -> list[Noted]:
    """Return the notes on ops that the open graph has."""
    return notes_about(project, frozenset[int]().union(*project.noted))


def notes_about(project: OpenProject, ops: Collection[int]) -> list[Noted]:
    """Return the notes on any of these ops."""
    found = zip(project.notes, project.noted, strict=True)
    about = [(note, on) for note, on in found if not on.isdisjoint(ops)]
    return [Noted(on, project.describe(on), note.text) for note, on in about]


def note_on(project: OpenProject, ops: Collection[int]) -> str:
    """Return the note on just these ops; empty if there is none."""
    found = (each.text for each in notes_about(project, ops) if each.ops == frozenset(ops))
    return next(found, "")


def told_notes(project: OpenProject, entry: PlanEntry) -> list[tuple[str, str]]:
    """Return the notes that a report shows: the one on its plan, then those on ops."""
    of_plan = [("this plan", entry.remark)] if entry.remark else []
    return of_plan + [(each.title, each.text) for each in all_notes(project)]


def notes_to_json(notes: Collection[Note]) -> list[dict[str, Any]]:
    """Return notes as a project file keeps them."""
    return [{"ops": sorted(note.on), "text": note.text} for note in notes]


def notes_from_json(value: object) -> tuple[Note, ...]:
    """Read the notes of a project file; damaged ones are left out."""
    found = []
    for each in value if isinstance(value, list) else []:
        with suppress(TypeError, KeyError, AttributeError):
            found.append(Note(frozenset(map(str, each["ops"])), one_line(str(each["text"]))))
    return tuple(note for note in found if note.on and note.text)
