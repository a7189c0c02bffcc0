"""Who calls a service and what they may do: the service's own token, a file of issued tokens with scopes, client certificates.

The service's own token (setting `token_file`) is its owner's and grants everything. All others are issued by `kernalyse
tokens`: the file has only their SHA-256, and of passwords scrypt, so that whoever reads it cannot use them. A running
service knows what is issued at once, and what is revoked within a second.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from kernalyse.services.core.errors import ConflictError, InvalidParameterError, InvalidSettingError, NotFoundError, UnauthenticatedError

FILE_VERSION: Final = 1
LOOK_INTERVAL_S: Final = 1.0
"""Between two looks at the file of a running service."""

logger = logging.getLogger(__name__)

TOKEN_ID_BYTES: Final = 5
MAX_NAME_LENGTH: Final = 100
MIN_PASSWORD_LENGTH: Final = 12
USED_UP: Final = "a token that has been used as often as it may be"
OWNER_NAME: Final = "owner"
"""Of who has the service's own token; nobody else is called so."""

SCRYPT: Final = {"n": 2**14, "r": 8, "p": 1, "maxmem": 2**26}
"""16 MiB and about 50 ms of a core for each password that is tried."""


class Scope(StrEnum):
    """What a caller may do; from read on each with all before it."""

    JOIN = "join"  # of nodes alone: come and be collected from
    READ = "read"
    MEASURE = "measure"  # what the catalogue has, and imports of traces
    SOURCE = "source"  # kernels, headers and models of one's own
    COMMAND = "command"  # any program
    ADMIN = "admin"  # nodes, ceilings, tokens, other people's runs


ALL_SCOPES: Final = frozenset(Scope)


