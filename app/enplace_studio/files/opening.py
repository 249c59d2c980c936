"""Opening files, and the work that a crash left unsaved."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import _lru_cache_wrapper
from pathlib import Path

from PySide6.QtCore import QDateTime, QLocale, Signal
from PySide6.QtWidgets import QMessageBox, QWidget

from enplace.errors import EnplaceError
from enplace.files.reading import open_to_read
from enplace.files.writing import remove_abandoned_files
from enplace.names.group_facts import group_edges
from enplace.names.whole import find_chain
from enplace.readers import cluster_json, constraints, plans, read_project
from enplace.readers.clusters import cluster_from
from enplace.readers.samples import Sample, samples
from enplace.text import count
from enplace.values.profile import Profile
from enplace_studio.files import session
from enplace_studio.files.exchange import Exchange, few
from enplace_studio.files.recovery import last_written_s
from enplace_studio.files.saving import PROJECTS, Saving, do_nothing, version_of
from enplace_studio.files.session import Opened
from enplace_studio.jobs.background import Background
from enplace_studio.model.can_run import is_model
from enplace_studio.model.document import Document
from enplace_studio.model.open_project import FileVersion, start_project
from enplace_studio.widgets.labels import plain_tip
from enplace_studio.widgets.part import Part

_FORMAT = re.compile(rb'^\s*\{\s*"format"\s*:\s*"(?P<name>[a-z-]+)/')
_HEAD_BYTES = 1000

_Button = QMessageBox.StandardButton


class Files(Part):
    """Opens models and projects, and hands files that belong to the open model to ``exchange``."""

    model_named = Signal(object)
    """Emitted with the path of a model that has no profile yet."""

    opening = Signal(str)
    """Emitted with the name of what is now being read."""

    def __init__(
        self, document: Document, saving: Saving, exchange: Exchange, parent: QWidget
    ) -> None:
        super().__init__(document, parent)
        self._saving, self._exchange = saving, exchange
        self.recent, self._recovery = saving.recent, saving.recovery
        self._recovering = Background(self)  # apart, for what is opened replaces only openings

    def wait(self) -> None:
        """Block until everything is read and written."""
        works = [each.background for each in (self, self._saving, self._exchange)]
        works.append(self._recovering)
        while any(work.is_busy for work in works):
            for work in works:
                work.wait()

    def open_sample(self, sample: Sample, then: Callable[[], object] = do_nothing) -> None:
        """Open a bundled sample on its own cluster, then call ``then``."""

        def read() -> Opened:
            profile = session.open_file(sample.path).project.problem.profile
            return Opened(start_project(profile, cluster_from(sample.cluster, profile)))

        self._open(read, then=then, name=sample.title)

    def open_path(self, path: Path, then: Callable[[], object] = do_nothing) -> None:
        """Open any readable file, then call ``then``; a bundled sample opens on its own cluster.

        A plan, constraints or a cluster are for the open model.
        """
        path = path.absolute()  # a copy of unsaved work may be opened from another folder
        if is_model(path):
            self.model_named.emit(path)
            return
        if use := self._use_of(path):
            if self._document.project is None:
                self.failed.emit(f"{path.name} belongs to a model; open that first")
            else:
                use(path)
            return
        for sample in samples():
            if sample.path == Path(os.path.realpath(path)):
                self.open_sample(sample, then)
                return

        def finish() -> None:
            self.recent.add(path)
            then()

        self._open(lambda: session.open_file(path), path, then=finish)

    def _use_of(self, path: Path) -> Callable[[Path], None] | None:
        """Return what imports a file into the open model; None if it is opened itself."""
        parts = {
            plans.NAME: self._exchange.import_plan,
            constraints.NAME: self._exchange.import_constraints,
            cluster_json.NAME: self._exchange.read_cluster,
        }
        return parts.get(_format_of(path))

    def open_paths(self, paths: Sequence[Path]) -> None:
        """Open one model or project of several files, and import all that belong to a model."""
        opened = [path for path in paths if self._use_of(path) is None]
        parts = [path for path in paths if path not in opened]
        clusters = [path for path in parts if self._use_of(path) == self._exchange.read_cluster]
        left_out = [*opened[1:], *clusters[1:]]
        parts = [path for path in parts if path not in left_out]

        def use_parts() -> None:
            for path in parts:
                self.open_path(path)
            if left_out:
                names = few([path.name for path in left_out])
                why = "one model and one cluster can be open at a time"
                self._fail_last(f"left out {names}: {why}")

        if opened and is_model(opened[0]):  # it must be measured first
            left_out, parts = [*left_out, *parts], []
            use_parts()
        if opened:
            self.open_path(opened[0], use_parts)
        else:
            use_parts()

    def _fail_last(self, text: str) -> None:
        """Report a fault once all files are read: what they change hides what was said before."""
        importing = self._exchange.background
        if importing.is_busy:
            importing.start(lambda: None, lambda _: self._fail_last(text))
        else:
            self.failed.emit(text)

    def use_text(self, paths: Sequence[Path]) -> str:
        """Say what :meth:`open_paths` does with files: ``open a.enplace and import 2 files``."""
        opened = [path for path in paths if self._use_of(path) is None]
        n_parts = len(paths) - len(opened)
        parts = paths[0].name if len(paths) == 1 else count(n_parts, "file")
        texts = [f"open {opened[0].name}"] if opened else []
        return " and ".join([*texts, *([f"import {parts}"] if n_parts else [])])

    def open_profile(self, profile: Profile, then: Callable[[], object] = do_nothing) -> None:
        """Open a new measurement, not yet saved in a file; then call ``then``."""
        self._open(lambda: session.open_profile(profile), saved=False, then=then)

    def open_unsaved(self, opened: Opened) -> None:
        """Open what belongs to no file yet."""
        self._open(lambda: replace(opened, path=None), saved=False)

    def _open(
        self,
        read: Callable[[], Opened],
        path: Path | None = None,
        saved: bool = True,
        then: Callable[[], object] = do_nothing,
        name: str = "a project",
    ) -> None:
        """Read in a thread, then show; a later call replaces an earlier one."""
        if not self._saving.may_leave(lambda: self._open(read, path, saved, then, name)):
            return
        before = self._document.project

        def show(opened: Opened, version: FileVersion | None) -> None:
            changed = self._document.project is not before
            if changed and not self._saving.may_leave(lambda: show(opened, version)):
                return
            self._document.open(opened.project, opened.path, opened.view, saved)
            self._document.seen = version
            then()

        def read_version() -> tuple[Opened, FileVersion | None]:
            _empty_caches("enplace")
            if path is not None:
                remove_abandoned_files(path.parent)
            before = version_of(path)  # another program may write it while it is read
            opened = read()
            project = opened.project
            group_edges(project.problem.profile, project.grouping)  # the graph asks at once
            find_chain(project.model.measured_profile)  # exports ask for it at once
            if opened.is_copy:  # its file may have changed since the copy's author saw it
                return opened, opened.seen
            return opened, before if opened.path == path else version_of(opened.path)

        _empty_caches("enplace_studio")  # not in a thread: some keep fonts and colours
        self.opening.emit(path.name if path else name)
        self.background.forget()
        self.background.start(read_version, lambda found: show(*found), self.fail)

    def close_project(self) -> None:
        """Go back to the start page."""
        if self._saving.may_leave(self.close_project):
            self._document.open(None)

    def ask_open(self) -> None:
        if path := self.ask_file("Open", session.file_filter()):
            self.open_path(path)

    # After a crash

    def offer_recovery(self) -> None:
        """Ask whether to recover work that a crash left unsaved."""
        left = self._recovery.leftovers()
        self._recovering.start(
            lambda: [(path, _model_in(path), last_written_s(path)) for path in left],
            self._ask_to_recover,
        )

    def _ask_to_recover(self, found: Sequence[tuple[Path, str, float]]) -> None:
        """Ask about each copy in turn, until the user opens one or cancels."""
        for path, model, written_s in found:
            changed = QDateTime.fromSecsSinceEpoch(int(written_s))
            when = QLocale.system().toString(changed, QLocale.FormatType.ShortFormat)
            answer = QMessageBox.question(
                self.window(),
                "Unsaved work found",
                plain_tip(
                    f"Enplace ended without saving {model}, last changed {when}. "
                    f"Open the work it kept, or discard it?"
                ),
                _Button.Open | _Button.Discard | _Button.Cancel,
                _Button.Open,
            )
            if answer == _Button.Cancel:  # asks again at the next start
                return
            if answer == _Button.Open:
                self._recover(path)
                return
            self._recovery.backups.add(path)

    def _recover(self, copy: Path) -> None:
        self._open(
            lambda: session.open_copy(copy),
            saved=False,
            then=lambda: self._recovery.take_over(copy),
        )

    def ask_open_backup(self) -> None:
        """Ask for a project that was overwritten or discarded; it opens as unsaved."""
        if path := self.ask_file("Open a backup", PROJECTS, str(self._recovery.backups.folder)):
            self._open(lambda: replace(session.open_file(path), path=None), saved=False)


def _empty_caches(package: str) -> None:
    """Empty the caches of a package's functions: their keys would keep closed models in memory.

    Those without a limit know nothing of models, but what is read once, such as the presets.
    """
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == package:
            for function in vars(module).values():
                if isinstance(function, _lru_cache_wrapper) and function.cache_info().maxsize:
                    function.cache_clear()


def _format_of(path: Path) -> str:
    """Return the name of the format that a JSON file begins with; empty if it names none."""
    try:
        with open_to_read(path) as file:
            found = _FORMAT.search(file.read(_HEAD_BYTES))
    except (OSError, EnplaceError):  # what reads it reports the fault
        return ""
    return found["name"].decode() if found else ""


def _model_in(path: Path) -> str:
    """Return the name of a project's model, or a substitute if the file is damaged."""
    try:
        return f"“{read_project(path).profile.name}”"
    except EnplaceError:
        return "its work"
