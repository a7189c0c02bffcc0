#!/bin/sh
# Runs the tests that need an NVIDIA device, without a network, and writes what was found.
#
#   tests/gpu/run.sh [correctness] [timing] [tools]
#
# Without a name: all three, as far as the time goes. Each of them alone stays within it.
# PARTS: names of the parts to run, such as "overhead models", for a call with little time; all if not set.
# WHEELS: the directory that prepare_wheels.sh filled; tests/gpu/wheels if not set. Without wheels: what Python has installed.
# OUT: where records.jsonl, results.json, RESULTS.md and log.txt go; tests/gpu/out if not set.
# TOTAL_S: seconds in all, 460 if not set. PYTHON: python3 if not set. COMMIT: what to write as the commit where there is no git.
# Status 1: a test failed, or did not end or begin in time. Status 2: a wrong name, or wheels that cannot be installed.
set -u

TOTAL_S=${TOTAL_S:-460}  # of the eight minutes that a call may take, with room for installing and reporting

for group in "$@"; do
    case $group in
        correctness | timing | tools) ;;
        *)
            echo "tests/gpu/run.sh: found $group; expected correctness, timing or tools" >&2
            exit 2
            ;;
    esac
done
[ $# -gt 0 ] || set -- correctness timing tools
known=$(sed -n 's/^ *part \([a-z_]*\) .*/\1/p' "$0" | tr '\n' ' ')
for name in ${PARTS:-}; do
    case " $known" in
        *" $name "*) ;;
        *)
            echo "tests/gpu/run.sh: found part $name in PARTS; expected one of $known" >&2
            exit 2
            ;;
    esac
done

root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 2
python=${PYTHON:-python3}
OUT=${OUT:-$root/tests/gpu/out}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
export OUT
: >"$OUT/records.jsonl"
: >"$OUT/log.txt"
start=$(date +%s)

wheels=${WHEELS:-$root/tests/gpu/wheels}
site=$(mktemp -d) parts=$(mktemp -d)
trap 'rm -rf "$site" "$parts"' EXIT
if ls "$wheels"/*.whl >/dev/null 2>&1; then
    "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --disable-pip-version-check \
        --root-user-action ignore --target "$site" "$wheels"/*.whl || exit 2
fi
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml | head -n 1)
mkdir "$site/kernalyse-$version.dist-info"  # the checkout is not installed, and the service tells its version
printf 'Metadata-Version: 2.1\nName: kernalyse\nVersion: %s\n' "$version" >"$site/kernalyse-$version.dist-info/METADATA"
# A copy of the checkout may have lost its links.
[ -e "$root/proto/python/kernalyse/services" ] || ln -sfn ../../../services "$root/proto/python/kernalyse/services"
export PYTHONPATH="$site:$root:$root/proto/python${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1  # the machine has plugins of its own, and here every warning is an error
command -v nvcc >/dev/null 2>&1 || PATH="$PATH:/usr/local/cuda/bin"
export PATH
"$python" -m tests.gpu.report begin "$OUT"

# A part ends its session after its last test within the limit; what hangs in the driver is killed a little later. Either way
# the tests before have their outcomes in records.jsonl.
part() {  # NAME LIMIT_S PYTEST_ARGUMENTS...
    name=$1 limit=$2
    shift 2
    case " ${PARTS:-$name} " in
        *" $name "*) ;;
        *) return ;;
    esac
    left=$((TOTAL_S - $(date +%s) + start))
    [ "$limit" -lt "$left" ] || limit=$left
    [ "$limit" -gt 20 ] || limit=0
    printf '{"record": "part", "part": "%s", "limit_s": %d}\n' "$name" "$limit" >>"$OUT/records.jsonl"
    if [ "$limit" -eq 0 ]; then
        echo "== $name: no time left"
        return
    fi
    KERNALYSE_TESTS_PART="$name" timeout -k 5 "$((limit - 5))" "$python" -m pytest -q -p asyncio -p timeout -p xdist -p tests.gpu.records \
        -p no:cacheprovider --durations=5 --timeout=100 --session-timeout="$((limit * 9 / 10 - 5))" "$@" >"$parts/$name.log" 2>&1
    code=$?
    case $code in
        0 | 5) touch "$parts/$name.good" ;;  # 5: no test of that name
        124 | 137) echo "== killed after $limit s" >>"$parts/$name.log" ;;
    esac
    sed "1i == $name" "$parts/$name.log" >>"$OUT/log.txt"
    echo "== $name: at most $limit s"
    tail -n 25 "$parts/$name.log"
}

# What is right or wrong however long it takes, side by side: most of it is compiling.
correctness() {
    conformance=tests/integration/test_backend_conformance.py
    part conformance_pycuda 240 $conformance -m cuda -k pycuda &
    part conformance_nvcc 240 $conformance -m cuda -k "nvcc and not catalogue" &
    part conformance_nvcc_catalogue 240 $conformance -m cuda -k "nvcc and catalogue" &
    part runs_pycuda 240 tests/gpu/test_runs.py -k pycuda &
    part runs_nvcc 240 tests/gpu/test_runs.py -k nvcc &
    part nvcc_backend 240 tests/gpu/test_nvcc_backend.py -k "not medians" &
    part models_pycuda 240 tests/integration/test_gpt.py -m cuda -k pycuda &
    part speed_of_light 240 tests/gpu/test_speed_of_light.py &
    part traces 240 tests/gpu/test_whole_way.py -k "traced or killed" &
    wait
}

# What takes times, alone.
timing() {
    part backends 60 tests/gpu/test_backends.py
    part medians 190 tests/gpu/test_medians.py
    part device_check 40 tests/gpu/test_device_check.py
    part overhead 60 tests/gpu/test_overhead.py
    part nvcc_medians 90 tests/gpu/test_nvcc_backend.py -k medians
}

# What stands beside other programs: libraries, ncu, nsys.
tools() {
    part ceilings 60 tests/gpu/test_ceilings.py
    part counters 70 tests/gpu/test_counters.py
    part whole 220 tests/gpu/test_whole_way.py -k "not traced and not killed"
    part callables 30 tests/gpu/test_callables.py
    part models 60 tests/gpu/test_models.py
}

for group in "$@"; do "$group"; done

status=0
for log in "$parts"/*.log; do
    [ -e "${log%.log}.good" ] || status=1
done
"$python" -m tests.gpu.report end "$OUT" || status=1
echo "== $(($(date +%s) - start)) s in all, status $status, results in $OUT"
exit $status
