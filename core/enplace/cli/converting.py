"""``import`` and ``export``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from enplace.cli.answer import Answer, command
from enplace.cli.options import (
    FILE,
    ClusterType,
    RegistryType,
    cluster_option,
    plan_argument,
    profile_argument,
)
from enplace.cli.outputs import check_outputs
from enplace.cli.progress import compiling_bar
from enplace.inputs import read_problem_and_plan
from enplace.text import size

if TYPE_CHECKING:
    from enplace.values.profile import Profile


def _exporter_titles() -> dict[str, str]:
    from enplace.frameworks.registry import exporters

    return {name: exporter.title for name, exporter in exporters().items()}


class _FormatOption(click.Option):
    """An option whose help lists the exporters."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        formats = (f"{name} ({title})" for name, title in _exporter_titles().items())
        self.help = f"One of {', '.join(formats)}."
        return super().get_help_record(ctx)


@command("import")
@click.argument("input_file", type=FILE, metavar="INPUT")
@click.option(
    "-o",
    "--output",
    type=FILE,
    metavar="P.enplace",
    help="Write the profile: as .enplace, or as readable text if the name ends in .json.",
)
@click.option(
    "--plan",
    "plan_file",
    type=FILE,
    metavar="plan.json",
    help="Write the placement that the profile was measured with as a plan.",
)
@click.option(
    "--cluster",
    type=ClusterType(),
    default="local",
    show_default=True,
    help="Cluster of that plan; it must have the devices that the ops ran on.",
)
def import_(input_file: str, output: str | None, plan_file: str | None, cluster: str) -> Answer:
    """Turn INPUT, any graph with costs that Enplace can read, into a profile."""
    from enplace.readers import read_profile
    from enplace.writers import write_profile

    if not output and not plan_file:
        raise click.UsageError("name a file to write: -o P.enplace, or --plan plan.json")
    check_outputs((output, plan_file), input_file)
    profile = read_profile(input_file)
    if output:
        write_profile(output, profile)
    if plan_file:
        _write_recorded(profile, cluster, plan_file)
    files = [path for path in (output, plan_file) if path]
    return Answer(
        profile_numbers(profile) | {"profile_file": output, "placement_file": plan_file},
        f"{profile}.\nWritten to {' and '.join(files)}.",
    )


def _write_recorded(profile: Profile, cluster: str, plan_file: str) -> None:
    from enplace.machine import simulate
    from enplace.readers import recorded_plan
    from enplace.readers.clusters import cluster_from
    from enplace.values.problem import Problem
    from enplace.values.result import Result
    from enplace.writers import write_plan

    problem = Problem(profile, cluster_from(cluster, profile))
    plan = recorded_plan(profile, problem.cluster)
    write_plan(plan_file, Result(simulate(problem, plan)))


def profile_numbers(profile: Profile) -> dict[str, Any]:
    """Return the figures of a profile, as plain data."""
    return {
        "name": profile.name,
        "fingerprint": profile.fingerprint,
        "ops": profile.n_ops,
        "tensors": profile.n_tensors,
        "edges": profile.n_edges,
        "persistent_bytes": int(profile.persistent_bytes.sum()),
        "measured_step_time_us": profile.measured.step_time_us,
    }


@command("export")
@profile_argument
@plan_argument
@click.option(
    "--format",
    "form",
    cls=_FormatOption,
    type=RegistryType("format", _exporter_titles),
    required=True,
    help="What to write.",  # the help text lists the exporters instead
)
@click.option("-o", "--output", type=FILE, required=True, metavar="OUT", help="File to write.")
@cluster_option(required=False, default="the one the plan was made for")
@click.option(
    "--complete", is_flag=True, help="Place ops missing in the plan next to their neighbours."
)
@compiling_bar()
def export(profile: str, plan: str, form: str, output: str, **choice: Any) -> Answer:
    """Write PLAN for another program or for people."""
    from enplace.disk import write_atomically
    from enplace.frameworks.registry import exporters
    from enplace.machine import simulate
    from enplace.placers.references import result_for

    check_outputs((output,), profile, plan, choice["cluster"])
    problem, chosen = read_problem_and_plan(profile, plan, **choice)
    # Other plans place the model; a plan with splits is for another graph.
    model = None if chosen.splits else problem
    schedule = simulate(problem, chosen)
    result = result_for(exporters()[form], schedule, model)
    content = exporters()[form].text(result).encode()
    write_atomically(output, content)
    return Answer(
        {
            "format": form,
            "file": output,
            "bytes": len(content),
            "step_time_us": schedule.makespan_us,
            "feasible": schedule.fits,
        },
        f"{output} written, {size(len(content))}."
        + ("" if schedule.fits else " Note that the plan does not fit in memory."),
    )
