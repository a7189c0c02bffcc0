"""kernalyse.services.core.rpc: the token is made once, kept private and compared whole."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernalyse.services.core.errors import InvalidSettingError
from kernalyse.services.core.identity import read_or_create_token, tokens_equal


def test_the_first_start_makes_a_private_token_and_later_ones_read_it(tmp_path: Path) -> None:
    path = tmp_path / "directory" / "token"
    token = read_or_create_token(path)
    assert len(token) >= 43  # 256 bits in base 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert read_or_create_token(path) == token


def test_two_installations_get_different_tokens(tmp_path: Path) -> None:
    assert read_or_create_token(tmp_path / "a") != read_or_create_token(tmp_path / "b")


def test_services_that_start_at_once_agree_on_one_token(tmp_path: Path) -> None:
    for attempt in range(20):
        path = tmp_path / str(attempt) / "token"
        path.parent.mkdir()
        with ThreadPoolExecutor(4) as pool:
            tokens = set(pool.map(lambda _, path=path: read_or_create_token(path), range(4)))
        assert tokens == {path.read_text().strip()}


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_token_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    path.write_text("secret")
    path.chmod(mode)
    with pytest.raises(InvalidSettingError, match=f"{mode:04o}.*chmod 600"):
        read_or_create_token(path)


def test_an_empty_token_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    with pytest.raises(InvalidSettingError, match="nothing in it"):
        read_or_create_token(path)


@pytest.mark.parametrize(("given", "is_equal"), [("secret", True), ("Secret", False), ("", False), ("secret ", False), ("sécret", False)])
def test_only_the_whole_token_counts(given: str, is_equal: bool) -> None:
    assert tokens_equal("secret", given) is is_equal
