"""The handler that looks for what would make a model fit, a row at a time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from enplace.frameworks.registry import about_usual_grain, at_usual_grain
from enplace.inputs import usual_method
from enplace.mends.search import ROW_S, Fit, Row, fastest_first, list_rows, project_of
from enplace.placing.options import PlaceOptions
from enplace.placing.packing import pack
from enplace.processes import codecs
from enplace.processes.main import Connection
from enplace.processes.wire import DONE, Message
from enplace.values.problem import Problem
from enplace.writers.archive import write_project

TRYING, FOUND, PROVEN = "trying", "found", "proven"
"""A change that is being tried, by its title; all rows so far; that no plan fits as it is."""


def serve(connection: Connection) -> Message:
    """Send the rows of the problem in the first two messages, and write a project of each plan."""
    profile = codecs.profile_from(connection.receive())
    job = connection.receive().details
    options = PlaceOptions(job["objective"], values=job["values"])
    asked = codecs.problem_from(profile, job["problem"])
    problem = at_usual_grain(asked, options.objective)
    kept = about_usual_grain(problem, options.objective)
    cluster, rows = problem.cluster, list[Row]()

    def begin(title: str) -> None:
        connection.send(Message(TRYING, {"title": title}))

    def fit_of(found: Iterable[Row]) -> Fit:
        batch = profile.measured.batch_size
        return Fit(profile.name, cluster.name, options.objective, tuple(found), batch)

    for row in list_rows(problem, cluster, usual_method, options, begin=begin):
        rows.append(row)
        if row.fits:
            write_project(file_of(job["folder"], row.change.key), project_of(row))
        connection.send(Message(FOUND, _details(fit_of(rows), kept)))
        if row.is_proven and len(rows) == 1 and (problem is asked or _is_hopeless(asked, options)):
            connection.send(Message(PROVEN))
    connection.send(Message(FOUND, _details(fit_of(fastest_first(rows)), kept)))
    return Message(DONE)


def _is_hopeless(problem: Problem, options: PlaceOptions) -> bool:
    """Return whether it is proven that no plan fits, also of those that a grain rules out."""
    return pack(problem, options.stop.until(ROW_S)).is_impossible


def file_of(folder: str | Path, key: str) -> Path:
    """Return the file of a row's project, by the key of its change."""
    return Path(folder, f"{key}.enplace")


def _details(fit: Fit, kept: str) -> dict[str, Any]:
    return {
        "headline": fit.headline,
        "cells": fit.cells(),
        "notes": [*filter(None, [kept]), *fit.notes],
        "keys": [row.change.key for row in fit.rows],
        "fits": [row.fits for row in fit.rows],
        "same_model": [row.change.share == 1 for row in fit.rows],
    }
