"""A short run of ``make fuzz``: broken files are refused in one line, or read."""

import pytest
from tests.fuzz.run import faults, fuzz
from tests.fuzz.targets import OF_ONNX, OF_TENSORFLOW, OTHERS

FILES, FILES_OF_MODELS = 10, 1


@pytest.mark.parametrize(
    "counts",
    [
        dict.fromkeys(OTHERS, FILES),
        dict.fromkeys(OF_ONNX, FILES),
        {**dict.fromkeys(OF_TENSORFLOW, FILES_OF_MODELS), "trace": FILES},
    ],
    ids=["plain", "onnx", "tensorflow"],
)
def test_broken_files_are_refused_or_read(counts):
    found = fuzz(counts)
    assert len(found) == sum(counts.values())
    assert not faults(found)
