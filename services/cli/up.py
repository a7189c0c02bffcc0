"""`kernalyse up`: the three services on this machine, watched until Ctrl-C."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command()(up)


def up(
    demo: Annotated[bool, typer.Option("--demo", help="Submit a demo sweep of about a minute.")] = False,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the dashboard in a browser.")] = False,
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65535, help="Port of the dashboard; 0 takes free ports for all three services."),
    ] = None,
) -> None:
    """Start profiler, analyzer and dashboard on this machine and keep them running until Ctrl-C."""
    from services.cli.local_services import LocalServices, running_dashboard_url

    url = running_dashboard_url()
    if url is not None:
        typer.echo(f"kernalyse is already running on this machine: {url}")
        return
    services = LocalServices(port=port, say=typer.echo)
    services.run(has_demo=demo, opens_browser=open_browser)
