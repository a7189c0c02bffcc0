"""The programs nsys of this machine that tests run: unpacked by tests/tools/install_nsys.sh, or else where users have theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kernalyse.services.core.external_programs import find_nsys

UNPACKED: Final = sorted(Path("/opt/nsys").glob("*/usr/lib/x86_64-linux-gnu/nsight-systems/target-linux-x64/nsys"))
FOUND: Final = [str(path) for path in UNPACKED] or [path for path in (find_nsys(),) if path is not None]
MISSING: Final = "needs nsys: tests/tools/install_nsys.sh installs it on Debian"
