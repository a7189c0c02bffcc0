"""kernalyse.services.core.identity: issued tokens, what they grant, and when they stop to."""

from __future__ import annotations

import base64
import json
import stat
import timeit
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from kernalyse.services.core.errors import ConflictError, InvalidParameterError, InvalidSettingError, NotFoundError
from kernalyse.services.core.identity import ALL_SCOPES, OWNER, Identities, Kind, Scope, TokenFile, digest_of, with_lower
from kernalyse.services.core.short_tokens import LIFETIME_S, ShortTokens

DAY_S = 86_400.0
OWN = "own token"


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path, clock: Clock) -> TokenFile:
    return TokenFile(tmp_path / "tokens.json", clock)


@pytest.fixture
def known(tmp_path: Path, clock: Clock) -> Identities:
    return Identities(OWN, tmp_path / "tokens.json", clock)


def test_each_scope_contains_those_before_it() -> None:
    assert with_lower([Scope.SOURCE]) == {Scope.READ, Scope.MEASURE, Scope.SOURCE}
    assert with_lower([Scope.READ, Scope.ADMIN]) == ALL_SCOPES
    assert with_lower([]) == frozenset()


def test_a_token_is_known_by_its_digest_alone(file: TokenFile, known: Identities, tmp_path: Path) -> None:
    entry, token = file.issue("alice", Scope.MEASURE, lifetime_s=DAY_S)
    path = tmp_path / "tokens.json"
    assert token not in path.read_text()
    assert digest_of(token) in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    identity = known.of_token(token)
    assert identity is not None
    assert (identity.name, identity.token_id, identity.scopes) == ("alice", entry.token_id, frozenset((Scope.READ, Scope.MEASURE)))
    assert known.of_token(token + "x") is None
    assert known.of_certificate(token.encode()) is None  # a token is no certificate


def test_the_services_own_token_grants_everything_and_needs_no_file(known: Identities) -> None:
    identity = known.of_token(OWN)
    assert identity is not None
    assert (identity.name, identity.scopes) == ("owner", ALL_SCOPES)
    assert known.of_token("") is None


def test_a_token_ends(file: TokenFile, known: Identities, clock: Clock) -> None:
    _, token = file.issue("alice", Scope.READ, lifetime_s=60)
    identity = known.of_token(token)
    assert identity is not None
    clock.now += 60
    assert known.of_token(token) is None
    assert not known.is_valid(identity)


def test_what_is_issued_is_known_at_once(file: TokenFile, known: Identities) -> None:
    for name in ("alice", "bob"):
        _, token = file.issue(name, Scope.READ)
        assert known.of_token(token) is not None


def test_what_is_revoked_is_let_in_for_a_second_at_most(file: TokenFile, known: Identities, clock: Clock) -> None:
    _, token = file.issue("alice", Scope.READ)
    identity = known.of_token(token)
    assert identity is not None
    file.revoke("alice")
    clock.now += 1.0
    assert known.of_token(token) is None
    assert not known.is_valid(identity)
    with pytest.raises(NotFoundError, match="token alice: no valid token"):
        file.revoke("alice")


def test_a_new_token_replaces_the_old_one_which_goes_on_for_a_while(file: TokenFile, known: Identities, clock: Clock) -> None:
    old_entry, old = file.issue("ci", Scope.SOURCE, Kind.PERSON, lifetime_s=10 * DAY_S)
    entry, new = file.rotate("ci", grace_s=3600)
    assert (entry.name, entry.scope, entry.end_unix_s) == ("ci", Scope.SOURCE, clock.now + 10 * DAY_S)
    assert known.of_token(new) is not None
    assert known.of_token(old) is not None
    clock.now += 3600
    assert known.of_token(old) is None
    assert known.of_token(new) is not None
    assert [found.token_id for found in file.read()] == [old_entry.token_id, entry.token_id]


def test_of_several_tokens_of_a_name_the_one_to_replace_has_to_be_named(file: TokenFile) -> None:
    first, _ = file.issue("ci", Scope.READ)
    file.issue("ci", Scope.READ)
    with pytest.raises(ConflictError, match=first.token_id):
        file.rotate("ci")
    file.rotate(first.token_id)


def test_a_certificate_is_one_identitys(file: TokenFile, known: Identities) -> None:
    entry = file.admit("gpu-7", Scope.MEASURE, b"DER", Kind.NODE)
    identity = known.of_certificate(b"DER")
    assert identity is not None
    assert (identity.name, identity.kind, identity.token_id) == ("gpu-7", Kind.NODE, entry.token_id)
    with pytest.raises(ConflictError, match="that of gpu-7"):
        file.admit("gpu-8", Scope.MEASURE, b"DER")


