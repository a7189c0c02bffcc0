"""The command `kernalyse`. Each command imports what it needs when it runs, so that help is printed at once."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Final, NoReturn

import typer

from kernalyse.services.cli import (
    access,
    bench,
    ceilings,
    compare,
    export,
    fleet,
    history,
    imports,
    model,
    model_dashboards,
    nodes,
    profile,
    rerun,
    runs,
    serve,
    show,
    store,
)
from kernalyse.services.core.errors import KernalyseError, UsageError

MAX_QUOTED: Final = 100  # letters

EXTRA_OF_MODULE: Final = {
    "bokeh": "ui",
    "distributed": "cluster",
    "holoviews": "ui",
    "matplotlib": "ui",
    "numba": "analyzer",
    "numpy": "profiler",
    "opentelemetry": "otel",
    "panel": "ui",
    "polars": "analyzer",
    "psutil": "profiler",
    "sqlalchemy": "analyzer",
    "tree_sitter": "profiler",
}

CONTEXT_SETTINGS: Final = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="kernalyse",
    help="Profiles GPU kernels on this and other machines and shows how far each is from what the hardware can do.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=CONTEXT_SETTINGS,
)
app.command()(serve.up)
app.command()(bench.bench)
app.command()(model.model)
app.command()(model_dashboards.perf_dashboard)
app.command()(model_dashboards.perf_comparison)
app.command(context_settings=profile.CONTEXT_SETTINGS)(profile.profile)
app.command()(rerun.resume)
app.command()(rerun.rerun)
app.command()(ceilings.ceilings)
app.command()(runs.runs)
app.command()(runs.cancel)
app.command()(runs.annotate)
app.command()(runs.delete)
app.command()(show.show)
app.command()(compare.compare)
app.command()(history.history)
app.command()(export.export)
app.command()(imports.follow)
app.command()(export.report)
app.command("import")(imports.import_files)
app.command()(nodes.devices)
for serve_command in (serve.profiler, serve.analyzer, serve.ui):
    app.command(context_settings=serve.CONTEXT_SETTINGS, add_help_option=False)(serve_command)
app.command()(nodes.doctor)

store_app = typer.Typer(help="The store of this machine's analyzer.", no_args_is_help=True)
store_app.command("verify")(store.verify_store)
store_app.command("backup")(store.backup_store)
store_app.command("restore")(store.restore_store)
store_app.command("gc")(store.collect_garbage)
store_app.command("migrate")(store.migrate_store)
app.add_typer(store_app, name="store")
nodes_app = typer.Typer(help="Profilers that the analyzer collects from.", no_args_is_help=True)
nodes_app.command("list")(nodes.list_nodes)
nodes_app.command("add")(nodes.add_node)
nodes_app.command("remove")(nodes.remove_node)
nodes_app.command("join-token")(nodes.join_token)
app.add_typer(nodes_app, name="nodes")

fleet_app = typer.Typer(help="All devices of all nodes together.", no_args_is_help=True)
fleet_app.command("check")(fleet.check)
app.add_typer(fleet_app, name="fleet")

tokens_app = typer.Typer(help="Who may call the services of this machine, and what for.", no_args_is_help=True)
tokens_app.command("issue")(access.issue)
tokens_app.command("list")(access.list_tokens)
tokens_app.command("revoke")(access.revoke)
tokens_app.command("rotate")(access.rotate)
app.add_typer(tokens_app, name="tokens")
app.command()(access.audit)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from importlib.metadata import version

        typer.echo(f"kernalyse {version('kernalyse')}")
        raise typer.Exit


SERVICES: Final = ("up", "profiler", "analyzer", "ui")
"""Commands that last, and export traces by settings of their own."""

ENDPOINT_VARIABLE: Final = "KERNALYSE_OTEL_ENDPOINT"


@contextmanager
def _traced(command: str) -> Iterator[None]:
    """Make a command a span, of the trace that it was started in, where a variable says where to export it."""
    from kernalyse.services.core.tracing import exported, span
    from kernalyse.trace_context import environment_traceparent

    with exported("cli", os.environ.get(ENDPOINT_VARIABLE, "")), span(f"kernalyse {command}", parent=environment_traceparent()):
        yield


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Take the options that are common to all commands."""
    command = context.invoked_subcommand
    if command is not None and command not in SERVICES:
        context.with_resource(_traced(command))


def main() -> None:
    """Run the command and end the process: 0 success, 1 failure, 2 bad usage, 130 interrupted."""
    _run_and_exit(app)


def run_single_command(command: Callable[..., None], module_name: str, defaults: Mapping[str, object] | None = None) -> None:
    """Run one command as a separate program, `python -m MODULE_NAME`, and end the process as `main` does.

    Args:
        command: function of the command.
        module_name: shown in the help.
        defaults: values of parameters that replace the defaults of the command.
    """
    settings = {**CONTEXT_SETTINGS, "default_map": dict(defaults or {})}
    program = typer.Typer(pretty_exceptions_enable=False, context_settings=settings, add_completion=False)
    program.command()(command)
    _run_and_exit(partial(program, prog_name=f"python -m {module_name}"))


def _run_and_exit(program: Callable[[], object]) -> NoReturn:
    status = _run(program)
    if "grpc" in sys.modules:
        # Failed calls are in reference cycles. One that the interpreter frees at exit waits for a lock whose thread may have been stopped
        # by then, and the process would never end.
        gc.collect()
    sys.exit(status)


def _run(program: Callable[[], object]) -> str | int | None:
    """Run a program and return its exit status. A handled exception is dropped on return: its traceback would keep all frames alive."""
    try:
        program()
    except SystemExit as end:
        return end.code
    except UsageError as error:
        return _print_error(error.message, status=2)
    except KernalyseError as error:
        return _print_error(error.message, status=1)
    except KeyboardInterrupt:
        return _print_error("interrupted", status=130)
    except UnicodeEncodeError as error:  # an argument in another encoding: fine as a path, but not as text in a message
        usage_error = UsageError(f"text {error.object[:MAX_QUOTED]!r}", found="what is not UTF-8", expected="UTF-8", remedy="Convert it.")
        return _print_error(usage_error.message, status=2)
    except ModuleNotFoundError as error:
        return _print_error(_missing_module_message(error), status=1)
    except Exception as error:
        if os.environ.get("KERNALYSE_TRACEBACK"):
            raise
        return _print_error(
            f"internal error: {type(error).__name__}: {error}. Please report it; KERNALYSE_TRACEBACK=1 shows where it happened.", status=1
        )
    return 0


def _print_error(message: str, *, status: int) -> int:
    typer.echo(f"kernalyse: {message}", err=True)
    return status


def _missing_module_message(error: ModuleNotFoundError) -> str:
    module = (error.name or "").partition(".")[0]
    extra = EXTRA_OF_MODULE.get(module, "all")
    return f"the Python module {module} is missing on this machine. Install it with: pip install 'kernalyse[{extra}]'"


if __name__ == "__main__":
    main()
