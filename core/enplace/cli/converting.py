"""``import`` and ``export``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from enplace.cli.answer import Answer, command
from enplace.cli.options import (
    FILE,
    ClusterType,
    DeclaredCommand,
    RegistryType,
    cluster_option,
    force_option,
    plan_argument,
    profile_argument,
)
from enplace.cli.progress import compiling_bar
from enplace.errors import FileError
from enplace.files.outputs import (
    PLAN,
    PROFILE,
    Kind,
    check_folder,
    check_outputs,
    keep_replaced,
)
from enplace.inputs import read_problem_and_plan
from enplace.text import instead, size
from enplace.values.op_kinds import OpPass

if TYPE_CHECKING:
    from enplace.option import Option
    from enplace.values.profile import Profile


def _exporter_titles() -> dict[str, str]:
    from enplace.frameworks.registry import exporters

    return {name: exporter.title for name, exporter in exporters().items()}


class _GraphCommand(DeclaredCommand):
    """A command with a flag for all that may be said of a model which is only read."""

    def declared(self) -> Iterable[Option]:
        from enplace.frameworks.registry import fields

        return fields(recorded=True).values()


class _FormatOption(click.Option):
    """An option whose help lists the exporters."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        formats = (f"{name} ({title})" for name, title in _exporter_titles().items())
        self.help = f"One of {', '.join(formats)}."
        return super().get_help_record(ctx)


@command("import", _GraphCommand)
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
@force_option
def import_(
    input_file: str,
    output: str | None,
    plan_file: str | None,
    cluster: str,
    force: bool,
    **of_model: Any,
) -> Answer:
    """Turn INPUT, a graph with costs, into a profile.

    The name of a bundled sample, such as vgg-19, will do where no file has that name.

    An ONNX model and a program of torch.export (.pt2) have no costs: their op times are estimated
    from a roofline of a GPU.
    """
    from enplace.writers import write_profile

    if not output and not plan_file:
        raise click.UsageError("name a file to write: -o P.enplace, or --plan plan.json")
    check_outputs([(PROFILE, output), (PLAN, plan_file)], input_file, force=force)
    given = {name: value for name, value in of_model.items() if value}
    profile = _read(input_file, given, output)
    keep_replaced(output, plan_file)
    if output:
        write_profile(output, profile)
    if plan_file:
        _write_recorded(profile, cluster, plan_file)
    files = [path for path in (output, plan_file) if path]
    return Answer(
        profile_numbers(profile) | {"profile_file": output, "placement_file": plan_file},
        "\n".join(
            [
                f"{profile}.",
                *describe_estimate(profile),
                *filter(None, [profile.measured.about_passes]),
                f"Written to {' and '.join(files)}.",
            ]
        ),
    )


def _read(path: str, of_model: dict[str, Any], output: str | None) -> Profile:
    """Read a profile; the graph of a model that need not run is read in a worker."""
    from enplace.cli.progress import stopped_by_ctrl_c, work_bar
    from enplace.files.fields import shown
    from enplace.files.reading import naming
    from enplace.frameworks.jobs import measure_profile
    from enplace.frameworks.registry import suffixes
    from enplace.frameworks.source import source_of
    from enplace.readers import read_profile
    from enplace.readers.samples import samples

    if not os.path.lexists(path) and not os.path.splitext(path)[1]:
        bundled = {sample.name: str(sample.path) for sample in samples()}
        if path not in bundled:
            raise FileError(f"no file or sample is called {shown(path)}; {instead(path, bundled)}")
        path = bundled[path]
    source = None
    if os.path.isdir(path) or os.path.splitext(path)[1].lower() in suffixes():
        source = source_of(path, **of_model) if os.path.exists(path) else None
    if source is not None and not source.is_recorded:
        raise FileError(
            f"{path}: a model has no costs until it is measured; use: enplace profile "
            f"{shlex.quote(path)} -o {output or 'P.enplace'}"
        )
    if source is None:
        if of_model:
            raise FileError(f"{path}: has sizes and costs already; leave out what a model needs")
        return read_profile(path)
    source.framework.check_installed()
    with naming(source.path), work_bar() as report, stopped_by_ctrl_c() as stopped:
        return measure_profile(source, "", 0, 0, (), report, stopped)


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


def describe_estimate(profile: Profile) -> list[str]:
    """Say that op times are estimated, and what to know of how the graph was read."""
    measured = profile.measured
    if not measured.estimated:
        return [*measured.notes]
    is_inference = {*profile.op_passes} == {OpPass.FORWARD}
    no_training = " This is the graph of an inference: it has no training step." * is_inference
    return [f"{measured.about_times}{no_training}", *measured.notes]


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
        "estimated": profile.measured.estimated or None,
        "guessed_backward": profile.measured.about_passes or None,
        "notes": list(profile.measured.notes),
        "device_scopes": len(profile.measured.device_scopes),
        "keeps_device_scopes": bool(profile.measured.keeps_device_scopes),
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
@click.option(
    "-o", "--output", type=FILE, required=True, metavar="OUT", help="File or folder to write."
)
@cluster_option(required=False, default="the one the plan was made for")
@click.option(
    "--complete", is_flag=True, help="Place ops missing in the plan next to their neighbours."
)
@click.option(
    "--trust",
    is_flag=True,
    help="Trust the model from now on, for a format that needs the model itself.",
)
@force_option
@compiling_bar()
def export(
    profile: str, plan: str, form: str, output: str, trust: bool, force: bool, **choice: Any
) -> Answer:
    """Write PLAN for another program or for people."""
    from enplace.errors import FileError
    from enplace.frameworks.compared import result_for
    from enplace.frameworks.registry import exporters, why_no_export
    from enplace.frameworks.source import source_from_json
    from enplace.frameworks.trust import trust as trust_place
    from enplace.machine import simulate
    from enplace.values.result import Result

    exporter = exporters()[form]
    if exporter.is_folder:
        check_folder(output)
    else:
        kind = Kind(exporter.title, exporter.mark)
        check_outputs([(kind, output)], profile, plan, choice["cluster"], force=force)
    problem, chosen = read_problem_and_plan(profile, plan, **choice)
    schedule = simulate(problem, chosen)
    if why := why_no_export(form, Result(schedule)):
        raise FileError(f"{profile}: {why}; a table of the plan is --format csv")
    if trust:
        trust_place(source_from_json(problem.measured_profile.measured.source))
    # Other plans place the model; a plan with splits is for another graph.
    model = None if chosen.splits else problem
    result = result_for(exporter, schedule, model)
    keep_replaced(output)
    notes = exporter.write_to(output, result)
    n_bytes = _size_of(output)
    return Answer(
        {
            "format": form,
            "file": output,
            "bytes": n_bytes,
            "step_time_us": schedule.makespan_us,
            "feasible": schedule.fits,
            "notes": list(notes),
        },
        "\n".join(
            [
                f"{output} written, {size(n_bytes)}."
                + ("" if schedule.fits else " Note that the plan does not fit in memory."),
                *notes,
            ]
        ),
    )


def _size_of(path: str) -> int:
    """Return the size of a file, or of all files in a folder."""
    if os.path.isdir(path):
        files = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
        return sum(map(os.path.getsize, files))
    return os.path.getsize(path)
