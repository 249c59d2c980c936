"""Fuzz every reader: ``python -m tests.fuzz [COUNT]``; prints what became of the files."""

from __future__ import annotations

import sys
from collections import Counter

from tests.fuzz.run import OUTCOMES, faults, fuzz
from tests.fuzz.targets import TARGETS

COUNT = 100_000


def main() -> int:
    """Print the table; return how many targets have a fault."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    shares = sum(entry.share for entry in TARGETS.values())
    print(f"{'target':<16}{'files':>9}" + "".join(f"{each:>10}" for each in OUTCOMES))
    faulty = 0
    for name, entry in TARGETS.items():
        found = fuzz({name: int(count * entry.share / shares)})
        kinds = Counter(each.partition(":")[0] for each in found.values())
        row = "".join(f"{kinds[each]:>10,}" for each in OUTCOMES)
        print(f"{name:<16}{len(found):>9,}{row}", flush=True)
        bad = faults(found)
        faulty += bool(bad)
        for (_, number), each in list(bad.items())[:20]:
            print(f"    {name} {number}: {each}")
    return faulty


if __name__ == "__main__":
    sys.exit(main())
