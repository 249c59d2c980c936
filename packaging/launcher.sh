#!/bin/sh
# Runs Enplace with the Python beside it, wherever this folder is.
unset PYTHONHOME PYTHONPATH
export PYTHONNOUSERSITE=1 # what else was installed for a Python of this version
folder=$(dirname "$(dirname "$(readlink -f "$0")")")
exec "$folder/python/bin/python3" -P -m MODULE "$@"
