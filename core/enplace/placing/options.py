"""The options of placers: those that all share, and those that a placer declares as data.

A placer declares an :class:`~enplace.option.Option` in the module where it reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace

from enplace.bounds import Proofs
from enplace.errors import EnplaceError
from enplace.extras import import_extra
from enplace.option import SWITCH, WHOLE, Option, Value
from enplace.placing.stop import Stop
from enplace.solvers.milp import HANDLERS, SOLVERS, installed
from enplace.values.load_rule import PIPELINES, TRANSFERS, USUAL, LoadRule
from enplace.values.plan import Plan
from enplace.values.problem import LATENCY, THROUGHPUT

PROGRAM_S = 60.0
"""Time limit of a program, dynamic or integer, if none is set."""


LOAD = Option(
    "load",
    TRANSFERS,
    "sum",
    "How a pipeline's transfers count: added to a device's compute time, overlapping with it, or "
    "overlapping with it and with each other (in and out).",
    THROUGHPUT,
)
PIPELINE = Option(
    "pipeline",
    PIPELINES,
    "1f1b",
    "How a pipeline trains: one forward, one backward (PipeDream); the same with several stages "
    "on each device (Megatron), with the gradients of weights last (ZB-H1), or both, with two "
    "stages in a V (ZB-V); or all samples forward first (GPipe).",
    THROUGHPUT,
)
REPLICATE = Option(
    "replicate", SWITCH, False, "Let several devices run replicas of one stage.", THROUGHPUT
)
TWO_LEVEL = Option(
    "two-level",
    SWITCH,
    False,
    "Also count the transfers of a pipeline between machines.",
    THROUGHPUT,
)
RECOMPUTE = Option(
    "recompute",
    SWITCH,
    False,
    "Run forward ops again where memory is short: in a pipeline all those of a stage, in a step "
    "those that help. For a step time it chooses the method enplace-recompute.",
    THROUGHPUT,
)
OFFLOAD = Option(
    "offload",
    SWITCH,
    False,
    "Send to the host what would be kept for backward ops where memory is short, and fetch it in "
    "time. This chooses the method enplace-offload or, with --recompute, enplace-recompute, which "
    "does whichever costs less for each tensor.",
)
MICROBATCHES = Option(
    "microbatches",
    WHOLE,
    8,
    "Micro-batches of a step, each of which is a sample of a pipeline. They share what runs once "
    "for all of them, such as updates. With GPipe all are in flight; interleaved stages shorten "
    "such a step.",
    THROUGHPUT,
)
IN_FLIGHT = Option(
    "in-flight",
    SWITCH,
    True,
    "Count the activations of all samples in flight towards memory, not only those of one sample "
    "as in the paper.",
    THROUGHPUT,
)
LOAD_OPTIONS = (LOAD, PIPELINE, MICROBATCHES)
"""Options of every placer that serves the objective throughput."""

REPLICA_OPTIONS = (*LOAD_OPTIONS, REPLICATE, TWO_LEVEL)
"""Options of the placers that support replicas and several machines."""

STAGE_OPTIONS = (*REPLICA_OPTIONS, RECOMPUTE, IN_FLIGHT)
"""Options of the placers that count samples in flight stage by stage."""

SOLVER = Option(
    "solver",
    SOLVERS,
    "",
    "The solver of integer programs. [default: the method's own]",
)

ROUNDS = Option(
    "rounds",
    WHOLE,
    0,
    "Budget of work for the search, in rounds whose size depends on the method. "
    "[default: until the time limit, or the method's usual number]",
)


@dataclass(frozen=True)
class Progress:
    """A report of a running placer.

    Attributes
    ----------
    seconds : float
        Since the placer started.
    message : str
        What the placer is doing, for people.
    fraction : float or None
        How much of the work is done, 0 to 1, if known.
    incumbent : Plan or None
        The best plan so far, if it is new.
    objective_us : float or None
        The step time, time per sample or latency of the incumbent.
    bound_us : float or None
        A lower bound on the objective.
    engine, bound_by : str
        The part of the placer that found the plan, and the part that proved the bound. Empty if the
        placer has no parts, or if the bound was known before the search.
    fits : bool
        Whether the incumbent fits in memory.
    """

    seconds: float
    message: str
    fraction: float | None = None
    incumbent: Plan | None = None
    objective_us: float | None = None
    bound_us: float | None = None
    engine: str = ""
    bound_by: str = ""
    fits: bool = True


def _ignore(progress: Progress) -> None:
    pass


@dataclass(frozen=True)
class PlaceOptions:
    """What a placer is asked to do, and the context of its run.

    Attributes
    ----------
    objective : str
        One of those that the placer serves; empty for its first one.
    stop : Stop
        When a search stops; quick placers end long before.
    seed : int
        Seed of everything random: equal seeds give equal plans.
    progress : callable
        Called with every incumbent.
    start : Plan or None
        A plan to begin from, for placers with :data:`~enplace.placing.registry.WARM_START`.
    exact : Plan or None
        The best plan of a small problem, for placers with :data:`~enplace.placing.registry.EXACT`:
        they need not search.
    values : mapping of str to value
        The placer's own options by name; options not listed have their defaults.
    proofs : Proofs
        Lower bounds on the step time, known beforehand or proven during the run.
    """

    objective: str = ""
    stop: Stop = field(default_factory=Stop)
    seed: int = 0
    progress: Callable[[Progress], None] = _ignore
    start: Plan | None = None
    exact: Plan | None = None
    values: Mapping[str, Value] = field(default_factory=dict)
    proofs: Proofs = field(default_factory=Proofs)

    @property
    def seconds(self) -> float:
        """Seconds since the run began, not counting compilation."""
        return self.stop.clock.seconds

    @property
    def without_bounds(self) -> PlaceOptions:
        """The options, where progress leaves out bounds: they hold for one graph with copies."""
        if self.is_quiet:
            return self

        def report(progress: Progress) -> None:
            if progress.incumbent is not None or not progress.bound_by:
                self.progress(replace(progress, bound_us=None))

        return replace(self, progress=report)

    @property
    def quiet(self) -> PlaceOptions:
        """Return the options for another placer that this one runs: no reports, no own values."""
        return replace(self, progress=_ignore, exact=None, values={})

    @property
    def is_quiet(self) -> bool:
        """Whether nobody receives the reports."""
        return self.progress is _ignore

    @property
    def load_rule(self) -> LoadRule:
        """The load rule that :data:`STAGE_OPTIONS` describe."""
        return LoadRule(
            self.choice(LOAD),
            self.choice(PIPELINE),
            replicate=self.is_on(REPLICATE),
            two_level=self.is_on(TWO_LEVEL),
            recompute=self.is_on(RECOMPUTE),
            in_flight=self.is_on(IN_FLIGHT) and self.objective != LATENCY,  # a query is alone
            microbatches=max(1, self.whole(MICROBATCHES)),
        )

    def choice(self, option: Option) -> str:
        """Return the value of an option that is one of a list, or a file."""
        return str(self._value(option))

    def is_on(self, option: Option) -> bool:
        """Return the value of a switch."""
        return bool(self._value(option))

    def whole(self, option: Option) -> int:
        """Return the value of an option that is a whole number."""
        return int(self._value(option))

    def number(self, option: Option) -> float:
        """Return the value of an option that is a number."""
        return float(self._value(option))

    def _value(self, option: Option) -> Value:
        return self.values.get(option.name, option.default)

    @property
    def rounds(self) -> int | None:
        """The budget of :data:`ROUNDS`; None for the time limit or the method's usual number."""
        return self.whole(ROUNDS) or None

    def solver_or(self, usual: str) -> str:
        """Return the chosen :data:`SOLVER`, or the usual one.

        Raises
        ------
        EnplaceError
            If the chosen one is not installed.
        """
        solver = self.choice(SOLVER)
        if solver and not installed(solver):
            if solver not in HANDLERS:
                import_extra("pulp", "solvers")
            raise EnplaceError(
                f"solver {solver} is not installed; use one of "
                f"{', '.join(filter(installed, SOLVERS))}"
            )
        return solver or usual


def load_values(rule: LoadRule) -> dict[str, Value]:
    """Return the values of :data:`STAGE_OPTIONS` for a rule, leaving out those by default."""
    usual, values = asdict(USUAL), asdict(rule)
    options = zip(STAGE_OPTIONS, usual, strict=True)
    return {option.name: values[key] for option, key in options if values[key] != usual[key]}
