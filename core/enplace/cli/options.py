"""Options that several commands share, and what the shell completes for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from enplace.errors import EnplaceError

if TYPE_CHECKING:
    from enplace.placing.options import Value

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

FILE = click.Path()
POLICIES = click.Choice(["priority", "strict", "fifo"])
LINK_POLICIES = click.Choice(["fifo", "priority", "ordered"])


class PositiveType(click.ParamType):  # type: ignore[type-arg]
    """A finite number greater than zero."""

    name = "number"

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        if number <= 0:
            self.fail(f"{value} is not above zero", param, ctx)
        if math.isinf(number):
            self.fail(f"{value} is too large", param, ctx)
        return number


POSITIVE = PositiveType()


def _complete(titles: Mapping[str, str], incomplete: str) -> list[CompletionItem]:
    """Offer the names that begin with what was typed, each with its title."""
    return [
        CompletionItem(name, help=title)
        for name, title in titles.items()
        if name.startswith(incomplete)
    ]


class RegistryType(click.ParamType):  # type: ignore[type-arg]
    """A name in a registry, which is read only when needed."""

    def __init__(self, name: str, read_titles: Callable[[], Mapping[str, str]]) -> None:
        self.name = name
        self._read_titles = read_titles

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return click.Choice(list(self._read_titles())).convert(value, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return _complete(self._read_titles(), incomplete)


class MethodType(click.ParamType):  # type: ignore[type-arg]
    """The name of a placer."""

    name = "method"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from enplace.placers import placers

        titles = {name: placer.title for name, placer in placers().items()}
        return _complete(titles, incomplete)


class MethodsType(MethodType):
    """Names of placers, separated by commas."""

    name = "methods"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        found = super().shell_complete(ctx, param, last)
        return [CompletionItem(before + comma + item.value, help=item.help) for item in found]


class PresetType(click.ParamType):  # type: ignore[type-arg]
    """The name of a preset cluster."""

    name = "preset"
    words: tuple[str, ...] = ()

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from enplace.readers.clusters import presets

        names = [name for name in (*presets(), *self.words) if name.startswith(incomplete)]
        return [CompletionItem(name) for name in names]


class ClusterType(PresetType):
    """A preset, a file, or the devices that a profile carries."""

    name = "cluster"
    words = ("local", "from-file")

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        found = super().shell_complete(ctx, param, incomplete)
        return found or [CompletionItem(incomplete, type="file")]


profile_argument = click.argument("profile", type=FILE)
plan_argument = click.argument("plan", type=FILE)


def cluster_option(required: bool, default: str = "") -> Decorator:
    """``--cluster``, and ``--scale-compute`` and ``--scale-links`` for it."""
    also = f" [default: {default}]" if default else ""
    return all_of(
        click.option(
            "--cluster",
            type=ClusterType(),
            required=required,
            metavar="CLUSTER",
            help="A preset, a JSON file, 'local' (the devices that the profile was measured on) or "
            f"'from-file' (the devices in the input file).{also}",
        ),
        click.option(
            "--scale-compute",
            type=POSITIVE,
            default=1.0,
            metavar="FACTOR",
            help="Make every device faster by this factor.",
        ),
        click.option(
            "--scale-links",
            type=POSITIVE,
            default=1.0,
            metavar="FACTOR",
            help="Make every link faster by this factor.",
        ),
    )


constraint_options: Decorator
"""``--pin``, ``--colocate``, ``--forbid``."""

solver_options: Decorator
"""``--objective``, ``--time-limit``, ``--seed``, and ``--option`` with its other spellings."""


def all_of(*options: Decorator) -> Decorator:
    """Combine several options in one decorator."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


