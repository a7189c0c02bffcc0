"""The git checkout that a run is submitted from."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

GIT_TIMEOUT_S: Final = 10.0  # a status of a large checkout on a cold disk takes seconds


def git_revision(directory: Path) -> tuple[str, bool] | None:
    """Return the commit, and whether tracked files differ from it, or None outside a checkout, without commits or without git."""
    commit = _git(directory, "rev-parse", "--verify", "HEAD")
    changes = _git(directory, "status", "--porcelain", "--untracked-files=no")
    if commit is None or changes is None:
        return None
    return commit.strip(), bool(changes.strip())


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ("git", "-C", str(directory), *arguments),
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
