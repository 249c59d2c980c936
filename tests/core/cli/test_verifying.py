"""``verify`` with a fake TensorFlow worker: what it reports, and what it makes of failures."""

import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from enplace.errors import ClusterError
from enplace.frameworks import devices, tuning_process, verifying
from enplace.frameworks.measured import run_by_module
from enplace.frameworks.registry import frameworks, usual_framework
from enplace.frameworks.tensorflow import framework
from enplace.frameworks.verification_page import verification_html
from enplace.frameworks.verifying import LABELLED, METHODS, PlanCheck, Verification
from enplace.placers import Progress, place
from enplace.text import ms
from enplace.values.problem import Problem
from fake_framework import interrupt, use_worker
from fake_nvml import gpu, install
from forking import fork_workers
from problems import cluster_of
from torch_layers import layered

FAKE = Path(__file__).with_name("fake_worker.py")
MODELS = ["mlp", "convolutions", "attention"]


SCRIPTS = framework.FRAMEWORK.bundled


@pytest.fixture(autouse=True)
def fake(monkeypatch, folder):
    """A function that chooses how the fake worker behaves, and with how many models."""

    def behave(mode, models=1, module="json"):
        use_worker(monkeypatch, sys.executable, str(FAKE), mode)
        pretended = replace(framework.FRAMEWORK, module=module, bundled=SCRIPTS[:models])
        monkeypatch.setattr(framework, "FRAMEWORK", pretended)

    fork_workers(monkeypatch)
    behave("well")
    return behave


@pytest.fixture
def verify(enplace):
    return lambda *words: enplace("verify", "--devices", "gpu:2", "-o", "report.html", *words)


def page():
    return Path("report.html").read_text(encoding="utf-8")


def test_every_bundled_model_is_run_with_every_method_and_judged_first(verify, fake):
    fake("well", models=len(SCRIPTS))
    done = verify()
    assert done.status == 0
    verdict = done.out.splitlines()[0]
    # Everything took twice as long as predicted.
    assert verdict == (
        "Runs as planned: 12 of 12 plans, 12 bit-equal, median |predicted − measured| 50.0 % of "
        "the measured step."
    )
    assert verdict in page()
    rows = [line.split()[:2] for line in done.out.splitlines()]
    plans = [[model, method] for model in MODELS for method in METHODS]
    shared = [[model, "data"] for model in MODELS]
    assert [row for row in rows if row and row[0] in MODELS] == plans + shared
    assert page().count("<td>data parallel</td>") == len(MODELS)
    assert page().count("<svg xmlns") == 1 + 2 * len(MODELS)


def test_the_report_compares_busy_times_and_memory_with_the_allocator(verify):
    found = verify("--json").document
    assert (found["ran_as_planned"], found["bit_equal"], found["median_error"]) == (4, 4, 0.5)
    for check in found["checks"]:
        assert check["step_time_us"] == 2 * check["predicted_step_time_us"]
        first, second, *_ = check["devices"]
        assert first["measured_busy_us"] == 2 * first["busy_us"]
        assert first["measured_peak_bytes"] == 5 << 20
        assert second["measured_peak_bytes"] is None
    text = page()
    assert "5.0 MiB" in text
    assert "not reported" in text
    assert "GPU 0 → GPU 1" in text
    assert ms(found["checks"][0]["step_time_us"]) in text


def test_the_report_is_one_file_with_pictures_that_loads_nothing(verify):
    verify()
    text = page()
    assert text.count("<svg xmlns") == 3
    assert re.search(r"\w+ \d, predicted", text)
    assert re.search(r"\w+ \d, measured", text)
    assert not re.search(r"\b(src|href)=|@import|url\(", text)


def test_progress_never_goes_back_where_a_part_of_a_job_begins(monkeypatch):
    shown, place = [], tuning_process.place

    def place_in_halves(problem, method, options):
        options.progress(Progress(0.0, method, fraction=0.5))
        return place(problem, method, options=options)

    monkeypatch.setattr(tuning_process, "place", place_in_halves)
    verifying.verify(
        framework.FRAMEWORK, "gpu:2", report=lambda _, fraction: shown.append(fraction)
    )
    assert shown == sorted(shown)
    assert shown[-1] > 0.5


def test_poor_predictions_come_with_advice(verify):
    assert "Predictions are more than 15 % off. Stop whatever else uses" in verify().out


def test_plans_that_run_otherwise_than_planned_are_named_with_exit_status_1(verify, fake):
    fake("wrong")
    done = verify()
    assert done.status == 1
    assert done.out.startswith("Does not run as planned: 0 of 4 plans")
    fault = "mlp, single: 1 op not where planned, 1 op out of order."
    assert fault in done.out
    assert fault in page()
    assert "Send this report with your bug report." in done.out


def test_another_result_is_named_with_exit_status_1(verify, fake):
    fake("differs")
    done = verify("--json")
    assert done.status == 1
    assert not done.document["as_planned"]
    assert "a different result from the run without the plan" in done.document["advice"][0]


