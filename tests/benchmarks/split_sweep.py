"""One sweep shared out to four stand-in devices whose measuring time is set: wall time beside measurements made, divided by four.

python -m tests.benchmarks.split_sweep [--seconds 1.0]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.integration.profiler_node import running_node
from tests.integration.stand_in_timed_worker import timed_worker
from tests.private_directory import private_directory
from tests.service_processes import ServiceProcesses

NODE_COUNT: Final = 4
CONFIGURATION_COUNT: Final = 120
GOAL_RATIO: Final = 1.1
COMMAND: Final = (sys.executable, "-P", "-m", "kernalyse.services.cli.main")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="that a device takes for a configuration")
    seconds = parser.parse_args().seconds
    with private_directory() as directory, ExitStack() as stack:
        services = ServiceProcesses(directory)
        stack.callback(services.stop_all)
        analyzer = services.start("analyzer")
        (directory / "token").write_text(analyzer.token)
        server = ("--server", analyzer.address, "--token-file", str(directory / "token"))
        for number in range(NODE_COUNT):
            place = directory / f"gpu{number}"
            place.mkdir()
            node = stack.enter_context(running_node(place, worker=timed_worker(seconds), node_name=place.name))
            command("nodes", "add", node.endpoint.address, "--node-token-file", str(place / "token"), *server)
        path = directory / "split.json"
        begin = time.monotonic()
        sweep = ("bench", "saxpy", "-p", f"N=1024..{1024 * CONFIGURATION_COUNT}:1024", "--on", "all", "--mode", "split")
        command(*sweep, "--json", str(path), *server)
        report(path, time.monotonic() - begin, seconds)


def command(*words: str) -> None:
    subprocess.run([*COMMAND, *words], check=True, capture_output=True)


def report(path: Path, took_s: float, seconds: float) -> None:
    measured_count = len(json.loads(path.read_text())["measurements"])
    ideal_s = measured_count / NODE_COUNT * seconds
    print(f"{measured_count} measurements of {seconds:g} s on {NODE_COUNT} stand-in devices: {took_s:.1f} s, ideal {ideal_s:.1f} s")
    print(f"ratio {took_s / ideal_s:.3f} (goal {GOAL_RATIO})")


if __name__ == "__main__":
    main()
