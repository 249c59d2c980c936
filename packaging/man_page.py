"""Write the manual pages of ``enplace`` and ``enplace-studio`` from what their ``--help`` says.

Usage: python packaging/man_page.py DIRECTORY
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from enplace import __version__
from enplace.cli import cli

STUDIO = rf""".TH ENPLACE-STUDIO 1 "" "Enplace {__version__}"
.SH NAME
enplace-studio \- decide in a window where every op of a model runs
.SH SYNOPSIS
.B enplace-studio
[\fIFILE\fR]
.SH DESCRIPTION
The studio opens a project, which is a file that ends in .enplace, or any other profile that
.BR enplace (1)
reads.
.SH SEE ALSO
.BR enplace (1)
"""


def main(folder: Path) -> None:
    """Write both pages."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "enplace.1").write_text("\n".join(page()) + "\n", encoding="utf-8")
    (folder / "enplace-studio.1").write_text(STUDIO, encoding="utf-8")


def page() -> Iterator[str]:
    """Yield the lines of the page of ``enplace``, with all commands."""
    context = click.Context(cli, info_name="enplace")
    summary, _, rest = (cli.help or "").partition("\n\n")
    yield f'.TH ENPLACE 1 "" "Enplace {__version__}"'
    yield ".SH NAME"
    yield f"enplace \\- {escaped(summary[0].lower() + summary[1:].rstrip('.'))}"
    yield ".SH SYNOPSIS"
    yield ".B enplace"
    yield r"\fICOMMAND\fR [\fIOPTIONS\fR] [\fIARGUMENTS\fR]"
    yield ".SH DESCRIPTION"
    yield escaped(rest)
    yield ".SH COMMANDS"
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        yield from section(command, click.Context(command, info_name=name, parent=context))
    yield ".SH SEE ALSO"
    yield ".BR enplace-studio (1)"


def section(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield what the page says about a command."""
    usage = " ".join(piece for piece in command.collect_usage_pieces(context) if piece)
    yield f".SS enplace {context.info_name} {escaped(usage)}"
    for number, paragraph in enumerate((command.help or "").split("\n\n")):
        yield from [".PP"] * (number > 0)
        yield escaped(paragraph)
    for parameter in command.get_params(context):
        names, text = parameter.get_help_record(context) or ("", "")
        if text and "--help" not in parameter.opts:
            yield ".TP"
            yield rf"\fB{escaped(names)}\fR"
            yield escaped(text)


def escaped(text: str) -> str:
    """Return text on one line as troff reads it."""
    line = " ".join(text.replace("\b", "").split())
    line = line.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq")
    return rf"\&{line}" if line.startswith(".") else line


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
