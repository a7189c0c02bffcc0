"""The Python client of kernalyse: submit runs, watch them, read their tables; and time any callable with the same engine.

    import kernalyse

    with kernalyse.connect() as client:
        run = client.submit(kernalyse.kernel_sweep("saxpy", parameters={"N": [2**20, 2**22]}))
        for update in client.watch(run):
            print(update.run)
        print(client.table(run, "measurements", to="polars"))

    print(kernalyse.bench(lambda: model(batch)))

Importing this package loads nothing: each name loads its module when it is first used. A program that only needs the
messages of `kernalyse.v1` works without gRPC.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernalyse.client import Client
    from kernalyse.connecting import connect
    from kernalyse.errors import RequestError
    from kernalyse.measuring import Measuring
    from kernalyse.runs import Run, RunFailure, RunUpdate
    from kernalyse.specs import ceilings, command, device_check, kernel_sweep, model
    from kernalyse.tables import Table, TableFilter
    from kernalyse.timing import bench, compare

__all__ = [
    "Client",
    "Measuring",
    "RequestError",
    "Run",
    "RunFailure",
    "RunUpdate",
    "Table",
    "TableFilter",
    "bench",
    "ceilings",
    "command",
    "compare",
    "connect",
    "device_check",
    "kernel_sweep",
    "model",
]

_HOMES = {
    "Client": "client",
    "connect": "connecting",
    "RequestError": "errors",
    "Measuring": "measuring",
    "Run": "runs",
    "RunFailure": "runs",
    "RunUpdate": "runs",
    "ceilings": "specs",
    "command": "specs",
    "device_check": "specs",
    "kernel_sweep": "specs",
    "model": "specs",
    "Table": "tables",
    "TableFilter": "tables",
    "bench": "timing",
    "compare": "timing",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
