"""Keep what the present version writes, as test data for later ones: `python -m tests.record_version`.

Writes tests/data/VERSION: a store with a sweep and an imported trace, the journal of the node that measured the sweep, the client
as a wheel of its own, the contract, and what `show` printed of both runs. tests/integration/test_compatibility.py reads them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from tests.private_directory import private_directory
from tests.unit.analyzer.readers.test_kineto import call, kernel, module

ROOT: Final = Path(__file__).parents[1]
SHOWN: Final = {"sweep": ("configurations", "measurements", "roofline"), "trace": ("kernels", "layers", "breakdown")}


def kernalyse(*arguments: str | Path) -> str:
    command = [sys.executable, "-P", "-m", "kernalyse.services.cli.main", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def shown(run_id: str, tables: tuple[str, ...]) -> Any:
    return json.loads(kernalyse("show", run_id, *tables, "--format", "json"))


def pack(directory: Path, archive: Path, *left_out: str) -> None:
    """Write the files below a directory to an archive, without times and owners."""

    def entry(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if Path(member.name).name in left_out:
            return None
        member.mtime = member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(archive, "w:xz") as packed:
        packed.add(directory, arcname=".", filter=entry)


def client_wheel(target: Path) -> None:
    """Write the wheel of this checkout without its services."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", directory]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        (wheel,) = Path(directory).glob("*.whl")
        with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(target / wheel.name, "w", zipfile.ZIP_DEFLATED) as client:
            for name in whole.namelist():
                if not name.startswith("kernalyse/services/"):
                    client.writestr(zipfile.ZipInfo(name), whole.read(name), zipfile.ZIP_DEFLATED)


def main() -> int:
    target = ROOT / "tests" / "data" / version("kernalyse")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with private_directory() as directory:
        trace = directory / "trace.json"
        events = [module("net", 0, 100), call(10, 1), call(20, 2), kernel("gemm", 200, 20, 1), kernel("add", 230, 40, 2)]
        trace.write_text(json.dumps({"traceEvents": events}))
        kernalyse("bench", "saxpy", "-p", "N=2**10,2**12", "--max-time", "0.2", "--title", "a sweep")
        kernalyse("import", trace)
        sweep, imported = sorted(json.loads(kernalyse("runs", "--json")), key=lambda run: str(run["run_id"]).startswith("imported"))
        expected = {
            name: {"run_id": run["run_id"], "tables": shown(run["run_id"], SHOWN[name])}
            for name, run in (("sweep", sweep), ("trace", imported))
        }
        (target / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
        data = directory / "data" / "kernalyse"
        pack(data / "store", target / "store.tar.xz", "store.lock", "node_tokens.json")
        pack(data / "profiler", target / "journal.tar.xz", "ceilings.json")
    client_wheel(target)
    subprocess.run([ROOT / ".venv" / "bin" / "buf", "build", "proto", "--output", target / "contract.binpb"], cwd=ROOT, check=True)
    for path in sorted(target.iterdir()):
        sys.stdout.write(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes\n")
    name = re.escape(os.uname().nodename)
    if any(re.search(name.encode(), path.read_bytes()) for path in target.rglob("*.json")):
        sys.stdout.write(f"The name of this machine, {name}, stands in expected.json.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
