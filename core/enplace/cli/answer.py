"""The answer of a command: text for people, JSON for programs."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from enplace import __version__
from enplace.text import printable

YES, NO, BAD_INPUT, FAULT, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 70, 130, 141

INTERRUPTED_LINE = "\nenplace: interrupted"
"""What Ctrl-C leaves on standard error; "^C" may be on the line before."""


@dataclass(frozen=True)
class Answer:
    """The outcome of a command.

    Attributes
    ----------
    document : dict
        Plain data for ``--json``.
    text : str
        The same for people.
    status : int
        Exit status.
    """

    document: dict[str, Any]
    text: str
    status: int = YES


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="enplace")
@click.pass_context
def cli(context: click.Context) -> None:
    """Decide where every op of a model runs, and in what order, on several GPUs.

    Exit status: 0 for success, 1 when the answer is no (it does not fit, there is no such plan),
    2 for bad input, with one line that says how to correct it.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def command(
    name: str, cls: type[click.Command] = click.Command
) -> Callable[[Callable[..., Answer]], click.Command]:
    """Make a command with ``--json`` of a function that returns an :class:`Answer`.

    Raises
    ------
    ValueError
        If another command has the name; the message is for the developer.
    """
    if name in cli.commands:
        raise ValueError(f"command '{name}': another one has this name; choose another")

    def register(answer: Callable[..., Answer]) -> click.Command:
        @cli.command(name, cls=cls)
        @click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
        @click.pass_context
        @functools.wraps(answer)
        def invoke(context: click.Context, as_json: bool, **arguments: Any) -> None:
            given = answer(**arguments)
            text = json.dumps(given.document, indent=2, allow_nan=False) if as_json else given.text
            click.echo(printable(text))
            context.exit(given.status)

        return invoke

    return register
