"""Sign-in of people at dashboards: by a token, a password, or what an OpenID Connect provider says of them."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Final

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from kernalyse.services.core.access import caller
from kernalyse.services.core.errors import LimitReachedError, ScopeMissingError, UnauthenticatedError, UnavailableError
from kernalyse.services.core.identity import OWNER_NAME, Identities, Identity, Scope, with_lower
from kernalyse.services.core.short_tokens import ShortToken, ShortTokens

FAILURE_WINDOW_S: Final = 60.0
MAX_FAILURES: Final = 10
"""Wrong passwords of one name within the window; then the name waits."""

MAX_REMEMBERED_NAMES: Final = 10_000

ID_TOKEN_ALGORITHMS: Final = ["RS256", "PS256", "ES256", "EdDSA"]
"""With keys that the provider publishes; none by which whoever knows such a key could sign."""

LEEWAY_S: Final = 60
"""By which the clocks of provider and analyzer may differ."""

KEYS_AGE_S: Final = 3600.0
KEYS_RETRY_S: Final = 60.0
FETCH_TIMEOUT_S: Final = 5.0


class SignIn:
    """Turns credentials into short tokens.

    Args:
        identities: who is known.
        short_tokens: makes them.
        check_id_token: returns whom the provider's token is about; None: no provider is set.
        clock: seconds, of a clock that nobody sets.
    """

    def __init__(
        self,
        identities: Identities,
        short_tokens: ShortTokens,
        check_id_token: Callable[[str], Identity] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._identities = identities
        self._short_tokens = short_tokens
        self._check_id_token = check_id_token
        self._clock = clock
        self._failures: dict[str, list[float]] = {}

    async def sign_in(self, *, token: str = "", id_token: str = "", name: str = "", password: str = "") -> tuple[str, ShortToken]:
        """Return a short token for whom the credential is about. One of the three is given.

        Raises:
            ScopeMissingError: the caller is no dashboard.
            UnauthenticatedError: the credential is nobody's.
            LimitReachedError: too many wrong passwords of that name.
        """
        _require_dashboard()
        if token:
            identity = self._identities.of_token(token)
        elif id_token:
            identity = await asyncio.to_thread(self._of_id_token, id_token)
        else:
            identity = await self._of_password(name, password)
        if identity is None:
            raise UnauthenticatedError(
                "sign-in",
                found="a token that is not known" if token else "a name or password that is not known",
                expected="what was issued for the person",
                remedy="Ask the owner of the analyzer: kernalyse tokens issue NAME.",
            )
        return self._short_tokens.issue(identity)

    def renew(self, text: str) -> tuple[str, ShortToken]:
        """Return another short token for the same person.

        Raises:
            ScopeMissingError: the caller is no dashboard.
            UnauthenticatedError: the session or the token behind it has ended.
        """
        _require_dashboard()
        short = self._short_tokens.read(text)
        if short is None or not self._identities.is_valid(short.identity):
            raise UnauthenticatedError(
                "session", found="one that has ended, or whose token has been revoked", expected="a valid one", remedy="Sign in again."
            )
        return self._short_tokens.issue(short.identity, short.session_end_unix_s)

    def _of_id_token(self, id_token: str) -> Identity:
        if self._check_id_token is None:
            raise UnauthenticatedError(
                "sign-in",
                found="a token of an OpenID Connect provider",
                expected="a token or a password: this analyzer trusts no provider",
                remedy="Set analyzer.oidc_issuer and analyzer.oidc_client_id.",
            )
        return self._check_id_token(id_token)

    async def _of_password(self, name: str, password: str) -> Identity | None:
        now = self._clock()
        failures = [failed for failed in self._failures.get(name, ()) if now - failed < FAILURE_WINDOW_S]
        if len(failures) >= MAX_FAILURES:
            raise LimitReachedError(
                f"sign-in of {name}",
                found=f"{len(failures)} wrong passwords within {FAILURE_WINDOW_S:g} s",
                expected=f"at most {MAX_FAILURES}",
                remedy="Wait a minute.",
            )
        identity = await asyncio.to_thread(self._identities.of_password, name, password)
        if identity is None:
            if len(self._failures) >= MAX_REMEMBERED_NAMES:
                self._failures.clear()
            self._failures[name] = [*failures, now]
        return identity


class IdTokens:
    """Checks what an OpenID Connect provider says of people (OpenID Connect Core 1.0, 3.1.3.7).

    The provider's keys are fetched when the first token comes, again after an hour, and when a token names a key that is not among
    them, at most once a minute.

    Args:
        issuer: URL of the provider, as its tokens have it.
        client_id: of the dashboard at the provider.
        name_claim: the claim with the person's name.
        groups_claim: the claim with the person's groups.
        scopes: of a group; the highest of all groups of a person counts. "*": of everybody.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        issuer: str,
        client_id: str,
        name_claim: str,
        groups_claim: str,
        scopes: Mapping[str, Scope],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._issuer = issuer
        self._client_id = client_id
        self._name_claim = name_claim
        self._groups_claim = groups_claim
        self._scopes = scopes
        self._clock = clock
        self._keys: KeySet | None = None
        self._fetch_unix_s = 0.0
        self._lock = threading.Lock()

    def check(self, id_token: str) -> Identity:
        """Return whom a token is about. Blocks while keys are fetched.

        Raises:
            UnauthenticatedError: it is not the provider's, not for this dashboard, or has ended.
            ScopeMissingError: none of the person's groups has a scope.
            UnavailableError: the provider does not answer.
        """
        try:
            claims = self._claims(id_token)
        except (JoseError, ValueError, KeyError, TypeError) as error:
            raise UnauthenticatedError(
                "sign-in",
                found=f"a token that does not pass: {type(error).__name__}: {error}",
                expected=f"one of {self._issuer} for {self._client_id}",
                remedy="Sign in again; compare issuer and client id with the provider's.",
            ) from error
        name = str(claims.get(self._name_claim) or claims["sub"])
        told = claims.get(self._groups_claim, [])
        groups = ["*", *([told] if isinstance(told, str) else map(str, told))]
        granted = with_lower(self._scopes[group] for group in groups if group in self._scopes)
        if not granted:
            raise ScopeMissingError(
                f"sign-in of {name}",
                found=f"groups {', '.join(groups[1:]) or '(none)'}",
                expected=f"one of {', '.join(self._scopes) or 'those in analyzer.oidc_scopes, which is empty'}",
                remedy="Ask the owner of the analyzer.",
            )
        if name == OWNER_NAME:
            raise UnauthenticatedError("sign-in", found=f"somebody called {name!r}", expected="another name", remedy="It is reserved.")
        return Identity(name, granted)

    def _claims(self, id_token: str) -> dict[str, Any]:
        registry = jwt.JWTClaimsRegistry(
            now=int(self._clock()),
            leeway=LEEWAY_S,
            iss={"essential": True, "value": self._issuer},
            aud={"essential": True, "value": self._client_id},
            exp={"essential": True},
            sub={"essential": True},
        )
        try:
            token = jwt.decode(id_token, self._key_set(KEYS_AGE_S), algorithms=ID_TOKEN_ALGORITHMS)
        except (JoseError, ValueError):
            token = jwt.decode(id_token, self._key_set(KEYS_RETRY_S), algorithms=ID_TOKEN_ALGORITHMS)  # keys may have changed
        registry.validate(token.claims)
        return token.claims

    def _key_set(self, max_age_s: float) -> KeySet:
        with self._lock:
            # Fetched "in future", they are of before the host's clock was set back.
            if self._keys is None or not 0 <= self._clock() - self._fetch_unix_s <= max_age_s:
                where = self._fetch(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")["jwks_uri"]
                self._keys = KeySet.import_key_set(self._fetch(where))
                self._fetch_unix_s = self._clock()
            return self._keys

    def _fetch(self, url: str) -> Any:
        try:
            with urllib.request.urlopen(url, timeout=FETCH_TIMEOUT_S) as answer:
                return json.load(answer)
        except (OSError, ValueError) as error:
            raise UnavailableError(
                f"OpenID Connect provider {self._issuer}",
                found=f"{url}: {error}",
                expected="its configuration and keys",
                remedy="Check analyzer.oidc_issuer, and that the analyzer reaches it.",
            ) from error


def _require_dashboard() -> None:
    if not caller().may_sign_people_in:
        raise ScopeMissingError(
            "sign-in of people",
            found=f"a token of {caller()}",
            expected="that of a dashboard",
            remedy="Issue one: kernalyse tokens issue NAME --kind dashboard",
        )
