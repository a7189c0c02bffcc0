"""The commands `kernalyse up`, `profiler`, `analyzer` and `ui`, which start the services of this machine, all three or one."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kernalyse.services.cli.options import ClientCertificateOption, ClientKeyOption, Server

if TYPE_CHECKING:
    from kernalyse.services.core.settings import AnalyzerSettings, ProfilerSettings, ServiceSettings, UiSettings

CONTEXT_SETTINGS: Final[dict[str, Any]] = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Typer passes all flags on, and `flag_parser` parses them when the command runs: help of other commands must not load the settings."""


def profiler(context: typer.Context) -> None:
    """Start the profiler service, which runs kernels on this machine."""
    from kernalyse.services.core.settings import ProfilerSettings

    def serve(settings: ProfilerSettings) -> Coroutine[Any, Any, None]:
        from kernalyse.services.profiler.server import serve as serve_profiler

        return serve_profiler(settings)

    run_service(ProfilerSettings, context.args, serve)


def analyzer(context: typer.Context) -> None:
    """Start the analyzer service, which collects and stores results."""
    from kernalyse.services.core.settings import AnalyzerSettings

    def serve(settings: AnalyzerSettings) -> Coroutine[Any, Any, None]:
        from kernalyse.services.analyzer.server import serve as serve_analyzer

        return serve_analyzer(settings)

    run_service(AnalyzerSettings, context.args, serve)


def ui(
    context: typer.Context,
    opens_browser: Annotated[bool, typer.Option("--open", help="Open it in a browser, with the token that it asks for once.")] = False,
) -> None:
    """Start the dashboard; --open opens it in a browser."""
    from kernalyse.services.core.settings import UiSettings

    def serve(settings: UiSettings) -> Coroutine[Any, Any, None]:
        from kernalyse.services.cli.local_services import open_dashboard
        from kernalyse.services.ui.app import serve as serve_ui

        return serve_ui(settings, partial(open_dashboard, settings, typer.echo) if opens_browser else None)

    run_service(UiSettings, context.args, serve)


def run_service(settings_class: type[Any], arguments: Sequence[str], serve: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    """Parse the flags, run the service and return when it has stopped.

    Args:
        settings_class: settings of the service.
        arguments: flags of the command line.
        serve: runs the service with its settings.
    """
    from kernalyse.services.cli.session import end_with_parent

    end_with_parent()
    flags = vars(flag_parser(settings_class).parse_args(arguments))
    settings = settings_class.load(**flags)
    import asyncio  # here, because every command loads this module and asyncio is slow to load

    from kernalyse.services.core.logs import begin_logs
    from kernalyse.services.core.tracing import exported

    node = getattr(settings, "node_name", "") or (socket.gethostname() if settings_class.section == "profiler" else "")
    begin_logs(settings_class.section, settings.log_level, is_json=settings.log_format == "json", node=node)
    with exported(settings_class.section, settings.otel_endpoint, {"host.name": node} if node else {}):
        asyncio.run(serve(settings))


def flag_parser(settings_class: type[ServiceSettings]) -> argparse.ArgumentParser:
    """Return a parser with one flag per setting, such as --address or --insecure / --no-insecure; None: not given.

    pydantic_settings' own parser is not used: it reads a value of a list as JSON or splits it at commas, and `--allowed-commands` takes
    patterns such as `[a-z]*` and whole command lines.
    """
    section = settings_class.section
    parser = argparse.ArgumentParser(
        prog=f"kernalyse {section}",
        description=f"{settings_class.__doc__} Flags win over environment variables KERNALYSE_{section.upper()}_NAME, these over the "
        f"table [{section}] of kernalyse.toml, this over the defaults."
        + (" --open opens the dashboard in a browser." if section == "ui" else ""),
    )
    for name, field in settings_class.model_fields.items():
        flag = f"--{name.replace('_', '-')}"
        if field.annotation is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=field.description)
        elif field.annotation == tuple[str, ...]:
            parser.add_argument(flag, action="append", metavar="VALUE", help=f"{field.description} May be repeated.")
        else:
            parser.add_argument(flag, metavar="VALUE", help=(field.description or "").replace("%", "%%"))
    return parser


def up(
    demo: Annotated[
        bool, typer.Option("--demo", help="Submit a demo sweep of about a minute; without an NVIDIA GPU, replay runs of an H200 too.")
    ] = False,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the dashboard in a browser.")] = False,
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65535, help="Port of the dashboard; 0 takes free ports for all three services."),
    ] = None,
    client_certificate_file: ClientCertificateOption = None,
    client_key_file: ClientKeyOption = None,
) -> None:
    """Start profiler, analyzer and dashboard on this machine and keep them running until Ctrl-C."""
    from kernalyse.services.cli.local_services import LocalServices, running_dashboard_url

    url = running_dashboard_url()
    if url is not None:
        typer.echo(f"kernalyse is already running on this machine: {url}")
        return
    server = Server(client_certificate_file=client_certificate_file, client_key_file=client_key_file)
    services = LocalServices(port=port, server=server, say=typer.echo)
    services.run(has_demo=demo, opens_browser=open_browser)
