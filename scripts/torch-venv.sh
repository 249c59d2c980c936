#!/usr/bin/env bash
# Makes an environment for the tests of PyTorch, with all but Enplace itself, and prints its folder.
# Usage: scripts/torch-venv.sh VERSION, such as 2.13.0 or 2.13.0+cpu. $PYTHON runs it.
# An ordinary index has builds for CUDA, of gigabytes; pip finds one for CPUs where PIP_FIND_LINKS or
# PIP_EXTRA_INDEX_URL lead it.
set -euo pipefail

version=$1
venv=build/torch-$version-python$("${PYTHON:-python3}" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if [ ! -e "$venv/.installed" ]; then
    [ -e "$venv/bin/python" ] || scripts/make-venv.sh "$venv"
    # PyTorch and transformers ask for their own versions of what they share with Enplace.
    grep -viE '^(absl|numpy|networkx|protobuf|pyyaml|tensorflow|keras)' constraints.txt >"$venv/constraints.txt"
    "$venv/bin/python" - studio exact notebook dev <<'END' >"$venv/requirements.txt"
import sys, tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
print(*project["dependencies"], *(each for name in sys.argv[1:] for each in extras[name]), sep="\n")
END
    "$venv/bin/python" -m pip install --quiet --no-compile -c "$venv/constraints.txt" \
        "torch==$version" transformers accelerate -r "$venv/requirements.txt"
fi
echo "$venv"
