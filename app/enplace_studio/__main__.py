"""Start the studio: ``python -m enplace_studio [FILE]``."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from enplace.errors import EnplaceError
from enplace.system import check_compiler_settings

if TYPE_CHECKING:
    from enplace_studio.shell.window import MainWindow


def main(argv: list[str] | None = None) -> int:
    """Open the studio, with a file if one is given, and run it until it is closed.

    Returns
    -------
    int
        Exit status: 0 normally, 2 if the demo failed, a library or a display is missing, or a
        setting of numba is wrong.
    """
    arguments = _parse(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name.startswith("enplace"):
            raise
        print(
            f"enplace-studio: needs {name}; install it with: pip install 'enplace[studio]'",
            file=sys.stderr,
        )
        return 2
    except ImportError as error:
        if ".so" not in str(error):
            raise
        print(f"enplace-studio: {error}; install the system's package that has it", file=sys.stderr)
        return 2
    except EnplaceError as error:
        print(f"enplace-studio: {error}", file=sys.stderr)
        return 2


def _run(arguments: argparse.Namespace) -> int:
    check_compiler_settings()
    if arguments.offscreen_demo:
        os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
        # The off-screen platform warns about every window with a minimum size.
        os.environ.setdefault("QT_LOGGING_RULES", "default.warning=false")
        from enplace_studio.shell.demo import run_demo

        return run_demo(arguments.offscreen_demo)
    from PySide6.QtCore import QTimer

    from enplace_studio.shell.application import make_application, user_window

    if _lacks_display():
        print(
            "enplace-studio: there is no display; log in on a desktop, or use ssh -X",
            file=sys.stderr,
        )
        return 2

    app = make_application()
    window = user_window()
    window.show()
    QTimer.singleShot(0, lambda: _begin(window, arguments.file))
    return app.exec()


def _lacks_display() -> bool:
    """Whether Qt would abort: on Linux, these variables name the display or a stand-in."""
    names = ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")
    return sys.platform == "linux" and not any(os.environ.get(name) for name in names)


def _begin(window: MainWindow, file: Path | None) -> None:
    window.solver.start()
    window.offer_tour()
    if file is not None:
        window.studio.files.open_path(file)
    window.studio.files.offer_recovery()


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="enplace-studio", description="Decide where every op of a model runs."
    )
    parser.add_argument("file", nargs="?", type=Path, help="a project, or any readable profile")
    parser.add_argument(
        "--offscreen-demo",
        metavar="DIR",
        type=Path,
        help="solve a bundled sample off-screen; leave plan, comparison and picture in DIR",
    )
    logging.basicConfig(level=logging.WARNING)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
