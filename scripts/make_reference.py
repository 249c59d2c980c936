"""Write the pages of the manual that come from the program itself: commands, methods, files, keys.

Usage: python scripts/make_reference.py FOLDER [SECONDS], the folder with the sources of the manual,
and how long a search for a picture may take. What is listed there comes from the registries, the
click commands, docstrings and schemas, never by hand.
"""

from __future__ import annotations

import csv
import inspect
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

import enplace.api
from enplace.cli.answer import cli
from enplace.cli.options import PlacerCommand
from enplace.errors import EnplaceError
from enplace.frameworks.registry import exporters, frameworks
from enplace.frameworks.roofline import GPUS
from enplace.option import Option
from enplace.pictures.graph_svg import graph_svg
from enplace.pictures.timeline_svg import timeline_svg
from enplace.placers import DEFAULT_METHODS, PlaceOptions, Placer, Stop, all_options, place, placers
from enplace.placing.registry import CAPABILITIES, MEMORY
from enplace.readers import read_profile, readers
from enplace.readers.clusters import presets
from enplace.readers.samples import samples
from enplace.text import ms, percent, rate, size
from enplace.values.problem import LATENCY, STEP_TIME, THROUGHPUT, Problem
from enplace_studio.model.method_facts import OBJECTIVES, by_purpose
from enplace_studio.shell.actions import all_actions
from enplace_studio.shell.key_sheet import topics

RESOURCES = Path(__file__).parents[1] / "resources"
PICTURED, CLUSTER = "vgg-19", "pesto"
"""The sample and the cluster of the pictures."""

SEARCH_S, ROUNDS = 4.0, 1
"""What a search may do: a few rounds, or a few seconds if it has none."""

ROLE = re.compile(r":\w+:`~?([^`]+)`")
ASIDE = re.compile(rf"\s*\((?:{ROLE.pattern},?\s*)+\)")
LITERAL = re.compile(r"``([^`]+)``")
"""A reference to a module, a bracket of nothing else, and a name in code."""

HEADINGS = ("Pesto", "FastT", "FlexFlow", "Baechi", "Tarnawski", "Celeritas")
"""Names by which a source is found among the headings of the page on the papers."""

EVERY_COMMAND = {"--json", "--help"}
"""Options that every command has."""

ALSO_WORDS = {"random", "single"}
"""Methods whose names are words of the language: a text that uses one may not mean the method."""

SCHEMAS = ("profile", "plan", "cluster", "weight-list", "stage-list")
GENERATED = "<!-- Made by scripts/make_reference.py. -->\n\n"


def main(folder: Path, search_s: float = SEARCH_S) -> None:
    """Write every page."""
    pages = folder / "reference"
    (pages / "methods").mkdir(parents=True, exist_ok=True)
    write(pages / "command-line.md", command_line())
    write(pages / "python.md", python_api())
    write(pages / "files.md", files((pages / "files.md").read_text(encoding="utf-8")))
    write(pages / "clusters.md", clusters())
    write(pages / "keys.md", keys())
    write(pages / "methods" / "index.md", method_index())
    for purpose, members in by_purpose(placers().values()).items():  # type: ignore[arg-type]
        write(pages / "methods" / f"{group_name(purpose)}.md", group_page(purpose, members))
    anchors = paper_anchors((folder / "explanation" / "papers.md").read_text(encoding="utf-8"))
    figures = simulated_figures(folder)
    for method in placers().values():
        picture = draw_plan(method, pages / "methods", search_s)
        text = method_page(method, anchors, figures, picture)
        write(pages / "methods" / f"{method.name}.md", text)


def write(path: Path, parts: Iterable[str]) -> None:
    """Write a page of its paragraphs."""
    path.write_text(GENERATED + "\n\n".join(filter(None, parts)) + "\n", encoding="utf-8")


