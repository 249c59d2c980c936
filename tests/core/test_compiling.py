"""The files in which compiled code is kept."""

import shutil
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


@pytest.fixture
def made_kernel(write_module, tmp_path):
    """A function that makes the kernel anew, as a process does that has compiled nothing."""
    write_module("made_tuples", TUPLES)

    def make():
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        write_module("made_kernels", KERNELS)
        return sys.modules["enplace.made_kernels"].total

    return make


def count_compilations(kernel):
    """Call a kernel; return how many functions numba compiled for it."""
    compiled = []
    with compiling.watch_compiler(compiled.append):
        assert kernel(sys.modules["enplace.made_tuples"].Costs(3.0)) == 3.0
    return len(compiled)


@pytest.fixture
def made_ahead(made_kernel, tmp_path, monkeypatch):
    """The kernel compiled ahead, as a package brings it."""
    monkeypatch.setattr(compiling, "AHEAD", tmp_path / "ahead")
    (tmp_path / "ahead").mkdir()
    kernel = made_kernel()
    assert count_compilations(kernel) == 1
    cache, codegen = kernel._cache, kernel.targetctx.codegen()
    (types,) = kernel.overloads
    data = cache._cache_file.load(cache._index_key(types, codegen))
    cache.files(compiling.AHEAD).save(cache.key_ahead(types, codegen), data)


def test_a_kernel_compiled_ahead_is_loaded_for_any_cpu(made_ahead, made_kernel, monkeypatch):
    assert count_compilations(made_kernel()) == 0
    monkeypatch.setattr(compiling.caching.numba, "__version__", "another")
    assert count_compilations(made_kernel()) == 1


def test_a_kernel_compiled_ahead_is_loaded_whatever_its_bytecode(made_ahead, made_kernel):
    kernel = made_kernel()
    code = kernel.py_func.__code__
    kernel.py_func.__code__ = code.replace(co_code=code.co_code * 2)
    assert count_compilations(kernel) == 0


def test_a_kernel_compiled_ahead_of_another_source_is_not_loaded(
    made_ahead, write_module, made_kernel
):
    write_module("made_tuples", TUPLES + "\n")
    assert count_compilations(made_kernel()) == 1


def test_a_kernel_runs_where_nobody_may_write(made_kernel, monkeypatch):
    monkeypatch.setattr(compiling._Files, "_locator_classes", [compiling._NoCache])
    assert count_compilations(made_kernel()) == 1


def test_python_interprets_kernels_if_numba_is_told_to_compile_nothing(made_kernel, monkeypatch):
    monkeypatch.setattr("numba.core.config.DISABLE_JIT", 1)
    assert count_compilations(made_kernel()) == 0
