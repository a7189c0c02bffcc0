"""Client library of kernalyse: the generated contract `kernalyse.v1` and a small client.

The client is loaded when it is first asked for: a program that only needs the messages does without gRPC.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernalyse.client import Client, RequestError, connect

__all__ = ["Client", "RequestError", "connect"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from kernalyse import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
