"""The line above the panes that shows a worker's job and elapsed time, and can stop it."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtWidgets import QFrame, QProgressBar

from enplace.text import seconds
from enplace_studio.frameworks.job import WorkerJob
from enplace_studio.widgets.labels import ElidedLabel, label
from enplace_studio.widgets.layouts import STRETCH, hbox, vbox
from enplace_studio.widgets.messages import button

BAR_STEPS = 1000


class JobStrip(QFrame):
    """A line that is hidden while there is no job."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("card", True)
        self._job: WorkerJob | None = None
        self._accept: Callable[[], None] = self.clear
        self.title, self.progress = label("", "title"), ElidedLabel("dim")
        self.elapsed = label("", "dim")
        self.bar = QProgressBar(textVisible=False)
        self.bar.setAccessibleName("Progress")
        self.open_button = button("Open", lambda: self._accept())
        self.cancel_button = button("Cancel", self._cancel)
        texts = hbox(self.title, (self.progress, 1), (STRETCH, 0), self.elapsed, spacing=10)
        left = vbox(texts, self.bar, spacing=6)
        parts = (left, 1), self.open_button, self.cancel_button
        hbox(*parts, on=self, spacing=12, margins=(12, 8, 8, 8))
        self.hide()

    def show_job(self, title: str, job: WorkerJob) -> None:
        """Follow a job until :meth:`clear`."""
        self._job = job
        self._show(title, "Cancel", offers=False)
        job.ticked.connect(self._refresh)
        self._refresh()

    def offer(self, title: str, accept: Callable[[], None]) -> None:
        """Offer a result for the user to open or discard."""
        self._job, self._accept = None, accept
        self._show(title, "Discard", offers=True)
        self.progress.set_text("")
        self.elapsed.setText("")

    def _show(self, title: str, leave: str, offers: bool) -> None:
        self.title.setText(title)
        self.cancel_button.setText(leave)
        self.cancel_button.setEnabled(True)
        self.open_button.setVisible(offers)
        self.bar.setVisible(not offers)
        self.show()

    def clear(self) -> None:
        self._job = None
        self.hide()

    def _cancel(self) -> None:
        if self._job is None:
            self.clear()
            return
        self.cancel_button.setEnabled(False)
        self._job.cancel()

    def _refresh(self) -> None:
        if (job := self._job) is None:
            return
        self.progress.set_text(job.text)
        self.elapsed.setText(seconds(job.seconds))
        self.bar.setRange(0, 0 if job.fraction is None else BAR_STEPS)
        if job.fraction is not None:
            self.bar.setValue(round(BAR_STEPS * min(max(job.fraction, 0.0), 1.0)))
