"""The README's tour of the command line, run as written."""

import json
import re

import pytest

from enplace.readers import read_profile
from enplace.readers.samples import samples
from enplace.writers import write_profile
from readme import commands, limit_search, shell, without_progress

CLUSTER, SAMPLE = "v100-2-pcie", "transformer-6-16-2048"


def fill_in_names(command: str) -> str:
    """Insert real names into a command of the README."""
    command = re.sub(r"--cluster C\b", f"--cluster {CLUSTER}", command)
    return re.sub(r"\bNAME\b", CLUSTER, command)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A folder with ``graph.json``, the sample in its open text form."""
    folder = tmp_path_factory.mktemp("tour")
    sample = next(sample for sample in samples() if sample.name == SAMPLE)
    write_profile(folder / "graph.json", read_profile(sample.path))
    return folder


def test_the_tour_of_the_readme_works_from_start_to_end(workspace):
    tour = commands(with_tensorflow=False)
    assert {command.split()[1] for command in tour} >= {
        "import",
        "clusters",
        "methods",
        "place",
        "compare",
        "simulate",
        "export",
        "doctor",
    }
    for command in tour:
        done = shell(limit_search(fill_in_names(command)), workspace)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert without_progress(done.stderr) == "", command
    assert json.loads((workspace / "trace.json").read_text())["traceEvents"]
    compile((workspace / "placement.py").read_text(), "placement.py", "exec")


@pytest.mark.parametrize("sample", samples(), ids=lambda sample: sample.name)
def test_every_sample_is_placed_on_its_own_cluster(sample, tmp_path):
    where = f"--cluster {sample.cluster} --rounds 1 -o plan.json"
    done = shell(f"enplace place '{sample.path}' {where} --json", tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["step_time_us"] >= found["lower_bound"] * (1 - 1e-12)
    again = shell(f"enplace simulate '{sample.path}' plan.json --json", tmp_path)
    assert json.loads(again.stdout)["step_time_us"] == found["step_time_us"]
