"""The folder of the command line's tests: both start from the same files."""

from tests.core.cli.conftest import enplace, folder

__all__ = ["enplace", "folder"]
