"""Stands in for ncu where there is no device that it could count on: runs the command, then writes a report about it.

It takes the options that the product gives, tells launches from the command's own record, and prints page raw as ncu does.
The variable STAND_IN_NCU says what it does wrong.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

FLAGS = ("--csv", "--print-fp")
COLUMNS = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size", "Device", "CC")
MISSING_METRIC = "sm__ops_path_tensor_src_fp64.sum"
DURATION_NS = 5000
REFUSALS = {
    "permission": "ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target device 0.",
    "dcgm": "Profiling failed because a driver resource was unavailable. Ensure that no other tool (like DCGM) is concurrently "
    "collecting profiling data.",
    "driver": "Cuda driver is not compatible with Nsight Compute.",
    "chip": "Profiling is not supported on device 0. To find out supported GPUs refer --list-chips option.",
    "option": "unrecognised option '--print-fp'. Use --help for further details.",
}


def main() -> int:
    options, target = read_command_line(sys.argv[1:])
    behaviour = os.environ.get("STAND_IN_NCU", "count")
    log = Path(options["--log-file"])
    if calls_file := os.environ.get("STAND_IN_NCU_CALLS"):
        with Path(calls_file).open("a") as calls:
            calls.write(json.dumps({**options, "under_profiler": os.environ.get("KERNALYSE_UNDER_PROFILER")}) + "\n")
    metrics = options["--metrics"].split(",")
    if behaviour in REFUSALS:
        log.write_text(f"==PROF== Connected to process 1 (python)\n==ERROR== {REFUSALS[behaviour]}\n==PROF== Disconnected from process 1\n")
        return 1
    if behaviour == "unknown_metric" and MISSING_METRIC in metrics:
        base = MISSING_METRIC.removesuffix(".sum")
        log.write_text(f"==PROF== Connected to process 1 (python)\n==ERROR== Failed to find metric regex:^{base}(\\.|$)\n")
        return 1
    if behaviour == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path(os.environ["STAND_IN_NCU_ID"]).write_text(str(os.getpid()))
        time.sleep(600)
    status = subprocess.run(target, check=False).returncode
    if behaviour == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    record = Path(target[target.index("--record") + 1])
    notes = [json.loads(line) for line in record.read_text().splitlines()]
    launched = [note["label"] for note in notes if note["step"] == "launched"]
    if behaviour == "short":
        launched = launched[:-1]
    lines = [f"==PROF== Connected to process {os.getpid()} (python)", row((*COLUMNS, *metrics))]
    lines.append(row(("",) * len(COLUMNS) + tuple(map(unit_of, metrics))))
    lines += [launch_row(index, label, metrics, behaviour) for index, label in enumerate(launched)]
    lines.append(f"==PROF== Disconnected from process {os.getpid()}")
    text = "\n".join(lines) + "\n"
    if behaviour == "half":
        log.write_text(text[: text.rindex("\n==PROF==") - 40])
        return 9
    log.write_text(text)
    return status


def read_command_line(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    options: dict[str, str] = {}
    position = 0
    while arguments[position].startswith("--"):
        name = arguments[position]
        options[name] = "" if name in FLAGS else arguments[position + 1]
        position += 1 if name in FLAGS else 2
    return options, arguments[position:]


def unit_of(metric: str) -> str:
    if "pct" in metric:
        return "%"
    return {"gpu__time_duration.sum": "ns", "dram__bytes.sum": "byte", "sm__cycles_elapsed.avg.per_second": "cycle/nsecond"}.get(metric, "")


def launch_row(index: int, label: str, metrics: list[str], behaviour: str) -> str:
    """A launch of the stated size as if one FMA were done for each element, three moved."""
    name, *parameters = label.split(" ")
    size = int(dict(parameter.split("=") for parameter in parameters if "=" in parameter)["N"])
    known = {
        "gpu__time_duration.sum": f"{DURATION_NS:,}.000000",
        "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": f"{size:,}.000000",
        "dram__bytes.sum": f"{12 * size:,}.000000",
        "lts__lts2xbar_cycles_active.sum": f"{size:,}.000000",
        "sm__cycles_elapsed.avg.per_second": "1.980000",
        "sm__warps_active.avg.pct_of_peak_sustained_active": "75.500000",
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": "12.250000",
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "88.000000",
        "l1tex__t_sector_hit_rate.pct": "n/a",
    }
    shown = f"{'other' if behaviour == 'rename' and index == 0 else name}(int, float, const float *, float *)"
    launch = (str(index), str(os.getpid()), "python", "127.0.0.1", shown, "1", "7", "(256, 1, 1)", f"({size // 256}, 1, 1)", "0", "9.0")
    return row((*launch, *(known.get(metric, "0.000000") for metric in metrics)))


def row(cells: tuple[str, ...]) -> str:
    return ",".join(f'"{cell}"' for cell in cells)


sys.exit(main())
