"""Which folders become which import packages. Everything else is in pyproject.toml."""

from pathlib import Path

from setuptools import find_namespace_packages, find_packages, setup

# Folders of files are packages too, or else setuptools warns of them.
resources = find_namespace_packages("resources", exclude=["*-*", "*__pycache__*"])

KERNELS = "build/kernels"  # what packaging/compile-kernels.sh has left there, if it ran

setup(
    packages=[
        *find_packages("core"),
        *find_packages("app"),
        "enplace_resources",
        *(f"enplace_resources.{name}" for name in resources),
        *(["enplace.compiled"] if Path(KERNELS).exists() else []),
    ],
    package_dir={
        "enplace": "core/enplace",
        "enplace.compiled": KERNELS,
        "enplace_studio": "app/enplace_studio",
        "enplace_resources": "resources",
    },
)
