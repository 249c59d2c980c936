"""``import`` and ``export``."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.core.cli.conftest import OPS, machine, model

from enplace.frameworks import jobs
from enplace.readers import read_profile


def test_import_writes_a_file_that_reads_back_the_same(enplace, folder):
    assert enplace("import", "p.json", "-o", "p.enplace").status == 0
    assert enplace("import", "p.enplace", "-o", "again.json").status == 0
    first, again = read_profile("p.json"), read_profile("again.json")
    assert first.fingerprint == again.fingerprint
    assert np.array_equal(first.time_us, again.time_us)


def test_import_summarises_the_file(enplace, folder):
    found = enplace("import", "p.json", "-o", "p.enplace", "--json").document
    assert (found["ops"], found["edges"]) == (7, 6)
    assert found["profile_file"] == "p.enplace"


def test_import_writes_the_recorded_placement(enplace, folder):
    measured = {
        "cluster": machine(),
        "op_devices": {op: f"GPU:{i % 2}" for i, op in enumerate(OPS)},
    }
    (folder / "m.json").write_text(json.dumps(model(measured=measured)))
    assert enplace("import", "m.json", "--plan", "plan.json").status == 0
    placed = {e["op"]: e["device"] for e in json.loads((folder / "plan.json").read_text())["ops"]}
    assert placed == measured["op_devices"]
    assert enplace("simulate", "m.json", "plan.json").status == 0


def test_a_profile_that_was_not_measured_has_no_recorded_placement(enplace, folder):
    done = enplace("import", "p.json", "--plan", "plan.json", "--cluster", "c.json")
    assert done.status == 2
    assert not (folder / "plan.json").exists()


def test_import_requires_an_output(enplace, folder):
    done = enplace("import", "p.json")
    assert done.status == 2
    assert "-o P.enplace" in done.err


def test_json_contains_no_nan_or_infinity(enplace, folder):
    text = json.dumps(model(measured={"step_time_us": 0})).replace('us": 0}', 'us": NaN}')
    (folder / "nan.json").write_text(text)
    found = enplace("import", "nan.json", "-o", "p.enplace", "--json")
    assert found.status != 0 or found.document["measured_step_time_us"] is None


@pytest.mark.parametrize("form", ["python", "csv", "trace", "html", "svg"])
def test_export_writes_every_format_from_the_plan_alone(enplace, folder, form):
    enplace("place", "p.json", "--cluster", "c.json", "-o", "plan.json")
    done = enplace("export", "p.json", "plan.json", "--format", form, "-o", "out", "--json")
    assert done.status == 0
    assert done.document["bytes"] == (folder / "out").stat().st_size > 0


def exported(enplace, folder, *more):
    """Return the report of the plan in ``plan.json``."""
    files = "p.json", "plan.json", "-o", "out.html"
    assert enplace("export", *files, "--format", "html", *more).status == 0
    return (folder / "out.html").read_text()


@pytest.mark.parametrize("command", ["simulate", "export"])
def test_a_bound_in_a_plan_file_is_not_taken_for_a_proof(enplace, folder, command):
    """The costs may have changed since; the fingerprint of the graph does not tell."""
    enplace("place", "p.json", "--cluster", "c.json", "-o", "plan.json")
    plan = json.loads((folder / "plan.json").read_text())
    plan["predicted"]["lower_bound_us"] = 7_654.0
    (folder / "plan.json").write_text(json.dumps(plan))
    if command == "export":
        assert "7.7 ms" not in exported(enplace, folder)
    else:
        assert enplace("simulate", "p.json", "plan.json", "--json").document["lower_bound"] < 7_000


def test_a_report_compares_with_an_expert_and_with_one_gpu(enplace, folder):
    enplace("place", "p.json", "--cluster", "c.json", "-o", "plan.json")
    text = exported(enplace, folder)
    assert "an expert&#x27;s plan" in text
    assert "TensorFlow alone: everything on one device" in text


def test_export_does_not_overwrite_its_input(enplace, folder):
    enplace("place", "p.json", "--cluster", "c.json", "-o", "plan.json")
    before = (folder / "plan.json").read_bytes()
    done = enplace("export", "p.json", "plan.json", "--format", "csv", "-o", "plan.json")
    assert done.status == 2
    assert (folder / "plan.json").read_bytes() == before


@pytest.mark.usefixtures("folder")
def test_a_bundled_sample_goes_by_its_name(enplace):
    assert enplace("import", "rnnlm-2-2048", "-o", "s.enplace").status == 0
    assert read_profile("s.enplace").n_ops > 1000
    missing = enplace("import", "rnnlm-2-2084", "-o", "t.enplace")
    assert missing.status == 2
    assert "did you mean 'rnnlm-2-2048'?" in missing.err


def test_a_model_of_an_unknown_framework_is_not_taken_for_another(enplace, folder):
    measured = {"framework": "pytorch", "framework_version": "2.9"}
    (folder / "p.json").write_text(json.dumps(model(measured=measured)))
    words = ("p.json", "--cluster", "c.json")
    assert enplace("place", *words, "-o", "plan.json", "--method", "heft").status == 0
    assert enplace("export", "p.json", "plan.json", "--format", "html", "-o", "r.html").status == 0
    page = (folder / "r.html").read_text()
    assert "the model alone: everything on one device" in page
    assert "TensorFlow" not in page
    done = enplace("export", "p.json", "plan.json", "--format", "python", "-o", "out.py")
    assert done.status == 2
    assert "format 'python' is for TensorFlow, and this is a model of pytorch" in done.err
    done = enplace("place", *words, "-o", "plan.json", "--grain", "module")
    assert done.status == 2
    assert "there is no grain 'module': Enplace does not know the framework pytorch" in done.err


def test_a_model_that_must_be_measured_is_sent_to_profile(enplace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my graph.pbtxt").write_text('node { name: "a" op: "NoOp" }')
    refused = enplace("import", "my graph.pbtxt", "-o", "g.enplace")
    assert refused.status == 2
    assert "use: enplace profile 'my graph.pbtxt' -o g.enplace" in refused.err


def test_a_framework_that_is_missing_is_named_before_a_worker_starts(enplace, folder, monkeypatch):
    monkeypatch.setattr(jobs, "do_job", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    Path("model.pt2").write_text("x")
    done = enplace("import", "model.pt2", "-o", "p.enplace")
    assert done.status == 2
    assert "PyTorch is not installed; run: " in done.err


def test_the_name_of_a_sample_that_is_no_file_is_explained(enplace, folder):
    done = enplace("place", "vgg-19", "--cluster", "pesto")
    assert done.status == 2
    assert "is a bundled sample; make its profile first: enplace import vgg-19 -o" in done.err