def test_a_password_replaces_the_one_before(file: TokenFile, known: Identities, clock: Clock) -> None:
    file.set_password("alice", Scope.SOURCE, "correct horse battery")
    identity = known.of_password("alice", "correct horse battery")
    assert identity is not None
    assert Scope.SOURCE in identity.scopes
    assert known.of_password("alice", "correct horse") is None
    assert known.of_password("bob", "correct horse battery") is None
    assert known.of_password("nobody", "") is None
    file.set_password("alice", Scope.READ, "another long password")
    clock.now += 1
    assert known.of_password("alice", "correct horse battery") is None
    assert not known.is_valid(identity)
    assert known.of_password("alice", "another long password") is not None
    with pytest.raises(InvalidParameterError, match="at least 12"):
        file.set_password("alice", Scope.READ, "short")


def test_a_short_token_is_worth_what_it_was_made_of(file: TokenFile, tmp_path: Path, clock: Clock) -> None:
    short_tokens = ShortTokens(OWN, clock)
    known = Identities(OWN, tmp_path / "tokens.json", clock, read_short=short_tokens.identity_of)
    _, token = file.issue("alice", Scope.MEASURE, lifetime_s=DAY_S)
    identity = known.of_token(token)
    assert identity is not None
    text, short = short_tokens.issue(identity)
    assert short.session_end_unix_s == clock.now + DAY_S  # no longer than the token lasts
    found = known.of_token(text)
    assert found is not None
    assert (found.name, found.scopes, found.token_id) == (identity.name, identity.scopes, identity.token_id)
    clock.now += LIFETIME_S
    assert known.of_token(text) is None
    renewed, _ = short_tokens.issue(short.identity, short.session_end_unix_s)
    assert known.of_token(renewed) is not None
    file.revoke("alice")
    clock.now += 1
    assert known.of_token(renewed) is None


def test_a_short_token_of_another_service_or_one_that_was_changed_is_refused(tmp_path: Path, clock: Clock) -> None:
    short_tokens = ShortTokens(OWN, clock)
    known = Identities(OWN, tmp_path / "tokens.json", clock, read_short=short_tokens.identity_of)
    foreign, _ = ShortTokens("another", clock).issue(OWNER)
    assert known.of_token(foreign) is None
    text, _ = short_tokens.issue(OWNER)
    assert known.of_token(text) is not None
    head, _, rest = text.partition(".")
    unsigned = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
    for changed in (f"{unsigned}.{rest}", f"{unsigned}.{rest.partition('.')[0]}.", text[:-4] + "AAAA", f"{head}..", "a.b.c", "."):
        assert known.of_token(changed) is None, changed


@pytest.mark.parametrize(("name", "lifetime_s"), [("", None), (" ", None), ("a\nb", None), ("owner", None), ("a" * 101, None), ("a", 0.0)])
def test_bad_names_and_lifetimes_are_refused(file: TokenFile, name: str, lifetime_s: float | None) -> None:
    with pytest.raises(InvalidParameterError):
        file.issue(name, Scope.READ, lifetime_s=lifetime_s)
    assert file.read() == ()


def test_tokens_that_are_issued_at_once_are_all_kept(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: TokenFile(tmp_path / "tokens.json").issue(f"p{number}", Scope.READ), range(24)))
    assert {entry.name for entry in TokenFile(tmp_path / "tokens.json").read()} == {f"p{number}" for number in range(24)}


@pytest.mark.parametrize("content", ["{", '{"version": 2, "tokens": []}', '{"version": 1, "tokens": [{"name": "x"}]}', "[]"])
def test_a_file_that_cannot_be_read_lets_in_nobody_but_the_owner(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    path = tmp_path / "tokens.json"
    file, known = TokenFile(path, clock), Identities(OWN, path, clock)
    _, token = file.issue("alice", Scope.READ)
    assert known.of_token(token) is not None
    path.write_text(content)
    clock.now += 1.0
    assert known.of_token(token) is None
    assert known.of_token(OWN) is not None
    assert str(path) in caplog.text
    with pytest.raises(InvalidSettingError, match="Restore it"):
        file.issue("bob", Scope.READ)
    assert path.read_text() == content  # what may be mended by hand is not lost


def test_the_check_costs_30_microseconds_at_most_with_ten_thousand_tokens(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    _, token = TokenFile(path).issue("alice", Scope.READ)
    content = json.loads(path.read_text())
    row = content["tokens"][0]
    content["tokens"] += [{**row, "token_id": f"id{number}", "digest": digest_of(str(number))} for number in range(10_000)]
    path.write_text(json.dumps(content))
    short_tokens = ShortTokens(OWN)
    known = Identities(OWN, path, read_short=short_tokens.identity_of)
    identity = known.of_token(token)
    assert identity is not None
    for shown in (token, short_tokens.issue(identity)[0]):
        assert known.of_token(shown) is not None
        best_s = min(timeit.repeat(partial(known.of_token, shown), number=1000, repeat=9)) / 1000
        assert best_s < 30e-6
