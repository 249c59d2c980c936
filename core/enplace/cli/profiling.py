"""``profile``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from enplace.cli.answer import Answer, command
from enplace.cli.converting import describe_estimate, profile_numbers
from enplace.cli.models import ModelCommand, find_source, model_options
from enplace.cli.options import FILE, NumbersType, force_option, whole_option
from enplace.cli.progress import stopped_by_ctrl_c, work_bar, written_told
from enplace.files.outputs import PROFILE, check_outputs, keep_replaced
from enplace.text import count, listed, ms, percent, table

if TYPE_CHECKING:
    from enplace.values.profile import Profile

MOST_LINKS = 12


@command("profile", ModelCommand)
@model_options
@click.option(
    "-o", "--output", type=FILE, required=True, metavar="P.enplace", help="Write the profile."
)
@force_option
@whole_option("--steps", 1, 100_000, "How many steps to trace.", default=100)
@whole_option("--warm-ups", 0, 100_000, "How many steps to leave out at the start.", default=10)
@click.option(
    "--batch-sizes",
    type=NumbersType(1 << 24),
    metavar="A,B,C",
    help="Estimate a --batch-size that fits no device from these smaller ones (Celeritas, 4.2).",
)
def profile(
    output: str,
    force: bool,
    steps: int,
    warm_ups: int,
    batch_sizes: tuple[int, ...] | None,
    devices: str | None,
    trust: bool,
    **model: Any,
) -> Answer:
    """Measure each op of MODEL on the devices of this machine.

    MODEL is a training script (.py) or module, or a saved model or graph. A script is run
    unchanged until it trains. A recorded trace holds the measurement already, so nothing runs.
    """
    from enplace.frameworks.jobs import measure_profile
    from enplace.readers.calibration import about_gap
    from enplace.values.device_scopes import about_scopes
    from enplace.writers import write_profile

    source = find_source(model, trust)
    check_outputs([(PROFILE, output)], source.path, force=force)
    where = None if source.is_recorded else devices or source.framework.usual_devices()
    sizes = batch_sizes or ()
    with (
        written_told(source) as wrote,
        work_bar() as report,
        stopped_by_ctrl_c() as stopped,
    ):
        measured = measure_profile(
            source, where or "", steps, warm_ups, sizes, report, stopped, wrote
        )
    keep_replaced(output)
    write_profile(output, measured)
    return Answer(
        profile_numbers(measured) | {"devices": where, "profile_file": output},
        "\n".join(
            [
                f"{measured}.",
                *describe_estimate(measured),
                *_describe_left_out(measured),
                *filter(None, [about_scopes(measured, os.path.basename(source.path))]),
                *([source.framework.about_compiled] if measured.measured.compiled else []),
                *_describe_evaluation(measured),
                *_describe_links(measured),
                *filter(None, [about_gap(measured.measured)]),
                f"Written to {output}.",
            ]
        ),
    )


def _describe_left_out(profile: Profile) -> list[str]:
    """Name the other functions that could have been meant."""
    others = profile.measured.left_out
    if not others:
        return []
    verb = "is" if len(others) == 1 else "are"
    return [
        f"This is the step of '{profile.measured.function}'. {listed(others)} {verb} not in it: "
        f"a plan is for one function. In a saved model, --signature chooses another; in a script, "
        f"put all that trains into one function, or leave the others unplaced."
    ]


def _describe_evaluation(profile: Profile) -> list[str]:
    """Report how good the estimate of a large batch was (Celeritas, Table 5); else nothing."""
    found = profile.measured.evaluation
    if found is None:
        return []
    from enplace.frameworks.evaluation import advice

    sizes = ", ".join(f"{size:,}" for size in found.batch_sizes)
    used = count(found.devices_used, "device")
    rows = [["estimate", "mean deviation", "of the sum", "ops within 20 %"]]
    rows += [
        [what, *(percent(share) for share in (off.mean, off.of_sum, off.near))]
        for what, off in (("memory", found.memory), ("time", found.time))
    ]
    return [
        f"\nBatch {found.batch_size:,}, estimated from {sizes}; measured across {used} "
        f"(Order-Place), {ms(found.step_time_us)} a step",
        f"{table(rows, 'lrrr')}\n",
        *advice(found),
    ]


def _describe_links(profile: Profile) -> list[str]:
    """Report what transfers cost: fitted lines, which of them are poor, and presets."""
    from enplace.frameworks.link_fits import about_poor, about_presets, link_fits

    fits = link_fits(profile)
    lines = [table([[fit.title, fit.text] for fit in fits[:MOST_LINKS]], "ll")] if fits else []
    if len(fits) > MOST_LINKS:
        lines.append(f"and {count(len(fits) - MOST_LINKS, 'more link')}")
    return [*lines, *filter(None, (about_poor(fits), about_presets(profile)))]
