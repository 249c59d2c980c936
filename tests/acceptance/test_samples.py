"""Every bundled sample is placed by a command, and the plan is worth what it says."""

import json

import pytest

from blocks import shell
from enplace.readers.samples import samples


@pytest.mark.parametrize("sample", samples(), ids=lambda sample: sample.name)
def test_every_sample_is_placed_on_its_own_cluster(sample, tmp_path):
    where = f"--cluster {sample.cluster} --rounds 1 -o plan.json"
    done = shell(f"enplace place '{sample.path}' {where} --json", tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["step_time_us"] >= found["lower_bound"] * (1 - 1e-12)
    again = shell(f"enplace simulate '{sample.path}' plan.json --json", tmp_path)
    assert json.loads(again.stdout)["step_time_us"] == found["step_time_us"]
