"""An `nsys` that runs the program and leaves an export that a test has written."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SCRIPT: Final = """#!/bin/sh
case "$1 $2" in
  "profile --help") echo "--cuda-graph-trace --capture-range-end"; exit 0 ;;
  "export --help") echo "sqlite"; exit 0 ;;
esac
if [ "$1" = profile ]; then
  shift
  while :; do
    case "$1" in --output=*) output=${1#--output=} ;; --*) ;; *) break ;; esac
    shift
  done
  "$@"
  status=$?
  echo report > "$output.nsys-rep"
  exit $status
fi
while [ "$1" != --output ]; do shift; done
cp "EXPORT" "$2"
"""


def write_recording_nsys(directory: Path, export: Path) -> Path:
    """The program. export: what it leaves as its SQLite export; read when it runs."""
    program = directory / "nsys"
    program.write_text(SCRIPT.replace("EXPORT", str(export)))
    program.chmod(0o755)
    return program
