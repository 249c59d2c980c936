"""A short run of ``make fuzz``: broken files are refused in one line, or read."""

import pytest
from tests.fuzz.run import fuzz
from tests.fuzz.targets import targets

FILES = 60


@pytest.mark.parametrize("name", targets())
def test_every_seed_is_valid(name, tmp_path):
    for seed in targets()[name].seeds:
        (tmp_path / "input").write_bytes(seed)
        targets()[name].read(tmp_path / "input")


@pytest.mark.parametrize("name", targets())
def test_broken_files_are_refused_or_read(name):
    found = fuzz(name, 0, FILES)
    assert len(found) == FILES
    assert set(found.values()) <= {"accepted", "refused"}