constraint_options = all_of(
    click.option(
        "--pin",
        "pins",
        multiple=True,
        metavar="REGEX=DEVICE",
        help="Keep the ops whose names match on a device (GPU:1, 1, or as shown: 'GPU 1'). "
        "Can be repeated. The regex may match anywhere in a name; the full name of an op means "
        "only that op.",
    ),
    click.option(
        "--colocate",
        multiple=True,
        metavar="REGEX",
        help="Keep the ops whose names match together on one device. Can be repeated.",
    ),
    click.option(
        "--forbid",
        multiple=True,
        metavar="REGEX=DEVICE",
        help="Keep the ops whose names match off a device. Can be repeated.",
    ),
)

solver_options = all_of(
    click.option(
        "--objective",
        type=click.Choice(["step-time", "throughput", "latency"]),
        default="step-time",
        show_default=True,
        help="What to optimise: the time of one step, the throughput of a pipeline, or the latency "
        "of one query.",
    ),
    click.option(
        "--time-limit",
        type=POSITIVE,
        metavar="SECONDS",
        help="Stop a search after this time, with its best plan.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0, 2**32 - 1),
        default=0,
        show_default=True,
        help="Seed of random numbers: equal seeds give equal plans.",
    ),
    click.option(
        "--option",
        "option_texts",
        multiple=True,
        metavar="NAME=VALUE",
        help="An option of the method; 'enplace methods --json' lists them. Can be repeated.",
    ),
    click.option(
        "--solver",
        type=click.Choice(["highs", "cbc", "gurobi", "cplex"]),
        help="Solver of integer programs. [default: highs; for max-load-ip CP-SAT, for pesto "
        "the best that is installed]",
    ),
    click.option(
        "--load",
        type=click.Choice(["sum", "overlap", "duplex"]),
        help="How the transfers of a pipeline's device count: added to its compute time, "
        "overlapping with it, or overlapping with it and with each other (in and out). "
        "[default: sum]",
    ),
    click.option(
        "--pipeline",
        type=click.Choice(["1f1b", "gpipe"]),
        help="How a pipeline trains: one forward, one backward (PipeDream), or all samples "
        "forward first. [default: 1f1b]",
    ),
    click.option(
        "--replicate", is_flag=True, help="Let several devices run replicas of one stage."
    ),
    click.option(
        "--two-level",
        is_flag=True,
        help="Also count transfers between the machines of a pipeline.",
    ),
    click.option(
        "--family",
        type=click.Choice(["stacked", "branches", "layers"]),
        help="How the expert places the model: layers in blocks, branches of each cell dealt out, "
        "or convolution, normalisation and activation layers in turn. [default: recognised]",
    ),
    click.option(
        "--rules",
        type=FILE,
        metavar="RULES.txt",
        help="Device of some ops in the expert's plan: a file with lines of REGEX -> DEVICE.",
    ),
    click.option(
        "--memory-rule",
        type=click.Choice(["makers", "sums"]),
        help="What m-etf and m-sct count as memory on a GPU, as in Baechi's code: outputs that "
        "are still needed, without received copies; or all inputs and outputs, as if none "
        "were freed. [default: live tensors, with received copies]",
    ),
)

SPELLINGS = {
    name.replace("-", "_"): name
    for name in (
        "solver",
        "load",
        "pipeline",
        "replicate",
        "two-level",
        "family",
        "rules",
        "memory-rule",
    )
}
"""Flags that spell ``--option NAME=VALUE``; fixed here, as importing the placers is slow."""


def take_values(given: dict[str, Any]) -> dict[str, Value]:
    """Take the placer's own options, in either spelling, out of those given.

    Raises
    ------
    EnplaceError
        If a text is not of the form NAME=VALUE.
    """
    spelt = {name: given.pop(flag) for flag, name in SPELLINGS.items()}
    values: dict[str, Value] = {name: value for name, value in spelt.items() if value}
    for text in given.pop("option_texts"):
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise EnplaceError(f"--option {text!r}: write NAME=VALUE, for example 'load=overlap'")
        values[name] = value
    return values


schedule_option = click.option(
    "--schedule",
    "schedule_file",
    type=FILE,
    metavar="OUT.json",
    help="Write all starts and finishes, to check them with your own program.",
)
