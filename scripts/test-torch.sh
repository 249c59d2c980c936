#!/usr/bin/env bash
# Runs the tests of PyTorch with a version of it, in an environment of its own.
# Usage: scripts/test-torch.sh [VERSION], as for scripts/torch-venv.sh; further arguments go to pytest.
set -euo pipefail

version=${1:-2.13.0}
shift || true
venv=$(scripts/torch-venv.sh "$version")
python=$venv/bin/python
if [ ! -e "$venv/.installed" ]; then
    "$python" -m pip install --quiet --no-deps -e .
    touch "$venv/.installed"
fi
"$python" -c 'import torch, transformers; print("PyTorch", torch.__version__, "transformers", transformers.__version__)'
"$venv/bin/enplace" compile
# Two workers with small models: more threads would only wait for each other.
OMP_NUM_THREADS=1 QT_QPA_PLATFORM=offscreen "$python" -m pytest -q -p no:cacheprovider -n 2 --dist worksteal tests/core/frameworks/torch "$@"
