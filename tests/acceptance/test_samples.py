"""Every bundled sample is placed by a command, and the plan is worth what it says."""

import json

import pytest

from enplace.cli import run
from enplace.readers.samples import samples


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(each, id=each.name, marks=[pytest.mark.long] * (each.name == "llama-7b"))
        for each in samples()
    ],
)
def test_every_sample_is_placed_on_its_own_cluster(sample, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    where = ["--cluster", sample.cluster, "--time-limit", "1", "-o", "plan.json"]
    assert run(["place", str(sample.path), *where, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step_time_us"] >= found["lower_bound"] * (1 - 1e-12)
    assert run(["simulate", str(sample.path), "plan.json", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["step_time_us"] == found["step_time_us"]
