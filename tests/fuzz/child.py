"""Reads mutants under limits: ``python -m tests.fuzz.child FOLDER``.

Their targets and numbers are the lines of the standard input. Prints a line before each mutant and
one after it; whoever started this notices a hang, or an end.
"""

from __future__ import annotations

import random
import resource
import sys
import traceback
import warnings
from pathlib import Path

from tests.fuzz.targets import TARGETS, Target

from enplace.errors import EnplaceError

MEMORY_BYTES = 1 << 30


def main() -> None:
    """Read the mutants."""
    folder = Path(sys.argv[1])
    wanted = [line.rstrip("\n").rsplit(" ", 1) for line in sys.stdin]
    warnings.simplefilter("ignore")
    targets = {name: TARGETS[name].build() for name, _ in wanted}
    for name, target in targets.items():
        _read_seeds(target, _file_of(target, folder / name))
    used = _address_space()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
    for name, number in wanted:
        target, path = targets[name], _file_of(targets[name], folder / name)
        draw = random.Random(f"{name} {number}")
        path.write_bytes(target.mutate(draw.choice(target.seeds), draw))
        print(f"begin {name} {number}", flush=True)
        before = _files(folder)
        outcome = _outcome(target, path)
        if litter := _files(folder) - before:
            outcome = f"litter: {', '.join(sorted(litter))}"
        print(f"end {outcome}", flush=True)


def _file_of(target: Target, folder: Path) -> Path:
    """Return the path of a target's file, in a folder that has everything else it needs."""
    for name, content in {**target.neighbours, target.name: b""}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return path


def _read_seeds(target: Target, path: Path) -> None:
    """Read the valid files, also so that all that needs memory only once has it."""
    for seed in target.seeds:
        path.write_bytes(seed)
        target.read(path)


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def _outcome(target: Target, path: Path) -> str:
    """Return what becomes of a file, in one line."""
    try:
        target.read(path)
    except EnplaceError as error:
        if getattr(error, "is_fault", False):  # of a worker
            return f"fault: {error}"
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
