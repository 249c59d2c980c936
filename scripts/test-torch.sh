#!/usr/bin/env bash
# Runs the tests of PyTorch with a version of it, in an environment of its own.
# Usage: scripts/test-torch.sh [VERSION], such as 2.13.0 or 2.13.0+cpu; further arguments go to pytest.
# An ordinary index has builds for CUDA, of gigabytes; pip finds one for CPUs where PIP_FIND_LINKS or
# PIP_EXTRA_INDEX_URL lead it. $PYTHON runs it.
set -euo pipefail

version=${1:-2.13.0}
shift || true
venv=build/torch-$version-python$("${PYTHON:-python3}" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
python=$venv/bin/python
if [ ! -e "$venv/.installed" ]; then
    [ -e "$python" ] || scripts/make-venv.sh "$venv"
    # PyTorch and transformers ask for their own versions of what they share with Enplace.
    grep -viE '^(absl|numpy|networkx|protobuf|pyyaml|tensorflow|keras)' constraints.txt >"$venv/constraints.txt"
    "$python" -m pip install --quiet -c "$venv/constraints.txt" \
        "torch==$version" transformers accelerate -e '.[studio,exact,notebook,dev]'
    touch "$venv/.installed"
fi
"$python" -c 'import torch, transformers; print("PyTorch", torch.__version__, "transformers", transformers.__version__)'
"$venv/bin/enplace" compile
# Two workers with small models: more threads would only wait for each other.
OMP_NUM_THREADS=1 QT_QPA_PLATFORM=offscreen "$python" -m pytest -q -p no:cacheprovider -n 2 --dist worksteal tests/core/frameworks/torch "$@"
