"""Compile every kernel for any CPU of this platform, as packages bring them.

Usage: python packaging/compile_kernels.py DIRECTORY, with the Python for which they are to be.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import tempfile
from pathlib import Path

FRAMEWORKS = "enplace.frameworks"  # they have no kernels, and need what is not installed


def main(folder: Path) -> None:
    """Run all methods on small problems, and copy what numba's cache then has of each kernel."""
    with tempfile.TemporaryDirectory() as cache:
        # Also for the processes that it starts, and before numba reads them.
        os.environ |= {
            "NUMBA_CACHE_DIR": cache,
            "NUMBA_CPU_NAME": "generic",
            "NUMBA_CPU_FEATURES": "",
        }
        from enplace.cli import run as enplace

        status = enplace(["compile", "--all"])
        if status:
            sys.exit(status)
        folder.mkdir(parents=True, exist_ok=True)
        copied = {kernel.py_func.__qualname__: copy(kernel, folder) for kernel in all_kernels()}
    left_out = ", ".join(name for name, codes in copied.items() if not codes)
    print(
        f"{sum(copied.values())} kernels for Python "
        f"{sys.version_info.major}.{sys.version_info.minor} in {folder}; not called: {left_out}"
    )


def all_kernels() -> list[object]:
    """List the compiled functions that Python calls; the others are part of their code."""
    from numba.core.dispatcher import Dispatcher

    import enplace

    found = {}
    for module in pkgutil.walk_packages(enplace.__path__, "enplace."):
        if not module.name.startswith(FRAMEWORKS) and module.name != "enplace.__main__":
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, Dispatcher) and is_called(value):
                    found[value.py_func] = value
    return list(found.values())


def is_called(kernel: object) -> bool:
    """Whether Python calls a compiled function."""
    return not kernel.targetoptions.get("no_cpython_wrapper", True)


def copy(kernel: object, folder: Path) -> int:
    """Copy the code of a kernel, for each set of types that it was called with."""
    cache, codegen = kernel._cache, kernel.targetctx.codegen()
    codes = cache._cache_file._load_index()
    files = cache.files(folder)
    for key in codes:
        files.save(cache.key_ahead(key[0], codegen), cache._cache_file.load(key))
    return len(codes)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
