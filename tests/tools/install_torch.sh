#!/usr/bin/env bash
# Installs PyTorch's build for CPUs into .venv-torch, for the tests of the collector kineto: 190 MB to fetch, 900 MB on disk.
#
# Only the build named here is taken, or none: where an index lacks it, the one with CUDA would be gigabytes. Prints its Python.
set -euo pipefail
cd "$(dirname "$0")/../.."

version=2.13.0+cpu
directory=.venv-torch

if [[ ! -e $directory/.installed ]]; then
    {
        rm -rf "$directory"
        "${PYTHON:-python3}" -m venv "$directory"
        "$directory/bin/python" -m pip install --quiet --disable-pip-version-check --timeout 30 --only-binary :all: "torch==$version"
        touch "$directory/.installed"
    } >&2
fi
echo "$PWD/$directory/bin/python"
