#!/bin/sh
# Gathers what the tests on an NVIDIA device need beside that machine's own Python 3.12 (torch, triton, numpy, scipy, pytest):
# wheels in one directory, under 64 MiB in all, so that nothing has to be downloaded there.
#
#   tests/gpu/prepare_wheels.sh [DIRECTORY]
#
# PyCUDA has no wheels of its own: it is built here, by Python 3.12 and the CUDA toolkit whose nvcc is on PATH or in CUDA_HOME,
# without cuRAND and against an empty library in the driver's place. Takes about three minutes the first time.
# PYTHON: a Python 3.12 with pip; else one from PATH or pyenv.
#
#   tests/gpu/prepare_wheels.sh --list    prints the packages beside PyCUDA, as pip takes them
set -eu

cd "$(dirname "$0")/../.."

# name==version as the project's own lock file has it
locked() {
    for name in "$@"; do
        sed -n "s/^\($name==[^ ;]*\).*/\1/p" requirements.lock requirements-cuda.lock requirements-bench.lock | head -n 1 | grep . || echo "$name"
    done
}

packages=$(
    locked grpcio grpcio-status grpcio-health-checking grpcio-reflection protobuf googleapis-common-protos \
        lark platformdirs pydantic pydantic-core pydantic-settings python-dotenv annotated-types annotated-doc typing-inspection \
        typing-extensions rich markdown-it-py mdurl pygments typer shellingham \
        prometheus-client cryptography cffi pycparser \
        ml-dtypes nvidia-ml-py psutil tree-sitter tree-sitter-cuda \
        pytest pytest-asyncio pytest-timeout pytest-xdist execnet pluggy iniconfig packaging \
        pytools siphash24 cuda-bench \
        kernel-tuner python-constraint2 xmltodict pymoo moocore autograd cma alive-progress about-time graphemeu deprecated wrapt \
        jsonschema jsonschema-specifications referencing rpds-py attrs
)
if [ "${1:-}" = --list ]; then
    echo "$packages"
    exit
fi

directory=${1:-tests/gpu/wheels}
python=${PYTHON:-$(tests/tools/find_python.sh 3.12)}
mkdir -p "$directory"
directory=$(cd "$directory" && pwd)

platforms="--platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64"
platforms="$platforms --platform manylinux2014_x86_64 --platform manylinux1_x86_64 --platform any"
find "$directory" -name '*.whl' ! -name 'pycuda-*' -delete  # of two versions of one package pip installs none
# shellcheck disable=SC2086  # both are lists of words
"$python" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp $platforms -d "$directory" $packages

if ! ls "$directory"/pycuda-*-cp312-*.whl >/dev/null 2>&1; then
    nvcc=$(command -v "${CUDA_HOME:+$CUDA_HOME/bin/}nvcc" || echo /usr/local/cuda/bin/nvcc)
    toolkit=$("$nvcc" --dryrun -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p')  # nvcc on PATH may be a script that calls it
    build=$(mktemp -d)
    trap 'rm -rf "$build"' EXIT
    echo 'CUDA_ENABLE_CURAND = False' >"$build/.aksetup-defaults.py"
    mkdir "$build/stub"
    echo | gcc -shared -x c - -Wl,-soname,libcuda.so.1 -o "$build/stub/libcuda.so"
    "$python" -m venv "$build/venv"
    "$build/venv/bin/python" -m pip install -q setuptools wheel numpy
    # without --no-as-needed the linker leaves out the empty library, and the module never loads the driver
    HOME=$build PATH="$toolkit/bin:$PATH" LIBRARY_PATH="$build/stub" LDFLAGS=-Wl,--no-as-needed \
        "$build/venv/bin/python" -m pip wheel -q --no-build-isolation --no-deps --no-binary pycuda -w "$directory" \
        "$(locked pycuda)"
fi
"$python" - "$directory"/pycuda-*.whl <<'END' || { echo "the PyCUDA of $directory does not load the driver: delete it, and try again" >&2; exit 1; }
import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
driver = next(name for name in wheel.namelist() if "/_driver." in name)
sys.exit(b"libcuda.so.1" not in wheel.read(driver))
END

size_bytes=$(cat "$directory"/*.whl | wc -c)
echo "$(ls "$directory"/*.whl | wc -l) wheels, $((size_bytes / 1048576)) MiB, in $directory"
[ "$size_bytes" -lt 67108864 ] || { echo "more than the 64 MiB that can be carried" >&2; exit 1; }
