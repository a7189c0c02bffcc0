#!/bin/sh
# Profiles the kernels of a program with Nsight Compute: their counters, occupancy and place under the roofline.
#   ./run_ncu_profile.sh [PROGRAM or FILE.cu] [arguments of the program]
# Without a program: vector_add.cu beside this script. Options of `kernalyse profile` go into PROFILE_OPTIONS, e.g.
#   PROFILE_OPTIONS="--kernel-filter gemm --launch-count 5" ./run_ncu_profile.sh ./my_program
set -eu
target=${1:-$(dirname "$0")/vector_add.cu}
[ "$#" -gt 0 ] && shift
# shellcheck disable=SC2086 - several options
exec kernalyse profile --collector ncu ${PROFILE_OPTIONS:-} --target "$target" -- "$@"
