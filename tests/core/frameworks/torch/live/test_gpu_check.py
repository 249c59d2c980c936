"""``make gpu-check`` on a machine without a GPU, which checks small models on the CPU."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from enplace.text import ms

pytest.importorskip("torch")

ROOT = Path(__file__).parents[5]


def check(folder, *models, python=sys.executable):
    command = [ROOT / "scripts" / "gpu-check.sh", folder, *models]
    env = os.environ | {"PYTHON": str(python), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, env=env, capture_output=True, text=True)


def test_a_model_is_measured_simulated_and_estimated(tmp_path):
    done = check(tmp_path, "lstm")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "gpu-check.json").read_text())
    assert found["machine"]["gpu"] == ""
    row = found["models"]["lstm"]
    assert row["simulated_us"] == pytest.approx(row["step_us"], rel=0.01)
    assert row["simulated_peak_bytes"] == pytest.approx(row["peak_bytes"], rel=0.01)
    assert row["estimated_peak_bytes"] == pytest.approx(row["peak_bytes"], rel=0.02)
    assert row["estimated_flops"] > 0
    page = (tmp_path / "gpu-check.md").read_text()
    assert page.startswith("# CPU (small models;")
    assert f"| lstm | {row['ops']} | {ms(row['step_us'])} |" in page
    with zipfile.ZipFile(tmp_path / "profiles.zip") as packed:
        assert packed.namelist() == ["lstm-measured.enplace", "lstm-estimated-h200.enplace"]


def test_what_is_missing_is_told_in_one_line(tmp_path):
    unknown = check(tmp_path, "lstm2")
    assert unknown.returncode == 2
    assert "no model is called lstm2" in unknown.stderr
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    without = check(tmp_path, python=bare)
    assert without.returncode == 2
    assert without.stderr.startswith(f"gpu-check: {bare} has no torch; run: ")
    assert without.stderr.count("\n") == 1
