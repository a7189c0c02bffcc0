"""Mistakes on the command line, told apart from what a service refuses: they end with status 2."""

from __future__ import annotations

from services.core.errors import InvalidRequestError


class UsageError(InvalidRequestError):
    reason = "BAD_USAGE"
