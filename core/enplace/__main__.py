"""The command ``enplace``, also ``python -m enplace``."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Run the command; Ctrl-C ends it quietly even while it is still loading."""
    gc.set_threshold(100_000)  # else it often looks through all imports, which are never freed
    try:
        from enplace.cli import main as run
    except KeyboardInterrupt:
        print("\nenplace: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
