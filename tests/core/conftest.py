"""Fixtures for tests of solvers and of the methods that use them."""

import os

import pytest
from tests.core.solvers.fakes import install_gurobi


@pytest.fixture
def gurobi(monkeypatch, tmp_path):
    """Install a fake Gurobi and put it on the path; see :func:`install_gurobi`."""

    def put(**behaviour):
        install_gurobi(tmp_path, **behaviour)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    return put
