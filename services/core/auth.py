"""The access token: made once, kept in a file of mode 0600, compared in constant time."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from services.core.errors import InvalidSettingError


def read_or_create_token(path: Path) -> str:
    """The token in `path`; a new one of 256 bits is written there when the file does not exist.

    Raises:
        InvalidSettingError: the file is empty or can be read by others than its owner.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return _create_token(path)
    with os.fdopen(descriptor, "r") as file:
        mode = os.fstat(file.fileno()).st_mode & 0o777
        token = file.read().strip()
    if mode & 0o077:
        raise InvalidSettingError(f"token file {path}", found=f"mode {mode:04o}", expected="mode 0600", remedy=f"Run: chmod 600 {path}")
    if not token:
        raise InvalidSettingError(
            f"token file {path}", found="nothing in it", expected="a token", remedy="Delete it; a new one is made at start."
        )
    return token


def tokens_equal(expected: str, given: str) -> bool:
    """Comparison whose duration does not depend on where the texts differ."""
    return secrets.compare_digest(expected.encode(), given.encode())


def _create_token(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    token = secrets.token_urlsafe(32)
    # Written aside and linked into place: of two services starting at once, both end up with one complete token.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(token + "\n")
        os.link(temporary, path)
    except FileExistsError:
        return read_or_create_token(path)
    finally:
        temporary.unlink()
    return token
