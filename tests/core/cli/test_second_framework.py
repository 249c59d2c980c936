"""A second framework is one folder: the command line and scripts then have all it brings."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from enplace import apply
from enplace.errors import EnplaceError
from enplace.frameworks.framework import Framework
from enplace.frameworks.registry import exporters, frameworks, kind_of
from enplace.readers import read_profile
from fake_framework import add_second_framework
from forking import fork_workers

WORKER = str(Path(__file__).with_name("fake_worker.py"))


@pytest.fixture(autouse=True)
def second(monkeypatch, folder):
    add_second_framework(monkeypatch, folder, (sys.executable, WORKER, "modules"))
    fork_workers(monkeypatch)
    (folder / "model.flame").write_text("spark\n")


def profile_script(enplace, imported, *words):
    """Profile a script that imports a framework."""
    Path("train.py").write_text(f"import {imported}\n")
    return enplace("profile", "train.py", "-o", "S.enplace", "--trust", "--json", *words)


def test_its_scripts_take_what_it_declares(enplace):
    assert profile_script(enplace, "torchlight", "--compile").status == 0
    profile = read_profile("S.enplace")
    assert profile.measured.source["framework_name"] == "torchlight"
    assert profile.measured.source["compile"] is True
    kind = kind_of(profile)
    assert kind.description == "A script by torchlight."
    enplace(
        "place", "S.enplace", "--cluster", "c.json", "-o", "new.json", "--method", "round-robin"
    )
    words = ("run", "train.py", "new.json", "--trust", "--profile", "S.enplace", "--json")
    done = enplace(*words, "--brightness", "2")
    assert (done.status, done.document["facts"]["wishes"]) == (0, {"brightness": 2})
    plan = json.loads(Path("new.json").read_text())
    assert plan["profile"]["framework"] == "torchlight"
    done = enplace(*words, "--framework", "tensorflow", "--brightness", "2")
    assert "TensorFlow's run takes no 'brightness'" in done.err


def test_the_same_kind_of_another_framework_takes_what_that_declares(enplace):
    done = profile_script(enplace, "tensorflow", "--compile")
    assert done.status == 2
    assert "a model of kind 'script' takes no 'compile'; it takes arguments, batch_size" in done.err


def test_the_doctor_says_how_to_install_it(enplace):
    found = {extra["name"]: extra for extra in enplace("doctor", "--json").document["extras"]}
    assert found["torchlight"]["install"] == "pip install 'enplace[torchlight]'"


def test_its_model_is_profiled_by_its_worker(enplace, folder):
    done = enplace("profile", "model.flame", "-o", "P.enplace", "--trust", "--json")
    assert (done.status, done.document["ops"]) == (0, 3)


def test_a_plan_is_exported_as_its_code(enplace):
    assert "flame (Torchlight script)" in " ".join(enplace("export", "--help").out.split())
    enplace("profile", "model.flame", "-o", "P.enplace", "--trust")
    enplace("place", "P.enplace", "--cluster", "c.json", "-o", "plan.json", "--method", "heft")
    done = enplace("export", "P.enplace", "plan.json", "--format", "flame", "-o", "plan.fl")
    assert (done.status, done.err) == (0, "")
    assert Path("plan.fl").read_text() == "burn"
    words = ("--cluster", "c.json", "-o", "plan.json", "--method", "round-robin")
    enplace("place", "P.enplace", *words)
    done = enplace("export", "P.enplace", "plan.json", "--format", "flame", "-o", "second.fl")
    assert done.status == 2
    assert "a flame does not jump" in done.err


@pytest.fixture
def planned(enplace):
    """A plan of each device count, by the number."""
    enplace("profile", "model.flame", "-o", "P.enplace", "--trust")
    words = ("P.enplace", "--cluster", "c.json")
    enplace("place", *words, "-o", "1.json", "--method", "single")
    enplace("place", *words, "-o", "2.json", "--method", "round-robin")


def test_its_models_run_with_its_own_wishes_and_are_checked_by_module(enplace, planned):
    words = ("--trust", "--profile", "P.enplace", "--brightness", "2")
    done = enplace("run", "model.flame", "2.json", *words, "--json")
    assert done.status == 0
    assert done.document["facts"]["wishes"] == {"brightness": 2}
    found = [done.document[f"{each}s_checked"] for each in ("op", "module")]
    assert (found, done.document["order_violations"]) == ([None, 2], None)
    assert done.document["as_planned"]
    lines = " ".join(enplace("run", "model.flame", "2.json", *words).out.split())
    assert "modules where planned 2 of 2 out of order not checked" in lines
    astray = enplace("run", "model.flame", "1.json", *words, "--json")
    assert (astray.status, astray.document["as_planned"]) == (1, False)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--pipeline", "1f1b"), "Torchlight's run takes no 'pipeline'; it takes brightness"),
        (("--no-order",), "Torchlight's run takes no 'order'"),
        (("--brightness", "9"), "9 is not in the range 1<=x<=3"),
        (("--signature", "f"), "a model of kind 'flame' takes no 'signature'"),
        (("--devices", "cpu:2"), "Torchlight does not divide a device into logical ones"),
        (("--devices", "gpu:1@2GiB"), "Torchlight does not divide a device into logical ones"),
        (("--devices", "hosts.json"), "Torchlight runs on one host"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(enplace, planned, words, why):
    done = enplace("run", "model.flame", "2.json", "--trust", "--profile", "P.enplace", *words)
    assert done.status == 2
    assert why in done.err


def test_what_it_takes_as_one_stays_together(enplace, planned):
    words = ("P.enplace", "--cluster", "c.json", "--method", "round-robin", "-o", "new.json")
    assert enplace("place", *words, "--grain", "half").status == 0
    ops = json.loads(Path("new.json").read_text())["ops"]
    devices = [op["device"] for op in ops]
    assert devices[1] == devices[2]
    done = enplace("place", *words, "--grain", "module")
    assert "Torchlight has no grain 'module'; use half, op" in done.err


def test_it_has_no_models_to_verify_a_machine_by(enplace, monkeypatch):
    monkeypatch.setattr(Framework, "is_installed", True)
    done = enplace("verify", "--framework", "torchlight", "-o", "report.html")
    assert "no models for Torchlight ship with Enplace" in done.err


def test_its_exporter_cannot_take_the_name_of_another(monkeypatch):
    second = frameworks()["torchlight"]
    renamed = replace(second, exporters=(replace(second.exporters[0], name="csv"),))
    monkeypatch.setattr(
        sys.modules["enplace.frameworks.torchlight.framework"], "FRAMEWORK", renamed
    )
    with pytest.raises(ValueError, match="torchlight: another exporter is called 'csv'"):
        exporters()


def test_serve_asks_which_framework_serves(enplace):
    done = enplace("serve", "c.json", "task", "--framework", "caffeine")
    assert done.status == 2
    assert "'tensorflow', 'torch', 'torchlight'" in done.err
    done = enplace("serve", "c.json", "task", "--framework", "torchlight")
    assert "Torchlight serves no tasks; choose another framework" in done.err


def write_plan_of(framework):
    """Write the head of a plan, which may name a framework."""
    named = {"profile": {"framework": framework}} if framework else {}
    Path("plan.json").write_text(json.dumps({"format": "enplace-plan/1", "ops": [], **named}))


@pytest.mark.parametrize(
    ("named", "imported", "applies"),
    [
        ("", ("tensorflow", "torchlight"), "tensorflow"),
        ("torchlight", ("tensorflow", "torchlight"), "torchlight"),
        ("tensorflow", ("tensorflow", "torchlight"), "tensorflow"),
        ("torchlight", (), "torchlight"),
        ("onnx", ("torchlight",), "torchlight"),
        ("", ("torchlight",), "torchlight"),
    ],
)
def test_a_plan_is_applied_by_the_framework_that_it_names(monkeypatch, named, imported, applies):
    for name in ("tensorflow", "torchlight"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in imported:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(Framework, "is_installed", True)
    monkeypatch.setattr(Framework, "apply", lambda framework, path: framework.module)
    write_plan_of(named)
    assert apply("plan.json") == applies


def test_a_plan_that_cannot_be_read_is_left_to_the_framework_in_use(monkeypatch):
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.setitem(sys.modules, "torchlight", ModuleType("torchlight"))
    assert apply("gone.json") == "gone.json lit"


def test_a_plan_of_an_unknown_framework_is_not_applied():
    write_plan_of("pytorch")
    why = "^plan.json: Enplace does not know the framework pytorch; update Enplace.$"
    with pytest.raises(EnplaceError, match=why):
        apply("plan.json")


def test_a_script_applies_a_plan_with_the_framework_that_it_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.setitem(sys.modules, "torchlight", ModuleType("torchlight"))
    write_plan_of("")
    assert apply("plan.json") == "plan.json lit"
    assert apply("plan.json", brightness=3) == "plan.json lit!!"
    with pytest.raises(EnplaceError, match="Torchlight's apply takes no 'pipeline'"):
        apply("plan.json", pipeline="1f1b")


def test_a_model_of_an_unknown_framework_is_not_run_by_another(enplace):
    profile_script(enplace, "torchlight")
    words = ("--cluster", "c.json", "-o", "new.json", "--method", "round-robin")
    enplace("place", "S.enplace", *words)
    plan = json.loads(Path("new.json").read_text())
    plan["profile"]["framework"] = "jax"
    Path("new.json").write_text(json.dumps(plan))
    done = enplace("run", "train.py", "new.json", "--trust")
    assert (done.status, done.out) == (2, "")
    assert "the profile: no framework is called 'jax'; update Enplace" in done.err
