#!/usr/bin/env bash
# Runs the tests of TensorFlow, Keras 3 and Keras 2 with other versions, in an environment of their own.
# Usage: scripts/test-tensorflow.sh VERSION, such as 2.18; further arguments go to pytest. $PYTHON runs it.
set -euo pipefail

version=${1:?Name a version: make test-tensorflow VERSION=2.18}
shift
case $version in
2.16 | 2.17) older=("ortools==9.9.*" "protobuf==4.25.*") ;;
2.18 | 2.19 | 2.20) older=("ortools==9.12.*" "protobuf==5.29.*") ;;
*) older=() ;;
esac

venv=build/tensorflow-$version-python$("${PYTHON:-python3}" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
python=$venv/bin/python
if [ ! -e "$venv/.installed" ]; then
    [ -e "$python" ] || scripts/make-venv.sh "$venv"
    # TensorFlow asks for its own versions of what it shares with Enplace.
    own='absl|flatbuffers|gast|grpcio|h5py|immutabledict|keras|ml_dtypes|numpy|ortools|pandas|protobuf|tensorflow|wrapt'
    grep -viE "^($own)" constraints.txt >"$venv/constraints.txt"
    "$python" -m pip install --quiet -c "$venv/constraints.txt" \
        "tensorflow==$version.*" "tf_keras==$version.*" ${older[@]+"${older[@]}"} -e '.[studio,exact,notebook,dev]'
    touch "$venv/.installed"
fi
"$python" -c 'import keras, tensorflow; print("TensorFlow", tensorflow.__version__, "Keras", keras.__version__)' 2>/dev/null
"$venv/bin/enplace" compile
QT_QPA_PLATFORM=offscreen "$python" -m pytest -q -n 2 -p no:cacheprovider \
    tests/core/frameworks --ignore tests/core/frameworks/onnx tests/core/solvers/test_cp.py "$@"