def with_lower(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """Return the scopes and all that they contain; what only nodes may do is in none but admin."""
    order = tuple(Scope)
    last = max((order.index(scope) for scope in scopes), default=-1)
    return frozenset(scope for scope in order[: last + 1] if scope is not Scope.JOIN or order[last] in (Scope.JOIN, Scope.ADMIN))


def highest(scopes: Iterable[Scope]) -> str:
    """Return the name of the highest scope, which contains the others; empty without one."""
    return max(scopes, key=tuple(Scope).index, default="")


def parse_scope(text: str) -> Scope:
    """Return the scope of that name. Raises InvalidParameterError."""
    try:
        return Scope(text.strip().lower())
    except ValueError as error:
        raise InvalidParameterError(
            "scope", found=repr(text), expected=f"one of {', '.join(Scope)}", remedy="Each contains those before it."
        ) from error


class Kind(StrEnum):
    """Who a token was issued to."""

    PERSON = "person"
    JOIN = "join"  # lets profilers join, each of which gets a token of its own
    NODE = "node"  # a profiler that has joined
    ANALYZER = "analyzer"  # calls profilers for others, and says for whom
    DASHBOARD = "dashboard"  # signs people in, and calls the analyzer with a token for each


class Means(StrEnum):
    """What a caller shows."""

    TOKEN = "token"
    CERTIFICATE = "certificate"
    PASSWORD = "password"  # at a dashboard


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller.

    Args:
        name: of the person or machine; "owner" has the service's own token.
        token_id: of the issued token or certificate; empty: the service's own token.
        end_unix_s: when it ends; None: never.
        via: who calls for it; empty: it calls itself.
    """

    name: str
    scopes: frozenset[Scope]
    kind: Kind = Kind.PERSON
    token_id: str = ""
    end_unix_s: float | None = None
    via: str = ""

    def __str__(self) -> str:
        return f"{self.name} via {self.via}" if self.via else self.name

    @property
    def may_speak_for_others(self) -> bool:
        """Return whether it may say for whom it calls: an analyzer, and whoever has the service's own token."""
        return self.kind is Kind.ANALYZER or self.name == OWNER_NAME

    @property
    def may_sign_people_in(self) -> bool:
        """Return whether it may ask for tokens that stand for people: a dashboard, and whoever has the service's own token."""
        return self.kind is Kind.DASHBOARD or self.name == OWNER_NAME

    def narrowed(self, name: str, scopes: frozenset[Scope]) -> Identity:
        """Return the identity of the one for whom this one calls, with no scope that either lacks. name: empty: it calls for itself."""
        narrower = replace(self, scopes=self.scopes & scopes)
        return replace(narrower, name=name, via=self.name) if name else narrower


OWNER: Final = Identity(OWNER_NAME, ALL_SCOPES)


# ---------------------------------------------------------------- the file


@dataclass(frozen=True, slots=True)
class Entry:
    """An issued token, a client certificate or a password, as the file has it. Times are seconds since the epoch."""

    token_id: str
    name: str
    kind: Kind
    scope: Scope  # the highest
    digest: str  # SHA-256 of the token or of the certificate's DER; of a password salt and scrypt
    means: Means
    create_unix_s: float
    end_unix_s: float | None = None
    revoke_unix_s: float | None = None
    uses_left: int | None = None  # of a join token; None: any number

    def is_valid(self, now_unix_s: float) -> bool:
        """Return whether it has neither ended nor been revoked."""
        return self.revoke_unix_s is None and (self.end_unix_s is None or now_unix_s < self.end_unix_s)

    @property
    def identity(self) -> Identity:
        """Return the identity of its holder."""
        return Identity(self.name, with_lower([self.scope]), self.kind, self.token_id, self.end_unix_s)


def digest_of(secret: str | bytes) -> str:
    """Return what the file keeps of a token or of a certificate's DER."""
    return hashlib.sha256(secret.encode(errors="surrogateescape") if isinstance(secret, str) else secret).hexdigest()


class TokenFile:
    """The file of issued tokens, mode 0600. One process at a time changes it; readers see it before or after a change.

    Args:
        path: need not exist yet.
        clock: seconds since the epoch.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock

    def read(self) -> tuple[Entry, ...]:
        """Return all entries, in the order of their making. Raises InvalidSettingError."""
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise self._unusable(error.strerror or str(error), "a file that this user may read") from error
        try:
            content = json.loads(text)
            if content["version"] != FILE_VERSION:
                raise self._unusable(f"version {content['version']}", f"version {FILE_VERSION}")
            return tuple(_entry(row) for row in content["tokens"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._unusable(f"{type(error).__name__}: {error}", "what `kernalyse tokens` has written") from error

    def issue(
        self, name: str, scope: Scope, kind: Kind = Kind.PERSON, lifetime_s: float | None = None, use_count: int | None = None
    ) -> tuple[Entry, str]:
        """Add a token, and return its entry and the token itself, which is kept nowhere.

        Raises:
            InvalidParameterError: a name or a lifetime that cannot be used.
        """
        token = secrets.token_urlsafe(32)
        return self._add(name, scope, kind, lifetime_s, digest_of(token), Means.TOKEN, use_count), token

    def use(self, token_id: str, count: int = 1) -> None:
        """Count a use of a token; -1 takes one back. Raises UnauthenticatedError: none is left."""
        with self._changing() as entries:
            entry = entries[token_id]
            if entry.uses_left is None:
                return
            if entry.uses_left < count:
                raise UnauthenticatedError(
                    f"token {token_id}", found=USED_UP, expected="one with uses left", remedy="Ask for another: kernalyse nodes join-token"
                )
            entries[token_id] = replace(entry, uses_left=entry.uses_left - count)

    def admit(self, name: str, scope: Scope, certificate_der: bytes, kind: Kind = Kind.PERSON, lifetime_s: float | None = None) -> Entry:
        """Let the holder of a client certificate call without a token.

        Raises:
            InvalidParameterError: a name or a lifetime that cannot be used.
            ConflictError: the certificate is another identity's.
        """
        return self._add(name, scope, kind, lifetime_s, digest_of(certificate_der), Means.CERTIFICATE)

    def set_password(self, name: str, scope: Scope, password: str, lifetime_s: float | None = None) -> Entry:
        """Let a person sign in at a dashboard with name and password; a password that the person had before is revoked.

        Raises:
            InvalidParameterError: a name, password or lifetime that cannot be used.
        """
        if len(password) < MIN_PASSWORD_LENGTH:
            raise InvalidParameterError(
                f"password of {name}",
                found=f"{len(password)} letters",
                expected=f"at least {MIN_PASSWORD_LENGTH}",
                remedy="Choose another.",
            )
        now, salt = self._clock(), secrets.token_bytes(16)
        entry = self._add(name, scope, Kind.PERSON, lifetime_s, f"{salt.hex()}:{_scrypt(password, salt)}", Means.PASSWORD)
        with self._changing() as entries:
            for other in tuple(entries.values()):
                if (other.name, other.means) == (name, Means.PASSWORD) and other.token_id != entry.token_id and other.is_valid(now):
                    entries[other.token_id] = replace(other, revoke_unix_s=now)
        return entry

    def revoke(self, which: str) -> tuple[Entry, ...]:
        """Revoke a token by its id, or all of a name. Raises NotFoundError."""
        now = self._clock()
        with self._changing() as entries:
            found = _chosen(entries, which, now)
            for entry in found:
                entries[entry.token_id] = replace(entry, revoke_unix_s=now)
        return found

    def rotate(self, which: str, grace_s: float = 0.0) -> tuple[Entry, str]:
        """Issue a token in the place of another, which ends after the grace; the new one lasts as long as the old one did.

        Raises:
            NotFoundError: no token of that id or name.
            ConflictError: the name has several.
        """
        now = self._clock()
        old = [entry for entry in _chosen({entry.token_id: entry for entry in self.read()}, which, now) if entry.means is Means.TOKEN]
        if len(old) != 1:
            ids = ", ".join(entry.token_id for entry in old) or "no token"
            raise ConflictError(f"tokens of {which}", found=ids, expected="one", remedy="Name the token's id.")
        entry, token = self.issue(
            old[0].name, old[0].scope, old[0].kind, None if old[0].end_unix_s is None else old[0].end_unix_s - old[0].create_unix_s
        )
        with self._changing() as entries:
            before = entries[old[0].token_id]
            end = now + grace_s if before.end_unix_s is None else min(now + grace_s, before.end_unix_s)
            entries[before.token_id] = replace(before, end_unix_s=end)
        return entry, token

    def _add(
        self, name: str, scope: Scope, kind: Kind, lifetime_s: float | None, digest: str, means: Means, use_count: int | None = None
    ) -> Entry:
        if not name.strip() or len(name) > MAX_NAME_LENGTH or not name.isprintable() or name == OWNER_NAME:
            raise InvalidParameterError(
                "name of a token",
                found=repr(name),
                expected=f"1 to {MAX_NAME_LENGTH} printable letters, other than {OWNER_NAME!r}",
                remedy="Name the person or the machine.",
            )
        if lifetime_s is not None and lifetime_s <= 0:
            raise InvalidParameterError("lifetime of a token", found=f"{lifetime_s:g} s", expected="more than 0", remedy="Correct it.")
        now = self._clock()
        end = None if lifetime_s is None else now + lifetime_s
        entry = Entry(secrets.token_hex(TOKEN_ID_BYTES), name, kind, scope, digest, means, now, end, uses_left=use_count)
        with self._changing() as entries:
            for other in entries.values():
                if other.digest == digest and other.is_valid(now):
                    raise ConflictError(
                        "client certificate", found=f"that of {other.name}", expected="one of its own", remedy=f"Revoke {other.token_id}."
                    )
            entries[entry.token_id] = entry
        return entry

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Entry]]:
        """Yield the entries by their ids; what they are at the end of the block is written."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(self._path.with_name(f".{self._path.name}.lock"), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            entries = {entry.token_id: entry for entry in self.read()}
            yield entries
            rows = [_row(entry) for entry in entries.values()]
            temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                json.dump({"version": FILE_VERSION, "tokens": rows}, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
        finally:
            os.close(lock)

    def _unusable(self, found: str, expected: str) -> InvalidSettingError:
        return InvalidSettingError(f"tokens file {self._path}", found=found, expected=expected, remedy="Restore it, or delete it.")


def _scrypt(password: str, salt: bytes) -> str:
    return hashlib.scrypt(password.encode(errors="surrogateescape"), salt=salt, dklen=32, **SCRYPT).hex()


def _row(entry: Entry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in Entry.__dataclass_fields__}


def _entry(row: Mapping[str, Any]) -> Entry:
    return Entry(**{**row, "kind": Kind(row["kind"]), "scope": Scope(row["scope"]), "means": Means(row["means"])})


def _chosen(entries: Mapping[str, Entry], which: str, now_unix_s: float) -> tuple[Entry, ...]:
    found = tuple(entry for entry in entries.values() if which in (entry.token_id, entry.name) and entry.is_valid(now_unix_s))
    if not found:
        raise NotFoundError(
            f"token {which}", found="no valid token of that id or name", remedy="`kernalyse tokens list` shows those there are."
        )
    return found


# ---------------------------------------------------------------- of a running service


class Identities:
    """The callers that a running service knows.

    Args:
        own_token: the service's; its holder may do everything.
        path: of the file of issued tokens; None: there are none.
        clock: seconds since the epoch.
        read_short: returns whose short token it is and when it ends; None: it is none, or the service takes none.
    """

    def __init__(
        self,
        own_token: str,
        path: Path | None = None,
        clock: Callable[[], float] = time.time,
        read_short: Callable[[str], tuple[Identity, float] | None] = lambda _: None,
    ) -> None:
        self._own_digest = digest_of(own_token)
        self._read_short = read_short
        self._path = path
        self._clock = clock
        self._looked_unix_s = float("-inf")
        self._signature: tuple[int, int, int] | None = None
        self._by_digest: dict[str, Entry] = {}
        self._by_id: dict[str, Entry] = {}

    def of_token(self, token: str) -> Identity | None:
        """Return whose token it is; None: nobody's, or one that has ended. A digest is looked up, so that no comparison tells of it."""
        digest = digest_of(token)
        if secrets.compare_digest(digest, self._own_digest):
            return OWNER
        if "." in token:  # issued ones have none
            short = self._read_short(token)
            return short[0] if short is not None and self._clock() < short[1] and self.is_valid(short[0]) else None
        return self._valid(digest, Means.TOKEN)

    def of_certificate(self, der: bytes) -> Identity | None:
        """Return whose client certificate it is, by its DER; None: nobody's."""
        return self._valid(digest_of(der), Means.CERTIFICATE)

    def of_password(self, name: str, password: str) -> Identity | None:
        """Return whose name and password these are; None: nobody's. It takes tens of milliseconds, whether there is such a name or not."""
        self._look(is_due=True)
        now = self._clock()
        entries = [entry for entry in self._by_id.values() if (entry.name, entry.means) == (name, Means.PASSWORD) and entry.is_valid(now)]
        salt, _, expected = (entries[-1].digest if entries else "00:").partition(":")
        is_right = secrets.compare_digest(_scrypt(password, bytes.fromhex(salt)), expected)
        return entries[-1].identity if is_right and entries else None

    def is_valid(self, identity: Identity) -> bool:
        """Return whether a caller that was let in before would be let in now."""
        if identity.end_unix_s is not None and self._clock() >= identity.end_unix_s:
            return False
        if not identity.token_id:
            return True
        self._look()
        entry = self._by_id.get(identity.token_id)
        return entry is not None and entry.is_valid(self._clock())

    def look(self) -> None:
        """Read the file now: this process has changed it."""
        self._look(is_due=True)

    def _valid(self, digest: str, means: Means) -> Identity | None:
        self._look()
        if digest not in self._by_digest:
            self._look(is_due=True)  # it may just have been issued
        entry = self._by_digest.get(digest)
        if entry is None or entry.means is not means or entry.uses_left == 0 or not entry.is_valid(self._clock()):
            return None
        return entry.identity

    def may_read(self, token: str) -> bool:
        """Return whether the holder of a token has scope read."""
        identity = self.of_token(token)
        return identity is not None and Scope.READ in identity.scopes

    def refusal(self, token: str) -> str:
        """Return why a token is not accepted, for whoever holds it."""
        self._look()
        digest = digest_of(token)
        entry = next((entry for entry in self._by_id.values() if entry.digest == digest), None)
        if entry is None:
            return "a token that is not known here"
        if entry.revoke_unix_s is not None:
            return "a token that has been revoked"
        return USED_UP if entry.uses_left == 0 else "a token that has ended"

    def _look(self, *, is_due: bool = False) -> None:
        """Read the file where it has changed. One that cannot be read any more lets nobody in."""
        now = self._clock()
        if self._path is None or (0 <= now - self._looked_unix_s < LOOK_INTERVAL_S and not is_due):
            return
        self._looked_unix_s = now
        try:
            found = self._path.stat()
            signature = (found.st_mtime_ns, found.st_size, found.st_ino)
        except OSError:
            signature = None
        if signature == self._signature:
            return
        try:
            entries = () if signature is None else TokenFile(self._path).read()
        except InvalidSettingError as error:
            logger.error("%s Until then no issued token is accepted.", error.message)
            entries = ()
        self._by_id = {entry.token_id: entry for entry in entries}
        self._by_digest = {entry.digest: entry for entry in entries if entry.revoke_unix_s is None}
        self._signature = signature


# ---------------------------------------------------------------- the service's own token


def read_or_create_token(path: Path) -> str:
    """Return the token in `path`; if the file does not exist, write a new one of 256 bits there.

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


def tokens_equal(expected: str, actual: str) -> bool:
    """Return whether the texts are equal, in a time that does not depend on where they differ."""
    return secrets.compare_digest(expected.encode(), actual.encode())


def _create_token(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    token = secrets.token_urlsafe(32)
    # Written elsewhere and linked into place: two services that start at once end up with the same complete token.
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
