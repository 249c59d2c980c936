"""``fit``."""

from __future__ import annotations

from typing import Any

import click

from enplace.cli.answer import INTERRUPTED, NO, YES, Answer, command
from enplace.cli.options import (
    FILE,
    POSITIVE,
    PlacerCommand,
    cluster_option,
    constraints_option,
    force_option,
    placer_values_option,
    profile_argument,
    seed_option,
    take_values,
    whole_option,
)
from enplace.cli.progress import progress_bar, stopped_by_ctrl_c
from enplace.errors import EnplaceError
from enplace.files.outputs import (
    PLAN,
    check_folder,
    check_outputs,
)
from enplace.inputs import make_roomy_problem, usual_method
from enplace.text import count


@command("fit", PlacerCommand)
@profile_argument
@cluster_option(required=True)
@constraints_option
@click.option(
    "--objective",
    type=click.Choice(["step-time", "throughput"]),
    default="step-time",
    show_default=True,
    help="What each plan is for: the time of one step, or the throughput of a pipeline.",
)
@click.option(
    "--time-limit",
    type=POSITIVE,
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to search for a plan with each change.",
)
@seed_option
@placer_values_option
@click.option(
    "-o",
    "--output",
    type=FILE,
    metavar="FOLDER",
    help="Write each plan that fits to a new folder, as plan.json and as a project that the studio "
    "opens; with --row, only that row's plan, to a file.",
)
@whole_option("--row", 1, 1000, "The row whose plan --output gets.")
@force_option
def fit(
    profile: str,
    objective: str,
    time_limit: float,
    seed: int,
    output: str | None,
    row: int | None,
    force: bool,
    **given: Any,
) -> Answer:
    """Show what would make PROFILE fit in memory, at what cost.

    If it does not fit as it is, plans are sought with recomputation, the host's memory,
    optimiser states of fewer bits, accumulated gradients, a smaller batch, a host, and more or
    larger cards. Within each kind, the largest change is tried only if no other one makes it fit,
    or if smaller parts of a batch go on getting faster. What fits and is fastest comes first.

    Exit status 1 if nothing was found that fits.
    """
    from enplace.mends.search import check_row, find_fit
    from enplace.placers import PlaceOptions, Stop

    if row and not output:
        raise EnplaceError("--row needs --output, the file that its plan is written to")
    if output and row:
        check_outputs([(PLAN, output)], profile, given["cluster"], force=force)
    elif output:
        check_folder(output)
    values = take_values(given)
    problem, cluster = make_roomy_problem(profile, **given, dashes="--", objective=objective)
    with progress_bar(1) as (begin, report), stopped_by_ctrl_c() as stopped:
        stop = Stop(cancelled=stopped)
        options = PlaceOptions(objective, stop, seed, report, values=values)
        if row:
            check_row(row, problem, cluster, options)
        found = find_fit(problem, cluster, usual_method, options, time_limit, begin)
    written = ""
    if output and row:
        found.save_row(row, output, force=True)  # if it was asked for, as was checked
        written = f"The plan of row {row} is in {output}."
    elif output:
        names = found.save(output)
        written = f"{count(len(names), 'file')} with the plans that fit are in {output}."
    fits = any(each.fits for each in found.rows)
    text = "\n\n".join(filter(None, [f"{found}", written]))
    document = found.document | {"output": output}
    return Answer(document, text, INTERRUPTED if stopped() else YES if fits else NO)
