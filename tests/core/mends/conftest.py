"""The ``enplace`` command, for the tests of this folder."""

from tests.core.cli.conftest import enplace

__all__ = ["enplace"]
