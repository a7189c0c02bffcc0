"""`kernalyse follow`: a list of operations on the Roofline page, read again whenever it changes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.options import OpRegistryOption, Server, takes_server


@takes_server
def follow(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="A list of operations or kernels: JSON or CSV.")
    ] = Path("commands.json"),
    op_registry: OpRegistryOption = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the Roofline page in a browser.")] = False,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            help="Serve the page on this port where it is free, else on that of the dashboard that runs; 0 takes any free one.",
        ),
    ] = None,
    *,
    server: Server,
) -> None:
    """Show a list of operations or kernels on the Roofline page until Ctrl-C, and read it again whenever it changes.

    Pages that are open follow by themselves. A roofline_config.json beside it is watched too, and written when peaks or
    thresholds are set on the page; so is the op_registry.py of --op-registry. Operations that have no place on the roofline are
    told with the reason. Where no kernalyse runs, an analyzer and a dashboard are started for as long.
    """
    import threading
    import webbrowser

    from services.cli.dashboard_session import dashboard_session
    from services.cli.following import FollowedList
    from services.cli.local_services import dashboard_url

    with dashboard_session(server, port) as (client, dashboard):
        followed = FollowedList(client, path, op_registry, typer.echo)
        run = followed.read()
        page = f"/roofline?runs={run.run_id}"
        if dashboard is None:
            typer.echo(f"Roofline: {page} of that analyzer's dashboard")
        else:
            url = dashboard_url(dashboard, page)
            if port and dashboard.address.rpartition(":")[2] != str(port):
                typer.echo(f"Port {port} is in use by another program; the page is on {dashboard.address}.")
            typer.echo(f"Roofline: {url}")
            if open_browser:
                webbrowser.open(url)
        typer.echo(f"Following {path}; Ctrl-C ends it.")
        try:
            followed.follow(threading.Event())
        except KeyboardInterrupt:
            typer.echo("Stopped; what was read last stays.")
