"""Join tokens: what they carry, and what is no join token."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kernalyse.services.core.errors import InvalidSettingError, UnauthenticatedError
from kernalyse.services.core.join_tokens import JoinToken, key_digest, server_name
from tests.certificates import make_certificate, make_certificate_for


def test_what_a_token_carries_comes_out_of_its_text() -> None:
    token = JoinToken("secret", "sha256:00", time.time() + 60, 3)
    assert JoinToken.parse(f" {token}\n", "file") == token
    assert "secret" not in repr(token)


@pytest.mark.parametrize(
    "text", ["", "hello", "kernalyse-join-1.", "kernalyse-join-1.e30", "kernalyse-join-2.e30", "kernalyse-join-1.\u20ac"]
)
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(
        InvalidSettingError, match=r"the file: found \d+ letters that are no join token; expected one line that begins with"
    ):
        JoinToken.parse(text, "the file")


def test_one_that_has_ended_is_refused_without_a_call() -> None:
    with pytest.raises(UnauthenticatedError, match="a join token that ended at"):
        JoinToken.parse(str(JoinToken("secret", "", time.time() - 1)), "the file")


def test_a_certificate_is_known_by_its_key(tmp_path: Path) -> None:
    one, other = make_certificate(tmp_path / "one"), make_certificate_for(tmp_path / "other", "gpu-host")
    assert key_digest(one.certificate.read_bytes()) != key_digest(other.certificate.read_bytes())
    assert server_name(other.certificate.read_bytes()) == "gpu-host"
    assert server_name(one.certificate.read_bytes()) == "localhost"
