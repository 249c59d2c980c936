"""Kill studio, solvers, workers and commands at random: ``python -m tests.kills [COUNT [KIND]]``.

Prints how often each was killed, and every fault: work lost that was older than two seconds, a file
that cannot be read, litter, a process that lives on, a message of more than one line.
"""

from __future__ import annotations

import random
import sys
from collections import Counter

from tests.kills.run import KINDS

COUNT = 200


def main() -> int:
    """Print the table; return how many kinds have a fault."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    faulty = 0
    kinds = {name: kill for name, kill in KINDS.items() if name in (sys.argv[2:] or KINDS)}
    for name, kill in kinds.items():
        faults: Counter[str] = Counter()
        for number in range(count):
            faults.update(kill(random.Random(f"{name} {number}")))
        print(f"{name:<24}{count:>6,} kills{sum(faults.values()):>6,} faults", flush=True)
        for fault, times in faults.items():
            print(f"    {times} times: {fault}")
        faulty += bool(faults)
    return faulty


if __name__ == "__main__":
    sys.exit(main())
