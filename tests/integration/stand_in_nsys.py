"""Stands in for nsys where a test needs one that goes wrong: STAND_IN_NSYS, a variable of the request, says how.

It takes the options that the product gives, runs the program with the variables that it is told to give it, and leaves a
report and an export of the product's own making.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PROFILE_HELP = "-t, --trace= cuda, nvtx, osrt, cublas, cudnn --cuda-graph-trace= --capture-range-end="
EXPORT_HELP = {"old": "sqlite, hdf, text"}


def main() -> int:
    behaviour = os.environ.get("STAND_IN_NSYS", "")
    command, *arguments = sys.argv[1:]
    if arguments == ["--help"]:
        if behaviour == "broken":
            sys.stderr.write("libnvlog.so: cannot open shared object file\n")
            return 127
        sys.stdout.write(PROFILE_HELP if command == "profile" else EXPORT_HELP.get(behaviour, "sqlite, parquetdir"))
        return 0
    return profile(arguments, behaviour) if command == "profile" else export(arguments, behaviour)


def profile(arguments: list[str], behaviour: str) -> int:
    options = {name: value for name, _, value in (argument.partition("=") for argument in arguments if argument.startswith("--"))}
    target = arguments[len(options) :]
    Path(os.environ["STAND_IN_DIRECTORY"], "profile").write_text("\n".join(arguments))
    variables = dict(variable.split("=", 1) for variable in options["--env-var"].split(","))
    status = subprocess.run(target, check=False, env={**os.environ, **variables}).returncode
    if behaviour in ("daemon", "hang"):
        leave_agent(Path(os.environ["STAND_IN_DIRECTORY"], "agent"))
    if behaviour == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        say("importing for ever")
        time.sleep(600)
    temporary = Path(os.environ["TMPDIR"])
    if behaviour == "qdstrm":
        (temporary / "nsys-report-1.qdstrm").write_bytes(b"raw events")
        say("Importer error status: importation failed.")
        return 1
    report = Path(options["--output"] + ".nsys-rep")
    if behaviour == "full":
        return fill(report)
    if behaviour != "nothing":
        report.write_bytes(b"report")
    return 128 - status if status < 0 else status


def export(arguments: list[str], behaviour: str) -> int:
    options = dict(zip(arguments[:-1:2], arguments[1:-1:2], strict=True))
    if behaviour == "cut":
        say("Error: the report is truncated.")
        return 1
    target = Path(options["--output"])
    if options["--type"] == "sqlite":
        target.write_bytes(b"SQLite format 3")
        return 0
    target.mkdir()
    for name in ("NVTX_EVENTS", "StringIds"):
        (target / f"{name}.parquet").write_bytes(b"PAR1")
    return 0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def leave_agent(id_file: Path) -> None:
    """As nsys's own: forked twice, in a session of its own, deaf to TERM, and busy."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.closerange(0, 64)
            id_file.write_text(str(os.getpid()))
            while True:
                pass
        os._exit(0)
    os.wait()
    while not (id_file.exists() and id_file.read_text()):
        time.sleep(0.01)


def fill(path: Path) -> int:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(2**20))
        except OSError as error:
            say(f"Error: {error.strerror}")
    path.unlink()
    with path.with_name("partial").open("wb", buffering=0) as file:  # what nsys has written by then stays
        try:
            while True:
                file.write(bytes(2**20))
        except OSError:
            return 1


if __name__ == "__main__":
    sys.exit(main())
