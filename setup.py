"""Which folders become which import packages. Everything else is in pyproject.toml."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages("core"), *find_packages("app"), "enplace_resources"],
    package_dir={
        "enplace": "core/enplace",
        "enplace_studio": "app/enplace_studio",
        "enplace_resources": "resources",
    },
)
