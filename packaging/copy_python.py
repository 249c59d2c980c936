"""Copy the interpreter that runs this, with its standard library, to a folder that can be moved.

The shared libraries that its modules need come along, but for those of glibc.

Usage: python packaging/copy_python.py DIRECTORY
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

UNUSED = shutil.ignore_patterns(
    "__pycache__", "site-packages", "dist-packages", "config-*", "ensurepip", "idlelib", "lib2to3",
    "pydoc_data", "test", "tests", "tkinter", "turtle*", "_curses*", "_crypt*", "_dbm*", "_gdbm*",
    "_test*", "_tkinter*", "_xx*", "nis.*", "ossaudiodev*", "readline*", "xx*",
)  # fmt: skip

GLIBC = re.compile(r"(ld-linux.*|linux-vdso|lib(c|m|dl|rt|pthread|util|resolv|nsl|gcc_s))\.so.*")


def main(folder: Path) -> None:
    """Copy the interpreter and all it needs."""
    version = f"python3.{sys.version_info.minor}"
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / version
    shutil.copy2(Path(sys._base_executable).resolve(), program)  # type: ignore[attr-defined]
    (folder / "bin" / "python3").symlink_to(version)
    library = folder / "lib" / version
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=UNUSED, symlinks=False)
    bring_libraries(program, folder / "lib", "$ORIGIN/../lib")
    for module in sorted((library / "lib-dynload").glob("*.so")):
        bring_libraries(module, folder / "lib", "$ORIGIN/../..")


def bring_libraries(file: Path, folder: Path, search: str) -> None:
    """Copy the shared libraries that a file needs, and those that these need.

    Parameters
    ----------
    search : str
        Where the file is to look for them.
    """
    needed = [path for path in needs(file) if not GLIBC.fullmatch(path.name)]
    if not needed:
        return
    subprocess.run(["patchelf", "--set-rpath", search, str(file)], check=True)
    for path in needed:
        copy = folder / path.name
        if not copy.exists():
            shutil.copy2(path.resolve(), copy)
            bring_libraries(copy, folder, "$ORIGIN")


def needs(file: Path) -> list[Path]:
    """List the shared libraries that a file loads."""
    command = ["ldd", str(file)]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [Path(path) for path in re.findall(r"=> (/\S+)", listed)]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
