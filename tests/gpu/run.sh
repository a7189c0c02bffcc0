#!/bin/sh
# Runs every test that needs an NVIDIA device, without a network, and writes what was found.
#
#   tests/gpu/run.sh [WHEELS]
#
# WHEELS: the folder that prepare_wheels.sh filled; tests/gpu/wheels if it is there; else what Python has installed.
# OUT: where results.json, RESULTS.md, figures.jsonl and log.txt go; tests/gpu/out if not set.
# PYTHON: python3 if not set. COMMIT: what to write as the commit where there is no git.
# Each part has a time limit of its own, and all together TOTAL_S seconds. Status 1: a test failed or did not end.
set -u

TOTAL_S=460  # of the eight minutes that all may take, with room for installing and reporting
DEFAULT_LIMIT_S=60

root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 2
python=${PYTHON:-python3}
OUT=${OUT:-$root/tests/gpu/out}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
export OUT
rm -f "$OUT/figures.jsonl"
start=$(date +%s)

wheels=${1:-$root/tests/gpu/wheels}
site=$(mktemp -d) parts=$(mktemp -d)
trap 'rm -rf "$site" "$parts"' EXIT
if ls "$wheels"/*.whl >/dev/null 2>&1; then
    "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --disable-pip-version-check \
        --root-user-action ignore --target "$site" "$wheels"/*.whl || exit 2
fi
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml | head -n 1)
mkdir "$site/kernalyse-$version.dist-info"  # the checkout is not installed, and the service tells its version
printf 'Metadata-Version: 2.1\nName: kernalyse\nVersion: %s\n' "$version" >"$site/kernalyse-$version.dist-info/METADATA"
export PYTHONPATH="$site:$root:$root/proto/python${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1 KERNALYSE_TESTS_START="$start"
command -v nvcc >/dev/null 2>&1 || PATH="$PATH:/usr/local/cuda/bin"
export PATH

part() {  # NAME LIMIT_S PYTEST_ARGUMENTS...
    name=$1 limit=$2
    shift 2
    left=$((TOTAL_S - $(date +%s) + start))
    [ "$limit" -lt "$left" ] || limit=$left
    if [ "$limit" -le 5 ]; then
        echo "== $name: no time left" | tee "$parts/$name.log"
        return
    fi
    timeout -k 10 "$limit" "$python" -m pytest -q -p no:cacheprovider --durations=5 \
        --junitxml="$parts/$name.xml" "$@" >"$parts/$name.log" 2>&1
    code=$?
    case $code in
        0) touch "$parts/$name.good" ;;
        5) touch "$parts/$name.good" ;;  # no test of that name
        124 | 137) echo "== not at its end after $limit s" >>"$parts/$name.log" ;;
    esac
    echo "== $name"
    tail -n 25 "$parts/$name.log"
}

# What is right or wrong however long it takes, side by side: most of it is compiling.
conformance=tests/integration/test_backend_conformance.py
part conformance_pycuda 100 $conformance -m cuda -k pycuda &
part conformance_nvcc 100 $conformance -m cuda -k "nvcc and not catalogue" &
part conformance_nvcc_catalogue 100 $conformance -m cuda -k "nvcc and catalogue" &
part test_runs_pycuda 100 tests/gpu/test_runs.py -k "pycuda" &
part test_runs_nvcc 100 tests/gpu/test_runs.py -k "nvcc" &
part models_pycuda 100 tests/integration/test_gpt.py -m cuda -k pycuda &
wait

# What takes times, alone.
part test_backends 80 tests/gpu/test_backends.py
part test_medians 150 tests/gpu/test_medians.py
for file in tests/gpu/test_*.py; do
    name=$(basename "$file" .py)
    case $name in
        test_runs | test_backends | test_medians) ;;
        test_ceilings) part "$name" 90 "$file" ;;
        *) part "$name" "$DEFAULT_LIMIT_S" "$file" ;;
    esac
done

status=0
for log in "$parts"/*.log; do
    [ -e "${log%.log}.good" ] || status=1
done
tail -n +1 "$parts"/*.log >"$OUT/log.txt"
"$python" -m tests.gpu.report "$parts" "$OUT" || status=1
echo "== $(($(date +%s) - start)) s in all, status $status, results in $OUT"
exit $status
