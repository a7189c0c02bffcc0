#!/usr/bin/env bash
# Installs PyTorch's build for CPUs into .venv-torch, for the tests of the collector kineto: 190 MB to fetch, 900 MB on disk.
#
# Only the build named here is taken, or none: where an index lacks it, the one with CUDA would be gigabytes. Prints its Python.
set -euo pipefail
cd "$(dirname "$0")/../.."

version=2.13.0+cpu
folder=.venv-torch

if [[ ! -e $folder/.installed ]]; then
    {
        rm -rf "$folder"
        "${PYTHON:-python3}" -m venv "$folder"
        "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --timeout 30 --only-binary :all: "torch==$version"
        touch "$folder/.installed"
    } >&2
fi
echo "$PWD/$folder/bin/python"
