#!/usr/bin/env bash
# Creates the virtual environment, or says in one line what is missing.
# Usage: scripts/make-venv.sh DIRECTORY
set -euo pipefail

python=${PYTHON:-python3}
fail() {
    echo "$1" >&2
    exit 1
}

command -v "$python" >/dev/null ||
    fail "No $python here. Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version) is too old. Enplace needs 3.11 or newer: make PYTHON=/path/to/python3."
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python cannot make virtual environments. Run: sudo apt-get install python3-venv"
"$python" -m venv "$1"