# Tables and cells


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown; nothing without rows."""
    lines = [cells(row) for row in rows]
    names = [name[:1].upper() + name[1:] for name in head]
    return "\n".join([cells(names), cells(["---"] * len(names)), *lines]) if lines else ""


def cells(row: Iterable[str]) -> str:
    """Return a row of a table."""
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |"


def code(text: str) -> str:
    """Mark a text as code."""
    return f"`{text}`"


# The command line


def command_line() -> Iterator[str]:
    """Describe every command with its arguments and options."""
    yield "# Command line"
    yield inspect.cleandoc(cli.help or "")
    yield (
        "Every command has `--json`, which prints one JSON document on standard output, and "
        "nothing else there. Progress goes to standard error: a bar on a terminal, a line every "
        "five seconds in a log, nothing where a command is quick."
    )
    context = click.Context(cli, info_name="enplace")
    known = sorted(cli.commands.items())
    rows = ((f"[`{name}`](#{name})", each.get_short_help_str(200)) for name, each in known)
    yield table(("command", "what it does"), rows)
    for name, each in known:
        yield from command(each, click.Context(each, context, name))
    yield "## Options of methods"
    yield (
        "`place` and `compare` take these for the methods that have them; "
        "[Methods](methods/index.md) lists which. `--option NAME=VALUE` is another spelling."
    )
    yield options((flag for _, flag in sorted(placer_flags().items())), context)


def placer_flags() -> dict[str, click.Parameter]:
    """Return the flags of ``place`` that come from methods, by name."""
    known = {name.replace("-", "_") for name in all_options()}
    found = cli.commands["place"].get_params(click.Context(cli.commands["place"]))
    return {str(each.name): each for each in found if each.name in known}


def command(described: click.Command, context: click.Context) -> Iterator[str]:
    """Describe one command."""
    yield f"## {context.info_name}"
    usage = " ".join([context.command_path, *described.collect_usage_pieces(context)])
    yield f"```text\n{usage}\n```"
    yield with_code(inspect.cleandoc(described.help or ""))
    shared = placer_flags() if isinstance(described, PlacerCommand) else {}
    yield options((p for p in described.get_params(context) if p.name not in shared), context)
    if shared:
        yield "It also takes the [options of methods](#options-of-methods)."


def options(params: Iterable[click.Parameter], context: click.Context) -> str:
    """List options with their help."""
    own = (each for each in params if not EVERY_COMMAND.intersection(each.opts))
    flags = (each for each in own if isinstance(each, click.Option))
    records = (each.get_help_record(context) for each in flags)
    return "\n\n".join(f"`{r[0]}`\n: {with_code(r[1])}" for r in records if r)


def with_code(help_text: str) -> str:
    """Mark what a person types, which help on a terminal puts in quotes; write ranges as words."""
    text = re.sub(r"(?<!\w)'([^']+)'(?!\w)", r"`\1`", help_text)
    return re.sub(r"(\d+)<=x<=(\d+)", r"\1 to \2", text)


# Python


def python_api() -> Iterator[str]:
    """List what ``import enplace as ep`` offers; Sphinx reads the docstrings."""
    yield "# Python"
    yield (
        "```python\nimport enplace as ep\n```\n\n"
        "Times are in µs and sizes in bytes, as the names say. What cannot be used is refused with "
        "an `EnplaceError` of one line. `pip install 'enplace[notebook]'` adds what `to_pandas` "
        "and `plot` need."
    )
    names = [name for name in enplace.api.__all__ if name not in ("EnplaceError", "EnplaceWarning")]
    functions = [name for name in names if inspect.isfunction(getattr(enplace.api, name))]
    classes = [name for name in names if inspect.isclass(getattr(enplace.api, name))]
    usual = ["read", "place", "compare", "simulate", "read_plan", "write", "read_onnx"]
    first = usual + [name for name in functions if name not in usual]
    yield "## Functions"
    yield directives("autofunction", (f"enplace.{name}" for name in first))
    yield "## In a training script"
    yield directives("autofunction", ["enplace.apply"])
    yield "## Results"
    results = ["Result", "Comparison"]
    yield directives("autoclass", (f"enplace.{name}" for name in results), "   :members:\n")
    yield "## Values"
    yield "Frozen data, checked when it is made. Arrays are numpy's, and read-only."
    others = [f"enplace.{name}" for name in classes if name not in results]
    yield directives("autoclass", others, "   :members:\n")
    yield "## Errors"
    yield directives("autoexception", ["enplace.EnplaceError", "enplace.EnplaceWarning"])


def directives(kind: str, names: Iterable[str], options: str = "") -> str:
    """Let Sphinx read the docstrings of some names."""
    text = "\n".join(f".. {kind}:: {name}\n{options}" for name in names)
    return f"```{{eval-rst}}\n{text}\n```"


# Files


def files(introduction: str) -> Iterator[str]:
    """Add the formats that are registered, and the fields of those with a schema."""
    yield introduction.strip()
    yield "## What Enplace reads"
    rows = ((each.title, ", ".join(map(code, each.suffixes))) for each in readers().values())
    yield table(("format", "usual suffixes"), rows)
    yield "Models:"
    kinds = ((f.name, kind) for f in frameworks().values() for kind in f.kinds)
    yield table(("framework", "model"), ((name, kind.description) for name, kind in kinds))
    yield "## What Enplace writes"
    rows = ((code(name), each.title, code(each.suffix)) for name, each in exporters().items())
    yield table(("`--format`", "what it is", "suffix"), rows)
    for name in SCHEMAS:
        yield from schema_section(name)


def schema_section(name: str) -> Iterator[str]:
    """Describe the fields of a file by its JSON schema."""
    schema = json.loads((RESOURCES / f"{name}.schema.json").read_text(encoding="utf-8"))
    yield f"## Fields of a {name}"
    yield f"{schema.get('description', '')} The schema is `resources/{name}.schema.json`."
    rows = ((code(path), kind, text) for path, kind, text in fields(schema, schema, ""))
    yield table(("field", "value", "meaning"), rows)


def fields(
    schema: dict[str, Any], root: dict[str, Any], path: str
) -> Iterator[tuple[str, str, str]]:
    """Yield path, kind and meaning of every field below a schema."""
    needed = schema.get("required", ())
    patterns = (("*", inner) for inner in schema.get("patternProperties", {}).values())
    for name, inner in (*schema.get("properties", {}).items(), *patterns):
        found = resolved(inner, root)
        full = f"{path}.{name}" if path else name
        mark = "" if name in needed else ", optional"
        yield full, kind_of(found) + mark, found.get("description", inner.get("description", ""))
        if name == "cluster":
            continue  # has a section of its own
        yield from fields(found, root, full)
        if "items" in found:
            yield from fields(resolved(found["items"], root), root, f"{full}[]")


def resolved(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Follow a reference to a definition of the same schema."""
    if "$ref" not in schema:
        return schema
    return root["$defs"][schema["$ref"].rpartition("/")[2]]


