"""This node, as it describes itself."""

from __future__ import annotations

import asyncio
import platform
import socket
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final

import psutil

from services.core.errors import InternalError
from services.core.model import Device, Node, NodePolicy
from services.profiler.backends.probe import read_probe

PROBE_TIME_LIMIT_S: Final = 60.0
"""A driver that has hung must not keep the service from starting; a healthy one answers in seconds."""


@dataclass(frozen=True, slots=True)
class ProbedDevices:
    """Devices that were found. notices: what is missing and its remedy, one sentence each."""

    devices: tuple[Device, ...]
    notices: tuple[str, ...]


async def probe_devices(command: Sequence[str] | None = None) -> ProbedDevices:
    """Ask a process of its own, so that a runtime that crashes takes nothing down and none stays in the service's memory."""
    process = await asyncio.create_subprocess_exec(
        *(command or (sys.executable, "-P", "-m", "services.profiler.backends.probe")),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), PROBE_TIME_LIMIT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        return ProbedDevices((), (f"The search for devices did not end within {PROBE_TIME_LIMIT_S:.0f} s; look at the drivers.",))
    if process.returncode != 0:
        last_line = (errors.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        return ProbedDevices((), (f"The search for devices ended with code {process.returncode}: {last_line}",))
    try:
        return ProbedDevices(*read_probe(output.decode(errors="replace")))
    except InternalError as error:
        return ProbedDevices((), (error.message,))


def describe_node(data_folder: Path, journal_id: str, probed: ProbedDevices, policy: NodePolicy) -> Node:
    """Return the node without its runs and the state of its journal."""
    return Node(
        node_id=_read_or_make_node_id(data_folder / "node_id"),
        hostname=socket.gethostname(),
        version=metadata.version("kernalyse"),
        journal_id=journal_id,
        start_time=datetime.now(UTC),
        devices=probed.devices,
        operating_system=f"{platform.system()} {platform.release()}",
        cpu_model=_cpu_model(),
        cpu_count=psutil.cpu_count(),
        memory_bytes=psutil.virtual_memory().total,
        python_version=platform.python_version(),
        policy=policy,
        notices=probed.notices,
    )


def with_state(node: Node, running_run_ids: Sequence[str], queued_run_ids: Sequence[str], storage_problem: str) -> Node:
    """Return the node with its runs and the state of its journal."""
    return replace(node, running_run_ids=tuple(running_run_ids), queued_run_ids=tuple(queued_run_ids), storage_problem=storage_problem)


def _read_or_make_node_id(path: Path) -> str:
    if path.exists() and (node_id := path.read_text().strip()):
        return node_id
    node_id = uuid.uuid4().hex
    temporary = path.with_name(".node_id")
    temporary.write_text(node_id)
    temporary.replace(path)
    return node_id


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
