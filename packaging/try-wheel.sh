#!/usr/bin/env bash
# Installs the wheel with the studio in a new virtual environment of each Python here, and uses it.
# No compiler may be needed. Usage: packaging/try-wheel.sh WHEEL [PYTHON]...
set -euo pipefail

wheel=$1
shift
(($#)) || set -- python3.11 python3.12 python3.13 python3.14
for python in "$@"; do
    "$python" --version 2>/dev/null || { echo "Not tried: there is no $python here" && continue; }
    venv=$(mktemp -d)
    "$python" -m venv "$venv"
    "$venv/bin/pip" install --quiet --only-binary :all: -c constraints.txt "$wheel[studio,exact]"
    packaging/check-installed.sh "$venv/bin" resources/samples/vgg-19.enplace
    rm -rf "$venv"
    echo "The wheel works with $python"
done