def test_plans_that_cannot_run_leave_a_report_with_the_reason(verify, fake):
    fake("crash at run")
    done = verify()
    assert done.status == 1
    assert done.out.splitlines()[0] == "Does not run as planned: 0 of 4 plans."
    assert done.out.count("did not run") == 4
    assert "crashed (SIGABRT)" in page()


def test_a_model_that_cannot_be_profiled_does_not_stop_the_others(verify, fake):
    fake("crash at convolutions", models=2)
    done = verify("--json")
    assert done.status == 1
    assert (done.document["plans"], done.document["ran_as_planned"]) == (8, 4)
    failed = [check for check in done.document["checks"] if check["why_not"]]
    assert {check["model"] for check in failed} == {"convolutions"}
    assert "cannot be profiled" in failed[0]["why_not"]


def test_if_nothing_can_be_profiled_one_line_says_why(verify, fake):
    fake("crash")
    done = verify()
    assert done.status == 2
    assert done.err.startswith("enplace: TensorFlow crashed (SIGABRT)")
    assert not Path("report.html").exists()


def test_without_the_framework_one_line_says_how_to_install_it(verify, fake):
    fake("well", module="no_such_module")
    done = verify()
    assert done.status == 2
    assert "pip install 'enplace[tensorflow]'" in done.err
    assert len(done.err.splitlines()) == 1


def test_an_output_that_cannot_be_written_is_refused_before_anything_runs(enplace, fake):
    fake("crash")
    done = enplace("verify", "-o", "nowhere/report.html")
    assert done.status == 2
    assert "no folder 'nowhere'" in done.err


def test_ctrl_c_ends_it_in_one_line(folder):
    interrupt(FAKE, "verify", "-o", "report.html")
    assert not Path("report.html").exists()


def test_chosen_gpus_are_verified(enplace):
    words = ["--gpus", "0,2", "--gpu-memory", "12GiB", "-o", "report.html", "--json"]
    found = enplace("verify", *words).document
    assert found["devices"] == found["machine"]["devices"] == "gpu:#0,2@12GiB"
    assert {check["facts"]["devices"] for check in found["checks"]} == {"gpu:#0,2@12GiB"}


def test_a_single_card_is_verified_as_two_logical_gpus(enplace, monkeypatch):
    install(monkeypatch, gpu())
    done = enplace("verify", "-o", "report.html", "--json")
    assert done.document["devices"] == "gpu:2"
    assert done.document["machine"]["GPUs"] == "H200, 141 GiB"
    assert done.document["machine"]["driver"] == "570.1"


def test_a_card_that_nvml_does_not_report_is_split_too(monkeypatch, tmp_path):
    install(monkeypatch)
    monkeypatch.setattr(devices, "_NVIDIA_DRIVERS", (tmp_path,))
    assert verifying.devices_to_verify(usual_framework()) == "gpu:2"


def test_labels_of_pytorch_prove_plans_and_its_pipelines_measure_time():
    torch = frameworks()["torch"]
    assert verifying.devices_to_verify(replace(torch, has_logical_devices=False)) in (
        "cpu:2",
        "gpu:all",
    )
    assert [path.is_file() for path in torch.bundled] == [True] * 3
    problem = Problem(layered(n_layers=2), cluster_of(2))
    schedule = place(problem, "heft").schedule
    times_us, plan = np.full(3, 90.0), schedule.plan
    made = partial(run_by_module, problem, plan, times_us, 60.0, (2, 2))
    row = {"device": "GPU:0", "busy_share": 0.5, "predicted_busy_share": 0.7}
    row |= {"peak_bytes": 8, "predicted_peak_bytes": 9, "in_flight": 2}
    labelled, staged = (
        replace(
            made(facts), loss_difference=loss, weights_difference=0.0, first_step_difference=0.0
        )
        for facts, loss in (
            ({"labels": True}, 0.0),
            ({"processes": 1, "pipeline": {"devices": [row]}}, 1e-6),
        )
    )
    checks = [
        PlanCheck("mlp", name, schedule, run)
        for name, run in (("heft", labelled), ("1f1b", staged))
    ]
    found = Verification("cpu:2", (problem.profile,), tuple(checks))
    assert [check.error for check in checks] == [None, pytest.approx(60 / 90 - 1)]
    assert found.verdict.startswith("Runs as planned: 2 of 2 plans, 1 bit-equal, 1 within ro")
    assert LABELLED in found.advice
    assert found.best["mlp"].startswith("Timed: 1f1b.")
    assert "take turns" not in " ".join(found.advice)
    (stage,) = checks[1].devices
    assert (stage.busy_us, stage.measured_busy_us) == (pytest.approx(42), pytest.approx(45))
    report = verification_html(found, "1")
    assert "<td>labels</td>" in report
    assert "allocator of the CPU reports" not in report  # the processes report theirs
    assert "<h2>Transfers</h2>" not in report
    assert report.count("did not run") == 0
    with pytest.raises(ClusterError, match="use cpu:2 or cpu:4"):
        verifying.verify(replace(torch, module="json"), "cpu:3")
