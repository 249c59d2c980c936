#!/usr/bin/env bash
# Measures models of PyTorch, and of TensorFlow if it is there, on the GPU of this machine and compares
# them with what Enplace predicts. Usage: scripts/gpu-check.sh FOLDER [MODEL...]. $PYTHON has torch and
# transformers; Enplace need not be installed there, but highspy, numba and numpy must be.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
for name in torch transformers numba highspy; do
    if ! "$python" -c "import $name" 2>/dev/null; then
        echo "gpu-check: $python has no $name; run: $python -m pip install torch transformers numba highspy" >&2
        exit 2
    fi
done
path=$PWD/build/gpu-check-path
mkdir -p "$path"
ln -sfn "$PWD/core/enplace" "$path/enplace"
ln -sfn "$PWD/resources" "$path/enplace_resources"
PYTHONPATH=$path${PYTHONPATH:+:$PYTHONPATH} exec "$python" -m benchmarks.gpu.check "$@"
