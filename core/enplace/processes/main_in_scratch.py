"""The main program of workers that run other people's code, which must not change their files.

``python -P -m enplace.processes.main_in_scratch MODULE:FUNCTION`` first makes what the worker sees
of this machine a copy on write: a file that it, or what it starts, writes, replaces or removes is
changed in a scratch folder only, and read back from there. On Linux each file system gets an
overlay in a mount namespace (:mod:`enplace.processes.scratch`), which holds for native libraries
and child processes too. Where the kernel does not allow that, Python's and the framework's
functions for files are led there (:mod:`enplace.processes.redirect`).
"""

from __future__ import annotations

import os
from typing import NoReturn

from enplace.processes import scratch


def main() -> NoReturn:
    """Make all files copies on write, then run the handler that the command line names."""
    folders = os.environ.pop(scratch.FOLDERS).split(os.pathsep)
    if scratch.can_overlay(folders):
        scratch.mount_overlays(folders)
    else:
        from enplace.processes.redirect import redirect_files

        redirect_files(folders[0])
    from enplace.processes import main

    main.main()


if __name__ == "__main__":
    main()
