"""The git checkout that a run is submitted from."""

from __future__ import annotations

import subprocess
from pathlib import Path

from services.core.model import Revision

GIT_TIMEOUT_S = 10.0  # a status of a large checkout on a cold disk takes seconds


def revision_of(folder: Path) -> Revision | None:
    """Commit, and whether tracked files differ from it; None outside a checkout, without commits or without git."""
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    if commit is None or changes is None:
        return None
    return Revision(commit.strip(), is_dirty=bool(changes.strip()))


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ("git", "-C", str(folder), *arguments),
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
