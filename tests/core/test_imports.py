"""Which modules import what; ``lint-imports`` checks the packages of the library."""

import ast
from pathlib import Path

import enplace

PACKAGE = Path(enplace.__file__).parent
TOP = ("cli", "api")
"""What may import the names of ``import enplace`` itself."""


def test_only_the_top_imports_the_library_itself():
    modules = {path.stem for path in PACKAGE.iterdir()}
    upwards = [
        f"{path.relative_to(PACKAGE)}: {alias.name}"
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] not in TOP
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "enplace"
        for alias in node.names
        if alias.name not in modules
    ]
    assert upwards == []
