"""Short tokens: what a dashboard sends with a person's calls in the place of the person's own token.

They are JSON Web Tokens, signed with a key that is derived from the service's own token. One ends after minutes and can be
renewed until the end of the session that a sign-in began. It is worth no more than the token it was made of: once that has
ended or been revoked, the short one is refused.
"""

from __future__ import annotations

import hmac
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OctKey

from kernalyse.services.core.identity import Identity, Kind, digest_of, highest, parse_scope, with_lower

ALGORITHM: Final = "HS256"
LIFETIME_S: Final = 600.0
SESSION_S: Final = 30 * 86_400.0
"""After a sign-in; then a person signs in again."""

REMEMBERED_COUNT: Final = 4_096
"""Tokens whose signature has been checked: parsing one takes longer than the rest of the check."""


@dataclass(frozen=True, slots=True)
class ShortToken:
    """A short token that has been read, and whose signature is right. Times are seconds since the epoch."""

    identity: Identity
    end_unix_s: float
    session_end_unix_s: float


class ShortTokens:
    """Makes and reads short tokens.

    Args:
        own_token: of the service, from which the key is derived.
        clock: seconds since the epoch.
    """

    def __init__(self, own_token: str, clock: Callable[[], float] = time.time) -> None:
        self._key = OctKey.import_key(hmac.new(own_token.encode(), b"kernalyse short tokens, version 1", sha256).digest())
        self._clock = clock
        self._read: OrderedDict[str, ShortToken] = OrderedDict()

    def issue(self, identity: Identity, session_end_unix_s: float | None = None) -> tuple[str, ShortToken]:
        """Return a short token for the caller.

        Args:
            identity: of the person.
            session_end_unix_s: of the session that is renewed; None: one begins.
        """
        now = self._clock()
        session_end = session_end_unix_s or now + SESSION_S
        if identity.end_unix_s is not None:
            session_end = min(session_end, identity.end_unix_s)
        end = min(now + LIFETIME_S, session_end)
        claims = {
            "sub": identity.name,
            "scope": highest(identity.scopes),
            "kind": str(identity.kind),
            "token_id": identity.token_id,
            "exp": end,
            "session_end": session_end,
        }
        return jwt.encode({"alg": ALGORITHM}, claims, self._key), ShortToken(identity, end, session_end)

    def identity_of(self, text: str) -> tuple[Identity, float] | None:
        """Return whose token it is and when it ends, seconds since the epoch; None: it is none of this service's."""
        short = self.read(text)
        return None if short is None else (short.identity, short.end_unix_s)

    def read(self, text: str) -> ShortToken | None:
        """Return what a token says, ended or not; None: it is none of this service's."""
        digest = digest_of(text)
        known = self._read.get(digest)
        if known is None:
            try:
                claims = jwt.decode(text, self._key, algorithms=[ALGORITHM]).claims
                scopes = with_lower([parse_scope(claims["scope"])])
                identity = Identity(claims["sub"], scopes, Kind(claims["kind"]), claims["token_id"], float(claims["session_end"]))
                known = ShortToken(identity, float(claims["exp"]), float(claims["session_end"]))
            except (JoseError, KeyError, ValueError, TypeError):
                return None
            self._read[digest] = known
            if len(self._read) > REMEMBERED_COUNT:
                self._read.popitem(last=False)
        return known
