"""The machine code of a cubin as text, where the toolkit's disassembler is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

DISASSEMBLERS: Final = (("cuobjdump", "-sass"), ("nvdisasm", "-c"))
TIME_LIMIT_S: Final = 60.0  # megabytes of machine code take seconds; a listing is not worth a longer wait


def disassemble(cubin_file: Path, toolkit_folder: Path) -> bytes | None:
    """Return SASS by the first disassembler there is, of the toolkit or of the path. None: there is none, or it failed."""
    for program, option in DISASSEMBLERS:
        found = find_disassembler(program, toolkit_folder)
        if found is None:
            continue
        try:
            done = subprocess.run([found, option, str(cubin_file)], capture_output=True, timeout=TIME_LIMIT_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0 and done.stdout:
            return done.stdout
    return None


def find_disassembler(program: str, toolkit_folder: Path) -> str | None:
    """Find a disassembler. toolkit_folder: where nvcc is."""
    beside = toolkit_folder / program
    return str(beside) if beside.is_file() else shutil.which(program)