def kind_of(schema: dict[str, Any]) -> str:
    """Name the type of a value for people."""
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    if "enum" in schema:
        return ", ".join(code(json.dumps(each)) for each in schema["enum"])
    if "oneOf" in schema or "anyOf" in schema:
        return " or ".join(kind_of(each) for each in schema.get("oneOf", schema.get("anyOf", [])))
    kinds = schema.get("type", "value")
    return " or ".join(kinds) if isinstance(kinds, list) else kinds


# Clusters and keys


def clusters() -> Iterator[str]:
    """List the presets."""
    yield "# Clusters"
    yield (
        "The presets, by the name that `--cluster` takes. "
        "[Describe your own machine](../how-to/clusters.md) starts from the nearest one."
    )
    rows = ((code(name), str(len(each.gpus)), each.description) for name, each in presets().items())
    yield table(("name", "GPUs", "description"), rows)
    rows = (
        (code(each.name), each.title, each.description, code(each.cluster)) for each in samples()
    )
    yield "## Cards"
    yield "What `plan-serving` knows of a card by its name, which is also the `model` of a device:"
    rows = (
        (code(name), each.title, size(each.memory_bytes), rate(each.bytes_per_us * 1e6))
        for name, each in GPUS.items()
    )
    yield table(("name", "card", "memory", "bandwidth"), rows)
    yield "## Bundled samples"
    yield table(("name", "title", "what it is", "usual cluster"), rows)


def keys() -> Iterator[str]:
    """List the keys of the studio by topic, from its actions."""
    yield "# Keys of the studio"
    yield "`?` shows them in the studio."
    for title, lines in topics(all_actions()):
        yield f"## {title}"
        yield table(("key", "what it does"), ((code(key), text) for key, text in lines))


