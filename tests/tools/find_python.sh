#!/bin/sh
# Prints a Python of a version, with venv and pip: from PATH, or one that pyenv holds. A shim of pyenv on PATH answers only for
# versions that are switched on.
#
#   tests/tools/find_python.sh 3.12
set -eu

version=${1:?"find_python.sh: expected a version, e.g. 3.12"}
for python in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version".*/bin/python; do
    if "$python" -c 'import ensurepip, sys, venv; print(sys.executable)' 2>/dev/null; then
        exit 0
    fi
done
echo "find_python.sh: no Python $version on PATH or in pyenv; expected one with venv and pip: pyenv install $version" >&2
exit 1
