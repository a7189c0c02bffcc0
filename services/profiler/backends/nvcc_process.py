"""Calls of nvcc, and what a compilation has read and is known by."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from services.core.errors import CompileError
from services.profiler.backends.base import Build
from services.profiler.backends.code_cache import cache_key
from services.profiler.backends.nvcc_options import build_options, header_folders
from services.profiler.backends.ptxas_report import split_report

COMPILE_LIMIT_S: Final = 300.0  # heavy templates take a minute; a compiler that hangs must not hold the device
REPORT: Final = ("-Xptxas", "-v")
ENVIRONMENT: Final = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN")  # nvcc reads them; they change what it makes
FILES_OF_OPTIONS: Final = ("-optf", "--options-file")  # options nobody sees here, so what they make is not kept


def run_nvcc(nvcc: str, arguments: Sequence[str], folder: Path, subject: str) -> str:
    """Return what nvcc prints when all goes well. Raises CompileError with its own lines; they name the .cu file."""
    try:
        done = subprocess.run(
            [nvcc, *arguments], cwd=folder, capture_output=True, text=True, timeout=COMPILE_LIMIT_S, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired as error:
        raise CompileError(subject, found=f"no end of nvcc within {COMPILE_LIMIT_S:.0f} s", remedy="Simplify it.") from error
    output = "\n".join(part for part in (done.stdout.rstrip(), done.stderr.rstrip()) if part)
    if done.returncode != 0:
        raise CompileError(
            subject,
            found=f"nvcc says:\n{split_report(output)[1]}\n",
            remedy="Correct the source; the lines are those of the .cu file.",
        )
    return output


def build_subject(build: Build, architecture: str) -> str:
    """Return a build as errors name it: with its configuration, as far as that is compiled in."""
    macros = "".join(f" {macro.name}={macro.value}" for macro in build.macros)
    return f"kernel {build.function_name}{macros} of {build.source.file_name} for {architecture}"


def reads_hidden_files(build: Build) -> bool:
    """Return whether an option makes nvcc read files that its list of headers does not name."""
    return any(option.split("=", maxsplit=1)[0] in FILES_OF_OPTIONS for option in build.options)


def build_key(build: Build, architecture: str, *parts: str) -> str:
    """Return the key of everything but the headers. Their folders have other paths in every run, so the number of them stands for them.

    Args:
        parts: what else goes into the compilation: the compiler, and the text around the source.
    """
    folders = header_folders(build)
    options = [option for option in build_options(build, architecture) if option not in {f"-I{folder}" for folder in folders}]
    environment = [os.environ.get(name, "") for name in ENVIRONMENT]
    return cache_key(*parts, build.source.file_name, build.source.text, *environment, str(len(folders)), *options)


def read_headers(listed: Path, folder: Path) -> list[Path]:
    """Return files of a make rule as nvcc -MD writes it, without those in the folder that it ran in and names from #line directives."""
    names = re.findall(r"(?:\\ |[^\s\\])+", listed.read_text(encoding="utf-8").partition(" : ")[2])
    paths = [Path(os.path.normpath(folder / name.replace("\\ ", " "))) for name in names]
    return [path for path in dict.fromkeys(paths) if path.parent != folder and path.is_file()]
