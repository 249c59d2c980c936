"""What differs between Linux, macOS and Windows, apart from processes."""

from __future__ import annotations

import glob
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from enplace.errors import EnplaceError

try:
    import fcntl
except ImportError:  # on Windows

    def lock(file: BinaryIO | int, wait: bool = True) -> None:
        """Lock a file until it is closed, however its process ends."""
        import msvcrt

        descriptor = file if isinstance(file, int) else file.fileno()
        msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]

else:

    def lock(file: BinaryIO | int, wait: bool = True) -> None:
        """Lock a file until it is closed, however its process ends.

        Raises
        ------
        OSError
            If another process has locked it and this one shall not wait.
        """
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


_CGROUPS, _OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")

NICE = 5
"""By how much threads are nicer than the main one: it then gets three quarters of a shared core."""

LOCK_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""How to open a lock that may be a stranger's: no link, and no pipe that blocks."""


def count_cores() -> int:
    """Count the processor cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def host_bytes() -> int:
    """Return the memory of this machine, or what its control groups allow, as in a container.

    0 if the system does not tell.
    """
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0
    return min([whole, *_cgroup_limits()])


def _cgroup_limits() -> list[int]:
    """Read the limits of this process's control groups, of version 1 and 2, and of all above."""
    limits = []
    for line in _OWN_CGROUPS.read_text().splitlines() if _OWN_CGROUPS.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, name = (
            (_CGROUPS / "memory", "memory.limit_in_bytes")
            if controllers
            else (_CGROUPS, "memory.max")
        )
        folder = root / path.lstrip("/")
        for each in (folder, *folder.parents):
            with suppress(OSError):  # few folders have such a file
                if (text := (each / name).read_text().strip()).isdigit():
                    limits.append(int(text))
    return limits


def is_busy() -> bool:
    """Return whether another program than this one computes; False if the system does not tell."""
    try:
        return os.getloadavg()[0] > 1
    except (AttributeError, OSError):  # Windows
        return False


def waited_s() -> dict[str, float]:
    """Return how long each thread of this process was ready but had no core, by its number.

    Only Linux tells; elsewhere there is none.
    """
    found = {}
    for path in glob.glob("/proc/self/task/*/schedstat"):
        try:
            with open(path, encoding="ascii") as file:
                found[path.split("/")[4]] = int(file.read().split()[1]) * 1e-9
        except (OSError, ValueError, IndexError):
            continue  # the thread ended meanwhile, or this kernel does not count
    return found


def yield_to_main_thread() -> None:
    """Let this thread, and those that it starts, wait for the main one where cores are short.

    Only Linux has a priority for each thread.
    """
    if sys.platform != "linux":
        return
    nice = min(os.getpriority(os.PRIO_PROCESS, os.getpid()) + NICE, 19)
    thread = threading.get_native_id()
    if os.getpriority(os.PRIO_PROCESS, thread) < nice:
        os.setpriority(os.PRIO_PROCESS, thread, nice)


def give_back_memory() -> None:
    """Give freed memory back to the system, where glibc would keep it for later."""
    import ctypes  # every command imports this module, and few need it

    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, TypeError):  # another library; Windows
        return
    trim(0)


_ASK_LLVM = """
import sys
from llvmlite import binding
binding.initialize_native_target()
binding.Target.from_default_triple().create_target_machine({}=sys.argv[1])
"""

_JUDGED = {
    "NUMBA_CPU_NAME": ("LLVM", _ASK_LLVM.format("cpu")),
    "NUMBA_CPU_FEATURES": ("LLVM", _ASK_LLVM.format("features")),
    "NUMBA_CACHE_LOCATOR_CLASSES": ("numba", "import enplace.placing.random_numbers"),
}
"""Settings of numba that only LLVM or numba can judge, and the code by which it does."""


def check_compiler_settings() -> None:
    """Refuse settings of numba that would end it, or have LLVM write a line for each kernel.

    Another process asks, because LLVM writes about what it does not know, or aborts.
    """
    with suppress(ValueError):  # numba passes over what is no number
        if (n_threads := int(os.environ.get("NUMBA_NUM_THREADS", 1))) < 1:
            raise EnplaceError(f"NUMBA_NUM_THREADS={n_threads}: must be 1 or more; unset it")
    for name, (judge, code) in _JUDGED.items():
        if value := os.environ.get(name):
            import subprocess

            asked = subprocess.run([sys.executable, "-P", "-c", code, value], capture_output=True)
            if asked.stderr or asked.returncode:
                raise EnplaceError(f"{name}={value}: {judge} does not know it; unset it")
