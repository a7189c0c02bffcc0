"""Sign-in of people at dashboards: by a token, a password, or what an OpenID Connect provider says of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from kernalyse.services.core.access import caller
from kernalyse.services.core.errors import LimitReachedError, ScopeMissingError, UnauthenticatedError
from kernalyse.services.core.identity import Identities, Identity
from kernalyse.services.core.short_tokens import ShortToken, ShortTokens

FAILURE_WINDOW_S: Final = 60.0
MAX_FAILURES: Final = 10
"""Wrong passwords of one name within the window; then the name waits."""

MAX_REMEMBERED_NAMES: Final = 10_000


class SignIn:
    """Turns credentials into short tokens.

    Args:
        identities: who is known.
        short_tokens: makes them.
        check_id_token: returns whom the provider's token is about; None: no provider is set.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        identities: Identities,
        short_tokens: ShortTokens,
        check_id_token: Callable[[str], Identity] | None = None,
        clock: Callable[[], float] = time.time,
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


def _require_dashboard() -> None:
    if not caller().may_sign_people_in:
        raise ScopeMissingError(
            "sign-in of people",
            found=f"a token of {caller()}",
            expected="that of a dashboard",
            remedy="Issue one: kernalyse tokens issue NAME --kind dashboard",
        )
