"""The files in which compiled code is kept."""

import sys
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from enplace import compiling

TUPLES = "from typing import NamedTuple\nclass Costs(NamedTuple):\n    us: float\n"
KERNELS = """
from enplace.made_tuples import Costs
from enplace.compiling import kernel

@kernel
def total(costs: Costs) -> float:
    return costs.us
"""


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    """A function that writes a module of the package, loads it and returns its fingerprint."""

    def write(name, source):
        path = tmp_path / f"{name}.py"
        path.write_text(source)
        spec = spec_from_file_location(f"enplace.{name}", path)
        module = module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        compiling._fingerprint.cache_clear()
        spec.loader.exec_module(module)
        return compiling._fingerprint(spec.name)

    yield write
    compiling._fingerprint.cache_clear()


def test_code_is_kept_for_one_version_of_the_tuples_that_a_kernel_takes(write_module):
    write_module("made_tuples", TUPLES)
    old = write_module("made_kernels", KERNELS)
    assert write_module("made_kernels", KERNELS) == old
    write_module("made_tuples", TUPLES + "    bytes: int = 0\n")
    assert write_module("made_kernels", KERNELS) != old


def test_a_kernel_keeps_its_name(write_module):
    write_module("made_tuples", TUPLES)
    fingerprint = write_module("made_kernels", KERNELS)
    total = sys.modules["enplace.made_kernels"].total
    assert total.py_func.__qualname__ == "total"
    assert fingerprint in total._cache._impl.filename_base
