#!/bin/sh
# Starts profiler, analyzer and dashboard, and prints the URL to open; Ctrl-C stops everything. The same as make run.
cd "$(dirname "$0")" && exec make run ARGS="$*"
