"""``profile``, ``run`` and ``tune`` with a fake TensorFlow worker."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import platformdirs
import pytest

from enplace.frameworks import tuning_process
from enplace.frameworks.source import Source
from enplace.frameworks.trust import is_trusted
from enplace.readers import read_profile
from fake_framework import code_to_use_worker, interrupt, use_worker
from forking import fork_workers

FAKE = Path(__file__).with_name("fake_worker.py")


@pytest.fixture(autouse=True)
def fake(monkeypatch, tmp_path):
    """A function that chooses how the fake worker behaves; no folder is trusted yet."""

    def behave(mode):
        use_worker(monkeypatch, sys.executable, str(FAKE), mode)

    monkeypatch.setattr(platformdirs, "user_config_dir", lambda name: str(tmp_path / "settings"))
    fork_workers(monkeypatch)
    behave("well")
    return behave


@pytest.fixture
def script(folder):
    (folder / "train.py").write_text("raise SystemExit('never run by these tests')\n")
    return folder / "train.py"


@pytest.fixture
def profiled(enplace, script, folder):
    assert enplace("profile", "train.py", "-o", "P.enplace", "--trust").status == 0
    where = ["--cluster", "local", "--method", "heft", "-o", "plan.json"]
    assert enplace("place", "P.enplace", *where).status == 0
    return folder


def test_profile_writes_what_the_worker_measured(enplace, script, folder):
    words = ["--devices", "cpu:2", "--arg", "--batch", "--arg", "16", "--trust", "--json"]
    done = enplace("profile", "train.py", "-o", "P.enplace", *words)
    assert done.status == 0
    assert (done.document["ops"], done.document["devices"]) == (3, "cpu:2")
    measured = read_profile("P.enplace").measured
    assert measured.source["arguments"] == ["--batch", "16"]
    assert measured.devices == "cpu:2"


def test_the_output_of_the_script_is_not_printed(enplace, script):
    done = enplace("profile", "train.py", "-o", "P.enplace", "--trust")
    assert done.err == ""
    assert "3 ops" in done.out
    assert "hello" not in done.out


def test_profile_prints_transfer_costs_and_names_poor_fits(enplace, script):
    output = enplace("profile", "train.py", "-o", "P.enplace", "--trust").out
    assert "GPU 0 → GPU 1  0.012 ms + bytes at 25 GB/s, R² 0.998" in output
    assert "Poor fit (R² below 0.9): GPU 1 → GPU 0." in output
    assert "preset" not in output


def test_profile_says_that_links_of_logical_cpus_are_presets(enplace, script):
    words = ["--devices", "cpu:4", "--trust"]
    output = enplace("profile", "train.py", "-o", "P.enplace", *words).out
    assert "is a preset, 0.0050 ms + bytes at 10 GB/s" in output
    assert "R²" not in output


def test_a_poor_estimate_is_flagged_and_a_batch_that_fits_is_noted(enplace, script):
    words = ["--arg", "{batch}", "--batch-size", "64", "--batch-sizes", "8,16", "--trust"]
    lines = enplace("profile", "train.py", "-o", "P.enplace", *words).out.splitlines()
    (poor,) = [line for line in lines if "estimated times are 60.0 % off" in line]
    assert "trust the measured times" in poor
    assert "memory" in poor
    assert any("Batch 64 fits one device" in line for line in lines)


def test_run_reports_measured_and_predicted_figures(enplace, profiled):
    words = ["--profile", "P.enplace", "--steps", "7", "--trust", "--json"]
    done = enplace("run", "train.py", "plan.json", *words)
    assert done.status == 0
    found = done.document
    assert found["steps"] == 7
    assert found["step_time_us"] == 2 * found["predicted_step_time_us"] > 0
    assert (found["ops_checked"], found["ops_on_planned_device"]) == (3, 3)
    assert (found["order_violations"], found["loss_difference"]) == (0, 0)


def test_without_a_profile_run_uses_the_prediction_in_the_plan(enplace, profiled):
    plan = json.loads((profiled / "plan.json").read_text())
    plan["predicted"]["step_time_us"] = 123.5
    (profiled / "plan.json").write_text(json.dumps(plan))
    alone = enplace("run", "train.py", "plan.json", "--trust", "--json").document
    with_profile = enplace(
        "run", "train.py", "plan.json", "--profile", "P.enplace", "--trust", "--json"
    ).document
    assert alone["predicted_step_time_us"] == 123.5
    assert with_profile["predicted_step_time_us"] != 123.5


def test_a_plan_without_a_prediction_still_runs(enplace, profiled):
    plan = json.loads((profiled / "plan.json").read_text())
    del plan["predicted"]
    (profiled / "plan.json").write_text(json.dumps(plan))
    done = enplace("run", "train.py", "plan.json", "--trust", "--json")
    assert done.document["predicted_step_time_us"] is None
    text = enplace("run", "train.py", "plan.json", "--trust").out
    assert "predicted" not in text
    assert "nan" not in text


def test_run_prints_the_same_figures_as_text(enplace, profiled):
    lines = enplace("run", "train.py", "plan.json", "--trust").out.splitlines()
    assert any(line.startswith("ops where planned") and "of 3" in line for line in lines)
    assert any("loss differs by" in line for line in lines)


def test_run_and_tune_say_first_whether_one_device_is_faster(enplace, profiled):
    words = ["--profile", "P.enplace", "--trust"]
    found = enplace("run", "train.py", "plan.json", *words, "--json").document
    assert found["step_time_us"] > found["stock_step_time_us"]
    slower = "One device is faster: nothing to split. It takes 0.40 ms, the plan +0.5 %."
    slower = f"{slower} Data parallelism takes 0.50 ms."
    assert found["verdict"] == slower
    assert found["data_parallel_step_time_us"] == 500
    assert enplace("run", "train.py", "plan.json", *words).out.splitlines()[2] == found["verdict"]
    tuned = enplace("tune", "train.py", "plan.json", *words, "--method", "heft", "-o", "b.json")
    assert tuned.out.startswith(slower)
    assert "by itself" in tuned.out
    assert re.search(r"data parallel +0\.50 ms", tuned.out)


def test_run_times_data_parallelism_where_it_starts_quickly_or_on_request(enplace, profiled):
    words = ["run", "train.py", "plan.json", "--trust", "--json"]
    assert enplace(*words).document["facts"]["data_parallel_wanted"] == "quick"
    asked = enplace(*words, "--data-parallel").document
    assert asked["facts"]["data_parallel_wanted"] == "always"


def test_prediction_errors_have_a_caveat_on_logical_cpus_only(enplace, profiled):
    words = ["--profile", "P.enplace", "--trust"]
    assert "share caches" not in enplace("run", "train.py", "plan.json", *words).out
    cluster = enplace("clusters", "--json", "pcie-2").document
    for device in cluster["devices"]:
        device["kind"] = "cpu"
    (profiled / "cpus.json").write_text(json.dumps(cluster).replace("GPU:", "CPU:1"))
    where = ["--cluster", "cpus.json", "--method", "round-robin", "-o", "apart.json"]
    assert enplace("place", "P.enplace", *where).status == 0
    ran = enplace("run", "train.py", "apart.json", *words).out
    assert ran.count("share caches, memory") == 1
    tuned = enplace("tune", "train.py", "apart.json", *words, "--method", "heft", "-o", "b.json")
    assert tuned.out.count("share caches, memory") == 1


def test_a_run_that_departs_from_the_plan_exits_with_1(enplace, profiled, fake):
    fake("wrong")
    done = enplace("run", "train.py", "plan.json", "--trust", "--json")
    assert done.status == 1
    assert done.document["as_planned"] is False
    assert done.document["loss_difference"] is None
    assert enplace("run", "train.py", "plan.json", "--trust").status == 1


def test_a_run_with_a_different_result_exits_with_1(enplace, profiled, fake):
    fake("differs")
    done = enplace("run", "train.py", "plan.json", "--trust", "--json")
    assert done.status == 1
    assert done.document["as_planned"] is False
    ran = enplace("run", "train.py", "plan.json", "--trust")
    assert "The result differs from the run without the plan." in ran.out


def test_run_reuses_the_script_arguments_of_the_profile(enplace, script, folder):
    enplace("profile", "train.py", "-o", "P.enplace", "--trust", "--arg", "deep")
    enplace("place", "P.enplace", "--cluster", "local", "--method", "heft", "-o", "plan.json")
    seen = []

    def spy(request, *rest):
        seen.append(request.source.arguments)
        return run_job(request, *rest)

    run_job = tuning_process.run_job
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning_process, "run_job", spy)
        enplace("run", "train.py", "plan.json", "--trust", "--profile", "P.enplace")
        enplace("run", "train.py", "plan.json", "--trust")
        words = ["--profile", "P.enplace", "--arg", "wide"]
        enplace("run", "train.py", "plan.json", "--trust", *words)
    assert seen == [("deep",), (), ("wide",)]


def test_tune_writes_the_best_plan_and_lists_each_round(enplace, profiled):
    enplace("place", "P.enplace", "--cluster", "local", "-o", "bad.json", "--method", "round-robin")
    words = ["--profile", "P.enplace", "--trust", "-o", "better.json", "--method", "heft"]
    done = enplace("tune", "train.py", "bad.json", *words, "--json")
    assert done.status == 0
    assert [entry["kept"] for entry in done.document["rounds"]] == [True, True]
    assert done.document["step_time_us"] < done.document["first_step_time_us"]
    assert done.document["settled"]
    assert enplace("simulate", "P.enplace", "better.json").status == 0
    text = enplace("tune", "train.py", "better.json", *words).out
    assert "at first" in text
    assert "no faster plan" in text


def devices_in(plan_file):
    return [op["device"] for op in json.loads(plan_file.read_text())["ops"]]


def test_tune_rolls_back_a_faster_plan_that_does_not_run_as_planned(enplace, profiled, fake):
    fake("wrong-alone")
    enplace("place", "P.enplace", "--cluster", "local", "-o", "bad.json", "--method", "round-robin")
    words = ["--profile", "P.enplace", "--trust", "-o", "better.json", "--method", "heft"]
    done = enplace("tune", "train.py", "bad.json", *words, "--json")
    assert done.status == 1
    first, new = done.document["rounds"]
    assert new["step_time_us"] < first["step_time_us"]
    assert (first["kept"], new["kept"], new["as_planned"]) == (True, False, False)
    assert done.document["step_time_us"] == first["step_time_us"]
    assert devices_in(profiled / "better.json") == devices_in(profiled / "bad.json")
    plain = enplace("tune", "train.py", "bad.json", *words)
    assert plain.status == 1
    assert "not as planned, rolled back" in plain.out
    assert "Round 1 did not run as planned: 1 op not where planned, 1 op out of order." in plain.out


def test_tune_exits_with_1_if_even_the_first_plan_does_not_run_as_planned(enplace, profiled, fake):
    fake("wrong")
    words = ["--profile", "P.enplace", "--trust", "-o", "better.json", "--method", "heft"]
    done = enplace("tune", "train.py", "plan.json", *words)
    assert done.status == 1
    assert "The first plan did not run as planned" in done.out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["profile", "nonesuch.py", "-o", "P.enplace"], "nonesuch.py: there is no such file"),
        (["profile", "train.py", "-o", "nowhere/P.enplace"], "no folder 'nowhere'"),
        (["profile", "train.py", "-o", "train.py"], "is also an input"),
        (["profile", "train.py", "-o", "P.enplace", "--loss", "mse"], "takes no 'loss'"),
        (
            ["profile", "train.py", "-o", "P.enplace", "--batch-sizes", "8,x"],
            "'x' is not a valid integer",
        ),
        (["profile", "train.py", "-o", "P.enplace", "--batch-sizes", "0"], "0 is not in the range"),
        (["run", "train.py", "nonesuch.json"], "nonesuch.json"),
        (["run", "train.py", "train.py"], "train.py"),
        (["run", "train.py", "p.json"], "p.json"),
        (["run", "train.py", "p.json", "--microbatches", "4"], "add --pipeline"),
        (["run", "train.py", "p.json", "--own-statistics"], "add --pipeline"),
        (["run", "train.py", "p.json", "--pipeline", "1f1b", "--no-order"], "leave out --no-order"),
    ],
)
def test_bad_input_is_refused_in_one_line_before_anything_runs(enplace, script, fake, words, hint):
    fake("crash")
    done = enplace(*words, "--trust")
    assert done.status == 2
    assert hint in done.err
    assert len(done.err.splitlines()) == 1


def test_a_crash_is_reported_with_the_last_lines_of_output(enplace, script, folder, fake):
    fake("crash")
    (folder / "P.enplace").write_bytes(b"precious")
    done = enplace("profile", "train.py", "-o", "P.enplace", "--trust", "--json", "--force")
    assert done.status == 2
    first, *rest = done.err.splitlines()
    assert first.startswith("enplace: TensorFlow crashed (SIGABRT)")
    assert rest == ["  | the script says hello", "  | about to go wrong"]
    assert done.document["last_lines"] == ["the script says hello", "about to go wrong"]
    assert (folder / "P.enplace").read_bytes() == b"precious"


def test_an_interrupt_leaves_the_output_alone(script, folder):
    (folder / "P.enplace").write_bytes(b"precious")
    interrupt(FAKE, "profile", "train.py", "-o", "P.enplace", "--trust", "--force")
    assert (folder / "P.enplace").read_bytes() == b"precious"


# Trust


def test_untrusted_code_does_not_run_without_a_terminal_to_ask_on(enplace, script, fake):
    fake("crash")
    done = enplace("profile", "train.py", "-o", "P.enplace")
    assert done.status == 2
    assert "add --trust" in done.err
    assert len(done.err.splitlines()) == 1


def test_answering_yes_trusts_the_folder_from_then_on(enplace, script, folder, monkeypatch):
    asked = []
    monkeypatch.setattr("enplace.cli.models._can_ask", lambda: True)
    monkeypatch.setattr("click.confirm", lambda text, err: asked.append(text) or True)
    for _ in range(2):
        assert enplace("profile", "train.py", "-o", "P.enplace").status == 0
    assert len(asked) == 1
    assert str(folder) in asked[0]
    assert is_trusted(Source(str(script), "script"))


def test_a_trusted_model_runs_even_if_the_answer_cannot_be_saved(
    enplace, script, folder, monkeypatch
):
    (folder / "settings").touch()  # a file where the folder should be
    monkeypatch.setattr("platformdirs.user_config_dir", lambda name: str(folder / "settings"))
    monkeypatch.setattr("enplace.cli.models._can_ask", lambda: True)
    monkeypatch.setattr("click.confirm", lambda text, err: True)
    done = enplace("profile", "train.py", "-o", "P.enplace")
    assert done.status == 0
    assert "the answer is not saved" in done.err


def test_arguments_that_a_profile_brings_are_shown_before_they_run(
    enplace, script, folder, monkeypatch
):
    enplace("profile", "train.py", "-o", "P.enplace", "--trust", "--arg", "deep")
    enplace("place", "P.enplace", "--cluster", "local", "--method", "heft", "-o", "plan.json")
    words = ["run", "train.py", "plan.json", "--profile", "P.enplace"]
    assert "train.py deep, with the arguments that the profile" in enplace(*words, "--trust").err
    refused = enplace(*words)
    assert refused.status == 2
    assert "train.py deep, with the arguments that the profile" in refused.err
    enplace("profile", "train.py", "-o", "P.enplace", "--trust", "--arg", "wide")
    asked = []
    monkeypatch.setattr("enplace.cli.models._can_ask", lambda: True)
    monkeypatch.setattr("click.confirm", lambda text, err: asked.append(text) or True)
    for _ in range(2):
        assert "wide" not in enplace(*words).err
    assert len(asked) == 1
    assert "train.py wide" in asked[0]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"framework_name": "nope"}, "no framework is called 'nope'; update Enplace"),
        ({"evil": 1}, "'evil' means nothing here"),
        ({"arguments": None}, "'arguments' is missing"),
        ({"batch_size": None}, "'batch_size' is missing"),
    ],
)
@pytest.mark.parametrize("command", ["run", "tune"])
def test_a_profile_with_a_wrong_source_is_refused_in_one_line(
    enplace, script, folder, command, change, complaint
):
    profile = {
        "format": "enplace-profile/1",
        "ops": [{"name": "a", "time_us": {"gpu": 1, "cpu": 1}}],
        "edges": [],
        "measured": {"source": Source(str(script), "script").to_json() | change},
    }
    (folder / "p.json").write_text(json.dumps(profile))
    enplace("place", "p.json", "--cluster", "pcie-2", "--method", "heft", "-o", "plan.json")
    words = [command, "train.py", "plan.json", "--profile", "p.json", "--trust"]
    done = enplace(*words, *(["-o", "new.json"] if command == "tune" else []))
    assert done.status == 2
    assert complaint in done.err
    assert done.err.count("\n") == 1


def test_a_long_argument_that_a_profile_brings_is_shown_whole_or_refused(enplace, script, folder):
    words = ["run", "train.py", "plan.json", "--profile", "P.enplace"]
    hidden = f"{'a' * 200};__import__('os').system('touch /tmp/x');{'b' * 200}"
    enplace("profile", "train.py", "-o", "P.enplace", "--trust", f"--arg={hidden}")
    enplace("place", "P.enplace", "--cluster", "local", "--method", "heft", "-o", "plan.json")
    (folder / "settings" / "trusted.json").unlink(missing_ok=True)
    for path in folder.rglob("trusted.json"):
        path.unlink()
    refused = enplace(*words)
    assert refused.status == 2
    assert hidden in refused.err.replace("'\"'\"'", "'")
    enplace("profile", "train.py", "-o", "P.enplace", "--trust", f"--arg={'c' * 5000}")
    too_long = enplace(*words)
    assert too_long.status == 2
    assert "too long to read" in too_long.err


def test_after_a_no_nothing_runs_and_the_question_is_asked_again(
    enplace, script, folder, fake, monkeypatch
):
    fake("crash")
    monkeypatch.setattr("enplace.cli.models._can_ask", lambda: True)
    monkeypatch.setattr("click.confirm", lambda text, err: False)
    done = enplace("profile", "train.py", "-o", "P.enplace")
    assert done.status == 2
    assert "nothing was run" in done.err
    assert not is_trusted(Source(str(script), "script"))


@pytest.mark.parametrize(("typed", "status"), [("y\n", 0), ("\n", 2), ("n\n", 2)])
def test_on_a_terminal_enter_means_no(script, folder, typed, status):
    returncode, out, output = answer_on_a_terminal("train.py", folder, typed)
    assert returncode == status
    assert "[y/N]" in output
    json.loads(out)  # the question is not part of the JSON
    assert (folder / "P.enplace").exists() == (status == 0)


def answer_on_a_terminal(model, folder, typed):
    """Profile a model in a pseudo-terminal; return status, standard output and the screen."""
    master, slave = os.openpty()
    code = (
        f"{code_to_use_worker(sys.executable, str(FAKE), 'well')}"
        "import sys; from enplace.cli import main; sys.argv[1:] = "
        f"['profile', {model!r}, '-o', 'P.enplace', '--json']; main()"
    )
    environment = {**os.environ, "XDG_CONFIG_HOME": str(folder / "config")}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=slave,
        stderr=slave,
        stdout=subprocess.PIPE,
        env=environment,
    )
    os.write(master, typed.encode())
    out, _ = process.communicate(timeout=300)
    os.close(slave)
    output = os.read(master, 1 << 16).decode()
    os.close(master)
    return process.returncode, out, output


def test_the_question_of_trust_sends_nothing_to_the_terminal_that_a_path_hides(script, folder):
    target = folder / "a\r\x1b[2K\x1b]0;owned\a.py"
    target.write_text((folder / "train.py").read_text())
    (folder / "model.py").symlink_to(target)
    status, _, screen = answer_on_a_terminal("model.py", folder, "n\n")
    assert status == 2
    assert "owned" in screen
    assert not set("\x1b\a") & set(screen)


def test_the_trust_flag_is_not_remembered(enplace, script):
    assert enplace("profile", "train.py", "-o", "P.enplace", "--trust").status == 0
    assert not is_trusted(Source(str(script), "script"))
