"""``verify``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from enplace import __version__
from enplace.cli.answer import NO, YES, Answer, command
from enplace.cli.models import FRAMEWORK, device_options
from enplace.cli.options import FILE, force_option
from enplace.cli.progress import ended_in_compiler, stopped_by_ctrl_c, work_bar
from enplace.cli.runs import run_numbers
from enplace.errors import EnplaceError
from enplace.files.outputs import VERIFICATION, check_outputs, keep_replaced
from enplace.text import finite, ms, percent, seconds, table

if TYPE_CHECKING:
    from enplace.frameworks.verifying import DataParallel, PlanCheck, Verification


@command("verify")
@click.option(
    "--framework",
    type=FRAMEWORK,
    metavar="NAME",
    help="The framework that runs the models. [default: the first that is installed]",
)
@device_options
@click.option(
    "-o", "--output", type=FILE, required=True, metavar="report.html", help="Write the report."
)
@force_option
def verify(framework: str | None, devices: str | None, output: str, force: bool) -> Answer:
    """Check that plans run here as planned and as predicted.

    Without --devices, this is about the GPUs of this machine or, if it has none, its CPU; a single
    one is divided into two logical devices, if the framework can. PyTorch takes two labels of a
    CPU, which measure no step time, and runs a pipeline in processes besides.
    Small models that ship with Enplace are profiled, placed by four methods and run, as 'profile',
    'place' and 'run' would do it. The report is one web page; send it with a bug report. Exit
    status 1 if a plan did not run as planned.
    """
    from enplace.files.writing import write_atomically
    from enplace.frameworks import verifying
    from enplace.frameworks.registry import frameworks, usual_framework
    from enplace.frameworks.verification_page import verification_html

    chosen = frameworks()[framework] if framework else usual_framework()
    if not chosen.runs:
        raise EnplaceError(f"{chosen.name} runs no models; choose another framework")
    check_outputs([(VERIFICATION, output)], force=force)
    began_s = time.monotonic()
    with work_bar() as report, stopped_by_ctrl_c() as stopped, ended_in_compiler(stopped):
        found = verifying.verify(
            chosen,
            devices or verifying.devices_to_verify(chosen),
            report=report,
            cancelled=stopped,
        )
    keep_replaced(output)
    write_atomically(output, verification_html(found, __version__))
    took_s = time.monotonic() - began_s
    ends = [f"The report is in {output}; it took {seconds(took_s)}."]
    return Answer(
        _numbers(found) | {"seconds": took_s, "report_file": output},
        "\n\n".join([_first(found), _table(found), _best(found), *ends]),
        YES if found.as_planned else NO,
    )


def _first(found: Verification) -> str:
    return "\n".join([found.verdict, *found.advice])


def _best(found: Verification) -> str:
    return "\n".join(f"{model}: {text}" for model, text in found.best.items())


def _table(found: Verification) -> str:
    rows = [["model", "method", "predicted", "measured", "off", "as planned", "result"]]
    rows += [_row(check) for check in found.checks]
    return table(rows + [_shared_row(shared) for shared in found.data_parallel], "llrrrll")


def _shared_row(shared: DataParallel) -> list[str]:
    names = [shared.model, shared.called, ms(shared.predicted_us)]
    if shared.error is None:
        return [*names, "", "", "not timed", ""]
    return [*names, ms(shared.measured_us), percent(shared.error, signed=True), "", ""]


def _row(check: PlanCheck) -> list[str]:
    names, run = [check.model, check.method], check.run
    if run is None or not (run.on_labels or check.error is not None):
        return [*names, "", "", "", "did not run", ""]
    ends = ["yes" if check.as_planned else "no", run.equality]
    if check.error is None:
        return [*names, ms(run.predicted_step_time_us), "labels", "", *ends]
    times = [ms(run.predicted_step_time_us), ms(run.step_time_us)]
    return [*names, *times, percent(check.error, signed=True), *ends]


def _numbers(found: Verification) -> dict[str, Any]:
    from enplace.frameworks.verifying import machine_facts

    return {
        "devices": found.devices,
        "as_planned": found.as_planned,
        "verdict": found.verdict,
        "advice": found.advice,
        "plans": len(found.checks),
        "ran_as_planned": found.n_as_planned,
        "bit_equal": found.n_bit_equal,
        "median_error": found.error,
        "machine": machine_facts(found, __version__),
        "best": found.best,
        "data_parallel": [
            {
                "model": shared.model,
                "predicted_step_time_us": shared.predicted_us,
                "step_time_us": finite(shared.measured_us),
                "why_not": shared.why_not,
            }
            for shared in found.data_parallel
        ],
        "checks": [_check_numbers(check) for check in found.checks],
    }


def _check_numbers(check: PlanCheck) -> dict[str, Any]:
    from dataclasses import asdict

    run = run_numbers(check.run) if check.run else {}
    return run | {
        "model": check.model,
        "method": check.method,
        "as_planned": check.as_planned,
        "why_not": check.why_not,
        "result": check.run.equality if check.run else None,
        "error": check.error,
        "devices": [asdict(device) for device in check.devices],
    }
