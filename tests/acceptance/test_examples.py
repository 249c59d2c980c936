"""The scripts in ``examples/`` run as they stand, and do what they say."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("script", "says", "writes"),
    [
        ("place_a_sample", "vgg-19 on pesto, enplace", ["timeline.png", "report.html"]),
        ("pin_and_compare", "The best method is ", ["plan.json", "trace.json"]),
        ("build_a_graph", "4 of 16 edges lead to another device", []),
    ],
)
def test_an_example_runs(script, says, writes, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    command = [sys.executable, EXAMPLES / f"{script}.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(writes)


def test_every_example_is_run():
    (marker,) = test_an_example_runs.pytestmark
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {row[0] for row in marker.args[1]}
