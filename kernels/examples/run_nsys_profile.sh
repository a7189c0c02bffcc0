#!/bin/sh
# Profiles a program with Nsight Systems and shows its kernels, layers and idle time.
#   ./run_nsys_profile.sh [PROGRAM or FILE.cu] [arguments of the program]
# Without a program: vector_add.cu beside this script. Options of `kernalyse profile` go into PROFILE_OPTIONS.
set -eu
target=${1:-$(dirname "$0")/vector_add.cu}
[ "$#" -gt 0 ] && shift
# shellcheck disable=SC2086 - several options
exec kernalyse profile --collector nsys ${PROFILE_OPTIONS:-} --target "$target" -- "$@"
