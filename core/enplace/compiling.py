"""Ways to compile the innermost loops.

numba's compile time grows with the size of the code it makes. An array in a tuple takes up seven
words, and a tuple of 25 arrays nearly two hundred. By default, each use of such a tuple counts the
references of all its arrays.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit
from numba.core import config
from numba.core.dispatcher import Dispatcher

# numba reads settings from a file in the current folder, which may be a stranger's: one of them
# names a folder with compiled code, and numba unpickles what it finds there.
config._config_fname = ""
config.reload_config()

Function = TypeVar("Function", bound=Callable[..., Any])


def _cached(**flags: bool) -> Callable[[Function], Function]:
    """Make a decorator that compiles a function at its first call, and keeps the code on disk."""
    compiled: Any = njit

    def decorate(function: Function) -> Function:
        made: Any = compiled(nogil=True, no_cfunc_wrapper=True, **flags)(function)
        # numba names the file of a function's code after the function, and notices a change of its
        # own source, but not of the functions it calls or of the tuples it takes.
        name = function.__qualname__
        function.__qualname__ = f"{name}-{_fingerprint(function.__module__)}"
        made.enable_caching()
        function.__qualname__ = name
        return cast(Function, made)

    return decorate


@cache
def _fingerprint(module: str) -> str:
    """Digest the source of a module and of all modules whose kernels and tuples it uses."""
    namespace = vars(sys.modules[module])
    used = {value.__module__ for value in namespace.values() if _is_compiled(value)}
    used = {name for name in used if name.startswith("enplace.")} - {module}
    digest = hashlib.sha256(Path(namespace["__file__"]).read_bytes())
    digest.update(Path(__file__).read_bytes())
    for name in sorted(used):
        digest.update(_fingerprint(name).encode())
    return digest.hexdigest()[:16]


def _is_compiled(value: object) -> bool:
    """Whether a value is a kernel, or a tuple that kernels may take."""
    return isinstance(value, Dispatcher) or (isinstance(value, type) and issubclass(value, tuple))


# Callees inherit the flags that are not given here.

kernel = _cached(_nrt=True, no_cpython_wrapper=False)
"""For functions that Python calls."""

helper = _cached(_nrt=True, no_cpython_wrapper=True)
"""For functions that allocate or return arrays, and that only other compiled functions call."""

loop = _cached(_nrt=False, no_cpython_wrapper=True)
"""For functions that neither allocate nor return arrays, and that only compiled functions call.

numba then does not count references, so reading an array from a tuple costs nothing.
"""


def step(function: Function) -> Function:
    """Compile a short step of a loop: it is inlined; a call would pass some two hundred words."""
    compiled: Any = njit
    made: Function = compiled(nogil=True, inline="always", _nrt=False)(function)
    return made
