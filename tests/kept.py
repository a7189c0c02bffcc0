"""What tests of all checkouts keep for the next run: what compilers have made of their sources, what was measured of this machine.

KERNALYSE_TESTS_DIRECTORY names another than the one in the user's cache. It may be deleted at any time; then it takes minutes more.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final

from platformdirs import user_cache_path

VARIABLE: Final = "KERNALYSE_TESTS_DIRECTORY"
UNUSED_S: Final = 7 * 24 * 3600


def _usable_directory() -> Path:
    stated = Path(os.environ.get(VARIABLE) or user_cache_path("kernalyse-tests"))
    try:
        stated.mkdir(parents=True, exist_ok=True)
    except OSError:  # a home that takes nothing: for this run alone
        return Path(tempfile.mkdtemp(prefix="kernalyse-tests-"))
    return stated


KEPT: Final = _usable_directory()
"""Chosen when tests are loaded: each of them has a cache directory and variables of its own."""


def kept_directory(name: str) -> Path:
    directory = KEPT / name
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def kept_of_sources(name: str, *sources: Path) -> Path:
    """A directory of what these files have a part in making: it is another one when one of them changes. Unused ones go after a week."""
    digest = sha256(b"".join(path.name.encode() + path.read_bytes() for path in sorted(sources))).hexdigest()[:16]
    directory = kept_directory(f"{name}-{digest}")
    os.utime(directory)
    for other in KEPT.glob(f"{name}-*"):
        if time.time() - other.stat().st_mtime > UNUSED_S:
            shutil.rmtree(other, ignore_errors=True)
    return directory


@contextmanager
def alone_with(name: str) -> Iterator[Path]:
    """The directory of that name, while no other test uses it."""
    directory = kept_directory(name)
    with (KEPT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield directory


def kept_package(requirement: str) -> Path:
    """Return a directory in which a package of the index lies, without what it needs itself. Raise CalledProcessError: there is none."""
    with alone_with("packages") as directory:
        package = directory / requirement
        if not package.exists():
            part = directory / "part"
            options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--upgrade", "--target", str(part))
            subprocess.run([sys.executable, "-m", "pip", "install", *options, requirement], check=True, capture_output=True)
            part.rename(package)
    return package
