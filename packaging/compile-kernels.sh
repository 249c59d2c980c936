#!/usr/bin/env bash
# Compiles the kernels that packages bring, into build/kernels, for each Python given, and for this
# machine's platform. Usage: packaging/compile-kernels.sh PYTHON...
# A Python without the libraries that Enplace needs gets them in an environment of its own.
set -euo pipefail

folder=build/kernels
rm -rf "$folder"
for python in "$@"; do
    "$python" --version 2>/dev/null || { echo "Not compiled for: there is no $python here" && continue; }
    venv=
    if ! "$python" -c 'import enplace' 2>/dev/null; then
        venv=$(mktemp -d)
        "$python" -m venv "$venv"
        "$venv/bin/pip" install --quiet --only-binary :all: -c constraints.txt ".[exact]"
        python=$venv/bin/python
    fi
    # The sources of this folder, whatever is installed: the code is found by their digest.
    PYTHONPATH=core "$python" packaging/compile_kernels.py "$folder"
    rm -rf "$venv"
done
