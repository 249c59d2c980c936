"""Reads mutants under limits: ``python -m tests.fuzz.child TARGET FIRST LAST FOLDER``.

Prints a line before each mutant and one after it; whoever started this notices a hang, or an end.
"""

from __future__ import annotations

import random
import resource
import sys
import traceback
import warnings
from pathlib import Path

from tests.fuzz.mutate import mutate
from tests.fuzz.targets import targets

from enplace.errors import EnplaceError

MEMORY_BYTES = 1 << 30


def main() -> None:
    """Read the mutants with the given numbers."""
    name, first, last, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    target = targets()[name]
    warnings.simplefilter("ignore")
    used = _address_space()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
    path = folder / "input"
    for number in range(first, last):
        draw = random.Random(f"{name} {number}")
        path.write_bytes(mutate(draw.choice(target.seeds), draw))
        print(f"begin {number}", flush=True)
        print(f"end {number} {_outcome(target, path)}", flush=True)


def _outcome(target: object, path: Path) -> str:
    """Return what becomes of a file, in one line."""
    try:
        target.read(path)
    except EnplaceError as error:
        message = str(error)
        return "refused" if message.isprintable() else f"fault: unprintable {message!a}"
    except MemoryError:
        return "memory"
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"fault: {type(error).__name__} in {Path(place.filename).name}:{place.lineno}"
    return "accepted"


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
