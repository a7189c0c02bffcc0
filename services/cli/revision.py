"""The git checkout that a run is submitted from."""

from __future__ import annotations

from pathlib import Path

from kernalyse.revision import git_revision
from services.core.model import Revision


def revision_of(folder: Path) -> Revision | None:
    """Return the commit of a folder, or None outside a checkout, without commits or without git."""
    found = git_revision(folder)
    return None if found is None else Revision(*found)
