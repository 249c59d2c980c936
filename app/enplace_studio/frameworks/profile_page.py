"""How the open profile was measured: the step, the variation of its ops, the links."""

from __future__ import annotations

from PySide6.QtWidgets import QDialog, QGridLayout, QWidget

from enplace.frameworks.link_fits import about_poor, about_presets, link_fits
from enplace.text import count, percent
from enplace.values.device_scopes import about_scopes
from enplace.values.measurement import ESTIMATED
from enplace.values.profile import Profile
from enplace_studio.explain.titles import model_title
from enplace_studio.frameworks import profile_facts as facts
from enplace_studio.frameworks.plots import DeviationPlot, LinkPlot
from enplace_studio.widgets.column import Column
from enplace_studio.widgets.fact_widgets import Line
from enplace_studio.widgets.labels import label, paragraph
from enplace_studio.widgets.layouts import hbox, vbox
from enplace_studio.widgets.messages import close_row
from enplace_studio.widgets.panel import Panel
from enplace_studio.widgets.sizes import give_size
from enplace_studio.widgets.theme import theme

SIZE = (900, 560)
MOST_LINKS, MOST_TYPES = 6, 8
FACTS_A_ROW = 4


class ProfilePage(QDialog):
    """A page with facts on top; below, plots of what was measured, and the ops by type.

    It is as high as what it shows.
    """

    def __init__(self, profile: Profile, simulated_us: float | None, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle("How it was measured")
        steps = facts.step_facts(profile, simulated_us)
        self.lines = [*steps, *facts.held_facts(profile)]
        self.deviations, self.links = facts.deviations(profile), link_fits(profile)
        self.about_presets = about_presets(profile)
        column = Column("How it was measured")
        body = column.fill(spacing=10)
        how = ESTIMATED if profile.measured.estimated else "measured"
        body.addWidget(label(f"How {model_title(profile.name)} was {how}", "heading"))
        body.addWidget(self._step_panel(profile, knows_step=bool(steps)))
        plots = [
            *([self._deviation_panel(self.deviations)] if self.deviations else []),
            *([self._link_panel()] if self.links else []),
        ]
        below = plots if len(plots) > 1 else [*plots, self._type_panel(profile)]
        body.addLayout(hbox(*((each, 1) for each in below), spacing=10), 1)
        if missing := self._not_measured():
            body.addWidget(paragraph(missing))
        vbox((column, 1), close_row(self), on=self, margins=(16, 16, 16, 14))
        give_size(self, SIZE)
        if not plots:
            around = self.sizeHint().height() - column.sizeHint().height()
            needed = body.totalHeightForWidth(self.width() - 32) + around
            self.resize(self.width(), min(self.height(), needed))

    def _not_measured(self) -> str:
        """Say what the profile does not have, in a sentence each."""
        missing = []
        if self.deviations is None:
            missing.append("Not measured: how ops vary. Profile the model itself to see that.")
        if not self.links:
            reason = self.about_presets or "No links were measured."
            missing.append(f"{reason} Plans use the links of the chosen cluster.")
        return " ".join(missing)

    def _step_panel(self, profile: Profile, knows_step: bool) -> Panel:
        panel = Panel("Step")
        grid = QGridLayout()
        grid.setHorizontalSpacing(28)
        grid.setVerticalSpacing(2)
        for number, (name, value) in enumerate(self.lines):
            row, place = divmod(number, FACTS_A_ROW)
            grid.addWidget(label(value, "number"), 3 * row, place)
            grid.addWidget(label(name, "dim"), 3 * row + 1, place)
            grid.setRowMinimumHeight(3 * row + 2, round(8 * theme.scale))
        grid.setColumnStretch(FACTS_A_ROW, 1)
        panel.body.addLayout(grid)
        if about := profile.measured.about_times:
            panel.body.addWidget(paragraph(about))
        elif not knows_step:
            panel.body.addWidget(paragraph("The profile does not record how long its step took."))
        if scopes := about_scopes(profile, profile.name):
            panel.body.addWidget(paragraph(scopes))
        if passes := profile.measured.about_passes:
            panel.body.addWidget(paragraph(passes))
        for note in profile.measured.notes:
            panel.body.addWidget(paragraph(note))
        return panel

    def _type_panel(self, profile: Profile) -> Panel:
        panel = Panel("Compute time by type of op", "time, share, number")
        for name, value in facts.times_by_type(profile, MOST_TYPES):
            panel.body.addWidget(Line(name, value))
        panel.body.addStretch()
        return panel

    def _deviation_panel(self, found: facts.Deviations) -> Panel:
        panel = Panel("Variation of the ops")
        panel.set_legend("solid: ops · dashed: their compute time")
        panel.body.addWidget(DeviationPlot(found), 1)
        half = percent(found.within(found.time_us, 0.5))
        panel.body.addWidget(
            paragraph(
                "Share of the ops that vary at most this much from step to step (standard "
                f"deviation over mean, {count(len(found.deviation), 'op')}). Half of the compute "
                f"time is in ops that stay within {half}."
            )
        )
        return panel

    def _link_panel(self) -> Panel:
        panel = Panel("Transfer times")
        panel.set_legend("dots: measured · line: latency + bytes / bandwidth")
        panel.body.addWidget(LinkPlot(self.links), 1)
        for fit in self.links[:MOST_LINKS]:
            panel.body.addWidget(Line(fit.title, fit.text))
        if len(self.links) > MOST_LINKS:
            panel.body.addWidget(paragraph(f"and {len(self.links) - MOST_LINKS} more"))
        for text in filter(None, (about_poor(self.links), self.about_presets)):
            panel.body.addWidget(paragraph(text))
        return panel
