"""The method that Solve runs, with its options and its time limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from PySide6.QtCore import QObject, Signal

from enplace.frameworks.framework import OPS
from enplace.frameworks.registry import usual_grain
from enplace.option import Option, Value
from enplace.placing.registry import EVERY
from enplace.values.problem import LATENCY, THROUGHPUT
from enplace.values.profile import Profile
from enplace_studio.explain.titles import grain_text, short_title, values_text
from enplace_studio.jobs.solver import Solver

TIME_LIMITS_S = (2, 5, 10, 30, 60, 300)
USUAL_TIME_LIMIT_S = 10
MOST_RECENT = 5
SHORT_OBJECTIVES = {THROUGHPUT: "pipeline", LATENCY: "query"}
"""An objective that is not the method's usual one, as the method button shows it."""


@dataclass(frozen=True)
class Choice:
    """What Solve runs.

    Attributes
    ----------
    method, objective : str
        Empty for the usual one.
    values : mapping of str to Value
        Options that differ from their default, by name; methods ignore unknown ones.
    time_limit_s : int
        How long a method that searches may take.
    grain : str
        What stays whole, such as ``block``; empty for what is usual.
    """

    method: str = ""
    objective: str = ""
    values: Mapping[str, Value] = field(default_factory=dict)
    time_limit_s: int = USUAL_TIME_LIMIT_S
    grain: str = ""


class ChosenMethod(QObject):
    """The user's choice of a method, completed with what the solver knows about it.

    Attributes
    ----------
    recent : tuple of (str, str)
        Names and objectives of the methods chosen last, the latest first.
    """

    changed = Signal()
    """The user chose another method, option or limit, or the methods are now known."""

    def __init__(self, solver: Solver, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._solver = solver
        self._choice = Choice()
        self._profile: Profile | None = None
        self.recent: tuple[tuple[str, str], ...] = ()
        solver.methods_changed.connect(self.changed)

    @property
    def choice(self) -> Choice:
        """The choice, with the names of the usual method and objective filled in."""
        return replace(self._choice, method=self.method, objective=self.objective)

    @property
    def method(self) -> str:
        """The chosen placer's name."""
        return self._choice.method or self._solver.default_method

    @property
    def objective(self) -> str:
        """The objective that the chosen placer works for."""
        return self._solver.aim(self.method, self._choice.objective)

    @property
    def values(self) -> Mapping[str, Value]:
        """Options that differ from their default, by name."""
        return self._choice.values

    @property
    def time_limit_s(self) -> int:
        """How long a search may take."""
        return self._choice.time_limit_s

    @property
    def grain(self) -> str:
        """What stays whole; nothing if it is ``op``."""
        if self._profile is None:
            return OPS
        return self._choice.grain or usual_grain(self._profile, self.objective)

    @property
    def options(self) -> tuple[Option, ...]:
        """The options of the chosen placer for the chosen objective."""
        method = self._solver.methods.get(self.method)
        return () if method is None else method.options_for(self.objective)

    @property
    def text(self) -> str:
        """The choice as the header's button shows it."""
        texts = [short_title(self._solver.title(self.method))]
        if self.objective != self._solver.aim(self.method):
            texts.append(SHORT_OBJECTIVES[self.objective])
        if self._solver.searches(self.method):
            texts.append(f"{self.time_limit_s} s")
        known = self._solver.known_values(self.method, self.objective, self.values)
        texts.append(values_text(known))
        texts.append(grain_text(self.grain))
        return ", ".join(filter(None, texts))

    def long_title(self, method: str, objective: str) -> str:
        """Return the title of a method, with an objective that is not its usual one."""
        title = self._solver.title(method)
        unusual = objective != self._solver.aim(method)
        return f"{title}, {SHORT_OBJECTIVES[objective]}" if unusual else title

    def forget(self, profile: Profile | None) -> None:
        """Return to the usual method, as another model is open; the time limit stays."""
        self._profile = profile
        self.use(Choice(time_limit_s=self.time_limit_s))

    def restore(self, recent: Sequence[object], time_limit: str) -> None:
        """Continue with the methods and the time limit of the last session.

        Parameters
        ----------
        recent : sequence of str
            Method and objective of the methods chosen last; anything else is ignored.
        time_limit : str
            One of :data:`TIME_LIMITS_S` in digits; anything else is ignored.
        """
        pairs = [tuple(str(each).split()) for each in recent]
        known = [(pair[0], pair[1]) for pair in pairs if len(pair) == 2 and pair[1] in EVERY]
        self.recent = tuple(known[:MOST_RECENT])
        limit_s = int(time_limit) if time_limit.isdecimal() else 0
        known_limit_s = limit_s if limit_s in TIME_LIMITS_S else USUAL_TIME_LIMIT_S
        self.use(Choice(time_limit_s=known_limit_s))

    def use(self, choice: Choice) -> None:
        """Make this choice."""
        self._choice = choice
        if choice.method:
            newest = (choice.method, self.objective)
            others = (each for each in self.recent if each != newest)
            self.recent = (newest, *others)[:MOST_RECENT]
        self.changed.emit()

    def set_method(self, name: str, objective: str = "") -> None:
        """Use this method, and optionally this objective, from now on."""
        self.use(replace(self._choice, method=name, objective=objective))

    def set_values(self, **values: Value) -> None:
        """Use these values of options, and the defaults of all others."""
        self.use(replace(self._choice, values=values))

    def set_time_limit(self, seconds: int) -> None:
        """Search for this long from now on."""
        self.use(replace(self._choice, time_limit_s=seconds))