# Methods


def method_index() -> Iterator[str]:
    """List the methods by what they are good for."""
    yield "# Methods"
    usual = (f"{OBJECTIVES[aim].lower()}: `{name}`" for aim, name in DEFAULT_METHODS.items())
    yield (
        "A method decides where ops run, and `--method NAME` chooses one. Without it, the "
        f"objective decides. {'; '.join(usual).capitalize()}."
    )
    for purpose, members in by_purpose(placers().values()).items():  # type: ignore[arg-type]
        yield f"## {purpose}"
        rows = ((f"[`{each.name}`]({each.name}.md)", each.summary, each.source) for each in members)
        yield table(("method", "what it does", "source"), rows)
    groups = "\n".join(map(group_name, by_purpose(placers().values())))  # type: ignore[arg-type]
    yield f"```{{toctree}}\n:hidden:\n\n{groups}\n```"


def group_page(purpose: str, members: Iterable[Placer]) -> Iterator[str]:
    """List the methods for one purpose: an entry of the side bar, with theirs below it."""
    yield f"# {purpose}"
    names = "\n".join(each.name for each in members)
    yield f"```{{toctree}}\n:maxdepth: 1\n\n{names}\n```"


def group_name(purpose: str) -> str:
    """Return the name of a purpose's page."""
    return "for-" + "-".join(re.findall(r"\w+", purpose.lower()))


def method_page(
    method: Placer, anchors: dict[str, str], figures: dict[str, str], picture: str
) -> Iterator[str]:
    """Describe a method on half a page."""
    yield f"# {method.name}"
    if method.title.lower() != method.name:
        yield f"*{method.title}.*"
    yield with_links(method.summary, method)
    yield "## When it is good"
    yield with_links(method.good, method)
    yield figures.get(method.name, "")
    aims = ", ".join(map(code, method.objectives))
    can = [f"- It {CAPABILITIES[each]}." for each in CAPABILITIES if each in method.capabilities]
    unaware = ["- It does not look at memory, so its plan may not fit."]
    missing = unaware * (MEMORY not in method.capabilities)
    yield "\n".join([*can, *missing, f"- It can be asked for `--objective` {aims}."])
    if picture:
        yield picture
    if method.options:
        yield "## Options"
        yield "\n\n".join(map(described_option, method.options))
    yield "## How it works"
    yield from background(method, anchors)


def with_links(text: str, method: Placer) -> str:
    """Link the pages of the other methods that a text names; mark commands as code."""
    others = sorted({*placers()} - {method.name} - ALSO_WORDS, key=len, reverse=True)
    pattern = rf"(?<![\w-])({'|'.join(others)})(?![\w-])"
    text = re.sub(r"enplace \w+ --[\w-]+", r"`\g<0>`", text)
    parts = text.split("`")
    parts[::2] = [re.sub(pattern, r"[`\1`](\1.md)", part) for part in parts[::2]]
    return "`".join(parts)


def described_option(option: Option) -> str:
    """Describe an option, its values and its default; a switch has neither."""
    text, _, told = option.help.removesuffix("]").partition(" [default: ")
    if isinstance(option.default, bool):
        return f"`--{option.name}`\n: {text}"
    values = ", ".join(map(code, option.choices)) or f"a {option.values}"
    usual = told or (code(str(option.default)) if option.default not in ("", 0) else "")
    return f"`--{option.name}`\n: {text} Values: {values}." + f" By default: {usual}." * bool(usual)


def background(method: Placer, anchors: dict[str, str]) -> Iterator[str]:
    """Say more than the summary does: the paper's steps, and where we differ."""
    yield as_rst((inspect.getdoc(method.run) or "").partition("\n\n")[2], method)
    yield as_rst(inspect.getmodule(method.run).__doc__ or "", method)  # type: ignore[union-attr]
    if not method.source:
        return
    yield f"**Source:** {method.source}."
    named = [name for name in HEADINGS if name in method.source and name in anchors]
    for name in named[:1]:
        yield f"[{name}: where we differ, and why](../../explanation/papers.md#{anchors[name]})."


