"""A second framework is one folder: the command line and scripts then have all it brings."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from enplace import apply
from enplace.frameworks.registry import exporters, frameworks, kinds
from fake_framework import add_second_framework

WORKER = str(Path(__file__).with_name("fake_worker.py"))


@pytest.fixture(autouse=True)
def second(monkeypatch, folder):
    add_second_framework(monkeypatch, folder, (sys.executable, WORKER, "well"))
    (folder / "model.flame").write_text("spark\n")


def test_no_two_frameworks_share_a_kind_of_model():
    names = [kind.name for framework in frameworks().values() for kind in framework.kinds]
    assert sorted(names) == sorted(kinds())


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
    assert "'tensorflow', 'torchlight'" in done.err


def test_a_script_applies_a_plan_with_the_framework_that_it_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.setitem(sys.modules, "torchlight", ModuleType("torchlight"))
    assert apply("plan.json") == "plan.json lit"
