"""A short run of ``make fuzz``: broken files are refused in one line, or read."""

import pytest
from tests.fuzz.run import faults, fuzz
from tests.fuzz.targets import OF_TENSORFLOW, OTHERS

FILES = 60
OF_TRACES, OF_MODELS = 60, 2


@pytest.mark.parametrize("name", OTHERS)
def test_broken_files_are_refused_or_read(name):
    found = fuzz({name: FILES})
    assert len(found) == FILES
    assert not faults(found)


def test_broken_files_of_tensorflow_are_refused_or_read():
    counts = dict.fromkeys(OF_TENSORFLOW, OF_MODELS) | {"trace": OF_TRACES}
    found = fuzz(counts)
    assert len(found) == sum(counts.values())
    assert not faults(found)
