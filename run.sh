#!/bin/sh
# Starts profiler, analyzer and dashboard, and prints the URL to open; Ctrl-C stops everything. make run with the dashboard at
# http://localhost:5000; ./run.sh --port 7003 takes another port.
cd "$(dirname "$0")" && exec make run ARGS="--port 5000 $*"
