"""Options that several commands share, and what the shell completes for them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from enplace.errors import EnplaceError
from enplace.option import FILE as FILE_NAME
from enplace.option import SIZES, SWITCH, TEXT, WORDS

if TYPE_CHECKING:
    from enplace.option import Option, Value
    from enplace.values.constraints import Kind

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
        return click.Choice(list(self._read_titles()), case_sensitive=False).convert(
            value, param, ctx
        )

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


class NumbersType(click.ParamType):  # type: ignore[type-arg]
    """Positive integers, separated by commas."""

    name = "numbers"

    def __init__(self, most: int) -> None:
        self._range = click.IntRange(1, most)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        words: list[Any] = value.split(",") if isinstance(value, str) else list(value)
        return tuple(sorted({self._range.convert(word, param, ctx) for word in words}))


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
method_option = click.option(
    "--method",
    type=MethodType(),
    metavar="METHOD",
    help="'enplace methods' lists them. [default: the objective's usual one]",
)


def whole_option(
    flag: str, least: int, most: int, text: str, default: int | None = None
) -> Decorator:
    """Make an option that takes a whole number."""
    usual: dict[str, Any] = {} if default is None else {"default": default, "show_default": True}
    return click.option(flag, type=click.IntRange(least, most), metavar="N", help=text, **usual)


def cluster_option(required: bool, default: str = "") -> Decorator:
    """``--cluster``, and ``--scale-compute``, ``--scale-links`` and ``--reserve`` for it."""
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
        click.option(
            "--reserve",
            default="",
            metavar="SIZE",
            help="Memory of each GPU that no plan may use: 1GiB, or 5%. [default: what the cluster "
            "says]",
        ),
    )


solver_options: Decorator
"""``--objective``, ``--time-limit``, ``--seed`` and ``--option``."""


def all_of(*options: Decorator) -> Decorator:
    """Combine several options in one decorator."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


constraints_option = all_of(
    click.option(
        "--constraints",
        type=FILE,
        metavar="FILE",
        help="Also obey the constraints in a file that the studio exported; a --pin overrides it.",
    ),
    click.option(
        "--grain",
        default="",
        metavar="NAME",
        help="Keep together what the model's framework knows as one, such as 'module'. [default: "
        "'block' for the throughput of PyTorch's models, unless other constraints divide blocks; "
        "else 'op', which keeps nothing together]",
    ),
    click.option(
        "--whole",
        multiple=True,
        metavar="REGEX",
        help=r"Keep layers whole: ops whose names, or scopes, have the same match, such as "
        r"'layers/\d+', stay together on one device. Can be repeated.",
    ),
)

seed_option = whole_option(
    "--seed",
    0,
    2**32 - 1,
    "Seed of random numbers: equal seeds give equal plans unless time ends the search.",
    default=0,
)

placer_values_option = click.option(
    "--option",
    "option_texts",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the method; 'enplace methods --json' lists them. Can be repeated. Each "
    "option also has a flag of its own, such as --load or --rounds.",
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
    seed_option,
    placer_values_option,
)


class DeclaredCommand(click.Command):
    """A command with a flag for each of the options that others declare.

    Importing these is slow, so they are read only when the command is called.
    """

    def declared(self) -> Iterable[Option]:
        """Return the options."""
        raise NotImplementedError

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        *own, help_flag = super().get_params(ctx)
        return [*own, *map(flag_of, self.declared()), help_flag]


class PlacerCommand(DeclaredCommand):
    """A command with a flag for every kind of constraint, and for every option of a placer.

    ``--NAME VALUE`` is another spelling of ``--option NAME=VALUE``.
    """

    def declared(self) -> Iterable[Option]:
        from enplace.placers import all_options

        return all_options().values()

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        from enplace.values.constraints import KINDS

        found = super().get_params(ctx)
        at = [param.name for param in found].index("constraints")
        return [*found[:at], *map(_constraint_flag, KINDS.values()), *found[at:]]


def _constraint_flag(kind: Kind) -> click.Option:
    return click.Option(
        [f"--{kind.key}", kind.keyword],
        multiple=True,
        metavar=kind.metavar,
        help=f"{kind.help} Can be repeated.",
    )


@functools.cache
def flag_of(option: Option) -> click.Option:
    """Make the flag of an option."""
    usual = f" [default: {option.default}]" if option.default else ""
    flag = option.flag or option.name
    flags = f"--{flag}/--no-{flag}" if option.default is True else f"--{flag}"
    return click.Option([flags, option.key], help=option.help + usual, **_flag_values(option))


def _flag_values(option: Option) -> dict[str, Any]:
    """Return what click needs to know about the values of an option."""
    if option.values == SWITCH:
        return {"is_flag": True, "default": None}
    if option.choices:
        return {"type": click.Choice(option.choices, case_sensitive=False)}
    if option.most:
        return {"type": click.IntRange(option.least, option.most), "metavar": "N"}
    kinds: dict[Any, dict[str, Any]] = {
        FILE_NAME: {"type": FILE, "metavar": "FILE"},
        TEXT: {"metavar": "NAME"},
        WORDS: {"metavar": "WORD", "multiple": True},
        SIZES: {"metavar": "NAME=N", "multiple": True},
    }
    return kinds.get(option.values, {"metavar": "NUMBER"})


def take_given(given: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Take what was given of some options out of all that was given."""
    values = {key: given.pop(key) for key in keys}
    return {key: value for key, value in values.items() if value not in (None, ())}


def take_values(given: dict[str, Any]) -> dict[str, Value]:
    """Take the placer's own options, in either spelling, out of those given.

    Raises
    ------
    EnplaceError
        If a text is not of the form NAME=VALUE.
    """
    from enplace.placers import all_options

    known = {option.key: name for name, option in all_options().items()}
    values = {known[key]: value for key, value in take_given(given, known).items()}
    for text in given.pop("option_texts"):
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise EnplaceError(f"--option {text!r}: write NAME=VALUE, for example 'load=overlap'")
        values[name] = value
    return values


force_option = click.option(
    "--force", is_flag=True, help="Replace a file even if it is of another kind."
)

schedule_option = click.option(
    "--schedule",
    "schedule_file",
    type=FILE,
    metavar="OUT.json",
    help="Write all starts and finishes, to check them with your own program.",
)
