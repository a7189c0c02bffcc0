"""`kernalyse up`: the three services on this machine, watched until Ctrl-C."""

from __future__ import annotations

from typing import Annotated

import typer

from services.cli.options import ClientCertificateOption, ClientKeyOption, Server


def up(
    demo: Annotated[bool, typer.Option("--demo", help="Submit a demo sweep of about a minute.")] = False,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the dashboard in a browser.")] = False,
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65535, help="Port of the dashboard; 0 takes free ports for all three services."),
    ] = None,
    client_certificate_file: ClientCertificateOption = None,
    client_key_file: ClientKeyOption = None,
) -> None:
    """Start profiler, analyzer and dashboard on this machine and keep them running until Ctrl-C."""
    from services.cli.local_services import LocalServices, running_dashboard_url

    url = running_dashboard_url()
    if url is not None:
        typer.echo(f"kernalyse is already running on this machine: {url}")
        return
    server = Server(client_certificate_file=client_certificate_file, client_key_file=client_key_file)
    services = LocalServices(port=port, server=server, say=typer.echo)
    services.run(has_demo=demo, opens_browser=open_browser)
