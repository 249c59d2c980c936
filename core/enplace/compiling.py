"""Ways to compile the innermost loops.

numba's compile time grows with the size of the code it makes. An array in a tuple takes up seven
words, and a tuple of 25 arrays nearly two hundred. By default, each use of such a tuple counts the
references of all its arrays.

Packages bring kernels compiled ahead, in the folder ``compiled``: numba's own files, made for any
CPU of a platform. One is loaded if it was made of the same source, by the same numba, for the same
minor version of Python, platform and types. Any other kernel is compiled when it is first called,
for the CPU that is here, and kept in numba's cache.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import cache, cached_property
from pathlib import Path
from threading import get_ident
from typing import Any, TypeVar, cast


def _import_config() -> None:
    """Import numba without the settings in the current folder, which may be a stranger's.

    One of them names a folder with compiled code, and numba unpickles what it finds there. It reads
    the file as it is imported, but only where it can import yaml.
    """
    yaml = sys.modules.get("yaml")
    sys.modules["yaml"] = None  # type: ignore[assignment]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it would say that it cannot read the file
            config: Any = importlib.import_module("numba.core.config")
    finally:
        del sys.modules["yaml"]
        if yaml is not None:
            sys.modules["yaml"] = yaml
    config._config_fname = ""
    config.reload_config()


_import_config()

from numba import njit  # noqa: E402
from numba.core import caching, event  # noqa: E402
from numba.core.dispatcher import Dispatcher  # noqa: E402
from numba.np import linalg  # noqa: E402

Function = TypeVar("Function", bound=Callable[..., Any])

AHEAD = Path(__file__).with_name("compiled")
"""Where a package brings the kernels that were compiled ahead."""

ANY_CPU = ("generic", "")
"""The name and the features, for LLVM, of a CPU that has what every CPU of its kind has."""


class _NoCache(caching._CacheLocator):
    """For a user who may write nowhere: nothing is found, and nothing is kept."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._line = function.__code__.co_firstlineno

    @classmethod
    def from_function(cls, function: Callable[..., Any], _: str) -> _NoCache:
        return cls(function)

    def ensure_cache_path(self) -> None:
        raise OSError("no folder can be written")

    def get_cache_path(self) -> str:
        return str(AHEAD.with_name("no cache"))

    def get_source_stamp(self) -> str:
        return ""

    def get_disambiguator(self) -> str:
        return str(self._line)


class _Files(caching.CompileResultCacheImpl):
    _locator_classes = [*caching.CacheImpl._locator_classes, cast(Any, _NoCache)]  # noqa: RUF012


class KernelCache(caching.FunctionCache):
    """The code of a kernel on disk: what was compiled ahead, then numba's cache.

    Parameters
    ----------
    name : str
        Names its files; it holds the digest of all source that the code was made of.
    """

    _impl_class = _Files

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        usual, function.__qualname__ = function.__qualname__, name
        try:
            super().__init__(function)
        finally:
            function.__qualname__ = usual

    def load_overload(self, types: Any, target: Any) -> Any:
        """Load the code for some types of arguments; None if it must be compiled."""
        _import_arrays()
        key = self.key_ahead(types, target.codegen())
        if key in self._found_ahead:
            target.refresh()
            return self._impl.rebuild(target, self.files(AHEAD).load(key))
        return super().load_overload(types, target)

    def save_overload(self, types: Any, code: Any) -> None:
        """Keep the code on disk, if there is room: the kernel runs in any case."""
        with suppress(OSError):
            super().save_overload(types, code)

    def key_ahead(self, types: Any, codegen: Any) -> Any:
        """Make the key by which code for any CPU is found.

        The names of the files stand for the source. The bytecode, by which numba's own cache finds
        code, is another one in some patch releases of Python.
        """
        of_types, (platform, *_), (_, of_closure) = self._index_key(types, codegen)
        return of_types, (platform, *ANY_CPU), of_closure

    def files(self, folder: Path) -> Any:
        """Open the files of this kernel in a folder of code compiled ahead."""
        return caching.IndexDataCacheFile(str(folder), self._impl.filename_base, "")

    @cached_property
    def _found_ahead(self) -> Any:
        return self.files(AHEAD)._load_index()


@cache
def _import_arrays() -> None:
    """Import how numba compiles arrays, but not scipy's linear algebra, which takes long.

    numba only asks there whether it exists, and asks again where a function needs it.
    """
    usual, linalg.ensure_blas = linalg.ensure_blas, lambda: None
    try:
        importlib.import_module("numba.np.arraymath")
    finally:
        linalg.ensure_blas = usual


def _cached(**flags: bool) -> Callable[[Function], Function]:
    """Make a decorator that compiles a function at its first call, and keeps the code on disk."""
    compiled: Any = njit

    def decorate(function: Function) -> Function:
        made: Any = compiled(nogil=True, no_cfunc_wrapper=True, **flags)(function)
        if made is function:
            return function  # NUMBA_DISABLE_JIT: Python interprets it
        # numba names the file of a function's code after the function, and notices a change of its
        # own source, but not of the functions it calls or of the tuples it takes.
        name = f"{function.__qualname__}-{_fingerprint(function.__module__)}"
        made._cache = KernelCache(function, name)
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


class _Watcher(event.Listener):
    def __init__(self, begin: Callable[[str], None], end: Callable[[], None]) -> None:
        self._begin, self._end = begin, end
        self._n_open: Counter[int] = Counter()
        """How many functions each thread is compiling, of those that began while this watched."""

    def on_start(self, event: event.Event) -> None:
        dispatcher = (event.data or {}).get("dispatcher")
        self._n_open[get_ident()] += 1
        self._begin(dispatcher.py_func.__module__ if dispatcher else "")

    def on_end(self, event: event.Event) -> None:
        if self._n_open[get_ident()]:  # or it began before, in another thread
            self._n_open[get_ident()] -= 1
            self._end()


def watch_compiler(
    begin: Callable[[str], None], end: Callable[[], None] = lambda: None
) -> AbstractContextManager[Any]:
    """Call functions as numba begins and ends to compile or load a function, within a context.

    Parameters
    ----------
    begin : callable
        Takes the name of the function's module.
    """
    watch: AbstractContextManager[Any] = event.install_listener(
        "numba:compile", _Watcher(begin, end)
    )
    return watch


def step(function: Function) -> Function:
    """Compile a short step of a loop: it is inlined; a call would pass some two hundred words."""
    compiled: Any = njit
    made: Function = compiled(nogil=True, inline="always", _nrt=False)(function)
    return made