def as_rst(text: str, method: Placer) -> str:
    """Show a docstring without names of modules; constants become their values."""

    def shown(found: re.Match[str]) -> str:
        name = found[1].rpartition(".")[2]
        value = getattr(inspect.getmodule(method.run), name, None)
        plain = name.replace("_", "-")
        if plain in placers():
            return f":doc:`{plain}`"
        return str(value) if isinstance(value, int | float) else f"``{plain}``"

    plain = ROLE.sub(shown, ASIDE.sub("", inspect.cleandoc(text)))
    plain = LITERAL.sub(
        lambda found: f":doc:`{found[1]}`" if found[1] in placers() else found[0], plain
    )
    return f"```{{eval-rst}}\n{plain}\n```" if plain else ""


def paper_anchors(page: str) -> dict[str, str]:
    """Return the anchor of the section on each paper."""
    found: dict[str, str] = {}
    for heading in re.findall(r"^## (.+)$", page, re.MULTILINE):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found |= {name: anchor for name in HEADINGS if name in heading}
    return found


def simulated_figures(folder: Path) -> dict[str, str]:
    """Sum up for each method what ``benchmarks.methods`` found, beside the expert."""
    found: dict[str, list[str]] = {}
    for objective, value in ((THROUGHPUT, "time per sample"), (STEP_TIME, "step")):
        path = folder / "benchmarks" / f"methods-{objective}.csv"
        for name, values in ratios(path, "expert").items():
            if name != "expert":
                found.setdefault(name, []).append(f"its {value} is {versus(values)}")
    return {
        name: (
            f"On the bundled profiles and three testbeds, {' and '.join(reversed(texts))}. "
            "This is simulated: a geometric mean of the plans that fit, from "
            "[Benchmarks](../../benchmarks.md#all-methods-models-and-clusters)."
        )
        for name, texts in found.items()
    }


def ratios(path: Path, reference: str) -> dict[str, list[float]]:
    """Return a method's values over the reference's, for each case where both fit."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["ms"] and row.get("fits", "1") == "1"]
    base = {(r["profile"], r["cluster"]): float(r["ms"]) for r in rows if r["method"] == reference}
    found: dict[str, list[float]] = {}
    for row in rows:
        if (case := (row["profile"], row["cluster"])) in base:
            found.setdefault(row["method"], []).append(float(row["ms"]) / base[case])
    return found


def versus(values: list[float]) -> str:
    """Compare a geometric mean with the expert's, and give the best and the worst."""
    mean = math.exp(sum(map(math.log, values)) / len(values)) - 1
    least, most = (percent(each - 1, signed=True) for each in (min(values), max(values)))
    side = "below" if mean < 0 else "above"
    return f"{percent(abs(mean))} {side} the expert's ({least} to {most})"


def draw_plan(method: Placer, folder: Path, search_s: float) -> str:
    """Draw the plan of a method for a small sample; nothing if it cannot run here."""
    if not method.installed:
        return ""
    sample = next(each for each in samples() if each.name == PICTURED)
    problem = Problem(read_profile(sample.path), presets()[CLUSTER])
    objective = method.objectives[0]
    values = {"rounds": ROUNDS} if any(each.name == "rounds" for each in method.options) else {}
    try:
        asked = PlaceOptions(objective, Stop(search_s), values=values)
        result = place(problem, method.name, options=asked)
    except EnplaceError as error:
        return f"No picture: {error}."
    shows_step = objective == STEP_TIME
    drawn = timeline_svg(result) if shows_step else graph_svg(result.schedule)
    (folder / f"{method.name}.svg").write_text(drawn, encoding="utf-8")
    value = {STEP_TIME: "step time", THROUGHPUT: "time per sample"}.get(objective, "latency")
    caption = f"`{PICTURED}` on `{CLUSTER}`, two GPUs: {value} {ms(result.value_us)}"
    if shows_step:
        caption += ". Rows are devices and channels; the line is the critical path."
    else:
        caption += ". Boxes are groups of ops in the colours of their devices."
    if objective == LATENCY:
        caption += " A query to this training graph is a forward and a backward pass."
    return f"```{{figure}} {method.name}.svg\n:alt: {caption}\n\n{caption}\n```"


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), *map(float, sys.argv[2:]))
