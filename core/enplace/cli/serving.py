"""``plan-serving``."""

from __future__ import annotations

import click

from enplace.cli.answer import Answer, command
from enplace.cli.options import FILE, PresetType, force_option
from enplace.cli.progress import compiling_bar
from enplace.files.outputs import PLAN, PROFILE, check_outputs


@command("plan-serving")
@click.argument("model", type=FILE)
@click.option(
    "--cluster",
    type=PresetType(),
    required=True,
    metavar="CARDS",
    help="Cards such as 'rtx-4090,3*rtx-a5000,rtx-3060:12GiB', with 'cpu:64GiB' for a host that "
    "may help out; a preset; or a JSON file whose devices say their model.",
)
@click.option(
    "--context",
    "tokens",
    metavar="TOKENS",
    help="Tokens of each request, prompt and answer together: 32k, or 'longest'. [default: what "
    "the model was made for, at most 8k]",
)
@click.option(
    "--requests",
    default="1",
    show_default=True,
    metavar="N",
    help="Requests at once, or 'most'.",
)
@click.option(
    "--objective",
    type=click.Choice(["tokens-per-second", "latency-per-token"]),
    default="tokens-per-second",
    show_default=True,
    help="What to optimise: the tokens of all requests, or the time of a token of one request "
    "alone.",
)
@click.option(
    "--cache",
    type=click.Choice(["16-bit", "8-bit"]),
    default="16-bit",
    show_default=True,
    help="Precision of the cache of keys and values.",
)
@click.option(
    "--reserve",
    default="",
    metavar="SIZE",
    help="Memory that each card keeps free: 1GiB, or 10%. [default: what the cluster says; 1GiB "
    "of named cards]",
)
@click.option(
    "-o",
    "--output",
    type=FILE,
    metavar="P.enplace",
    help="Write the decoding of a token as a profile, which the studio opens.",
)
@click.option(
    "--plan", "plan_file", type=FILE, metavar="plan.json", help="Write the plan for that profile."
)
@force_option
@compiling_bar()
def plan_serving(
    model: str,
    cluster: str,
    tokens: str | None,
    requests: str,
    objective: str,
    cache: str,
    reserve: str,
    output: str | None,
    plan_file: str | None,
    force: bool,
) -> Answer:
    """Plan the layers of a decoder MODEL on each card. It starts no server.

    MODEL is a folder with .safetensors and config.json, their index, a .gguf file, or a bundled
    description such as llama-3-70b-fp8. Only names, types and shapes are read, never the weights.

    All times are estimated. Exit status 1 if the model does not fit.
    """
    from enplace.serving.answer import find_serving

    check_outputs([(PROFILE, output), (PLAN, plan_file)], model, cluster, force=force)
    found = find_serving(model, cluster, tokens, requests, objective, reserve, cache)
    found.write(output, plan_file, force=True)  # if it was asked for, as was checked
    named = " and ".join(filter(None, (output, plan_file)))
    parts = [f"{found}", found.pasted(), f"Written to {named}." if named else ""]
    document = found.document | {"profile_file": output, "placement_file": plan_file}
    return Answer(document, "\n\n".join(filter(None, parts)))
