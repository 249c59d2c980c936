"""What tests of solvers and of the methods that ask them share."""

import os

import pytest
from tests.core.solvers.fakes import install_gurobi


@pytest.fixture
def gurobi(monkeypatch, tmp_path):
    """Put a Gurobi in the path, as :func:`install_gurobi` has it."""

    def put(**what):
        install_gurobi(tmp_path, **what)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    return put
