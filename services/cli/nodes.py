"""The commands `kernalyse nodes`, `kernalyse devices` and `kernalyse doctor`: machines that run kernels, and what they have."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kernalyse.services.cli.options import JsonFlag, Server, with_server_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernalyse.services.cli.analyzer_client import AnalyzerClient
    from kernalyse.services.core.model import NodeStatus, NodeTelemetry

CONNECTING_S: Final = 5.0
CONNECTING_POLL_S: Final = 0.2

AddressArgument = Annotated[str, typer.Argument(metavar="ADDRESS", help="host:port or unix:PATH of a profiler.")]


@with_server_options
def list_nodes(
    json_output: JsonFlag = False,
    *,
    server: Server,
) -> None:
    """List nodes, reachable or not."""
    from kernalyse.services.cli.session import analyzer_session

    with analyzer_session(server, with_profiler=False) as client:
        found = client.nodes()
    if json_output:
        typer.echo(json.dumps([_node_row(node) for node in found], indent=2))
    elif not found:
        typer.echo("No nodes yet. Have them join with a token: kernalyse nodes join-token")
        typer.echo("Or add one: kernalyse nodes add HOST:PORT --node-token-file FILE --node-ca-file FILE")
    else:
        _print_rows([_node_row(node) for node in found])


@with_server_options
def add_node(
    address: AddressArgument,
    node_token_file: Annotated[Path, typer.Option("--node-token-file", help="File with the profiler's token.")],
    node_ca_file: Annotated[Path | None, typer.Option("--node-ca-file", help="PEM CA certificate of a profiler that serves TLS.")] = None,
    node_client_certificate_file: Annotated[
        Path | None,
        typer.Option(
            "--node-client-certificate-file",
            help="PEM certificate that the analyzer shows to a profiler that asks for one (client_ca_file).",
        ),
    ] = None,
    node_client_key_file: Annotated[
        Path | None, typer.Option("--node-client-key-file", help="PEM key of --node-client-certificate-file.")
    ] = None,
    *,
    server: Server,
) -> None:
    """Collect from a profiler from now on."""
    from kernalyse.channel import Endpoint
    from kernalyse.services.cli.session import analyzer_session, read_optional_file, read_token

    node = Endpoint(
        address,
        read_token(node_token_file),
        read_optional_file(node_ca_file, "--node-ca-file"),
        read_optional_file(node_client_certificate_file, "--node-client-certificate-file"),
        read_optional_file(node_client_key_file, "--node-client-key-file"),
    )
    with analyzer_session(server, with_profiler=False) as client:
        added = client.add_node(node)
    typer.echo(f"{added.address} {added.health}{f': {added.problem}' if added.problem else ''}")


@with_server_options
def join_token(
    uses: Annotated[int, typer.Option("--uses", min=0, help="How many profilers may join with it; 0: any number.")] = 1,
    hours: Annotated[float, typer.Option("--hours", min=0, help="Until it ends; 0: it never does.")] = 24.0,
    *,
    server: Server,
) -> None:
    """Make a join token and print it: profilers that have it come by themselves."""
    from kernalyse.services.cli.session import analyzer_session

    with analyzer_session(server, with_profiler=False) as client:
        token, token_id = client.create_join_token(uses, hours * 3600)
    count = f"{uses} profiler{'' if uses == 1 else 's'}" if uses else "any number of profilers"
    typer.echo(f"Join token {token_id} for {count}, {f'for {hours:g} h' if hours else 'without end'}. It is shown only now.", err=True)
    typer.echo("On a node: kernalyse profiler --join ANALYZER_HOST:PORT --join-token-file FILE", err=True)
    typer.echo(token)


@with_server_options
def remove_node(
    address: AddressArgument,
    *,
    server: Server,
) -> None:
    """Stop collecting from a profiler; its runs stay."""
    from kernalyse.services.cli.session import analyzer_session

    with analyzer_session(server, with_profiler=False) as client:
        client.remove_node(address)


@with_server_options
def devices(
    json_output: JsonFlag = False,
    *,
    server: Server,
) -> None:
    """List the devices of all nodes, and who else uses them."""
    from kernalyse.services.cli.session import analyzer_session

    with analyzer_session(server) as client:
        found = client.nodes()
        telemetry = client.newest_telemetry(found)
    rows = [row for node in found for row in _device_rows(node, telemetry)]
    if json_output:
        typer.echo(json.dumps(rows, indent=2))
        return
    if rows:
        _print_rows(rows)
    else:
        typer.echo("No devices. kernalyse doctor says what this machine lacks.")
    for node in found:
        for notice in () if node.node is None else node.node.notices:
            typer.echo(f"{node.node.hostname if node.node else node.address}: {notice}", err=True)


def known_nodes(client: AnalyzerClient) -> Sequence[NodeStatus]:
    """Return the nodes, once it is known of each whether it answers, or after a few seconds: the analyzer may just have started."""
    from kernalyse.services.core.model import NodeHealth

    end_s = time.monotonic() + CONNECTING_S
    found = client.nodes()
    while any(status.health is NodeHealth.CONNECTING for status in found) and time.monotonic() < end_s:
        time.sleep(CONNECTING_POLL_S)
        found = client.nodes()
    return found


@with_server_options
def doctor(
    json_output: JsonFlag = False,
    fleet: Annotated[bool, typer.Option("--fleet", help="Of all nodes of the analyzer instead of this machine.")] = False,
    *,
    server: Server,
) -> None:
    """Say what this machine has for profiling, and the remedy for what it lacks. Status 1: no device can run kernels.

    With --fleet: what is wrong with the nodes of the analyzer. Status 1: one is gone, cannot store, or has no device.
    """
    from kernalyse.services.cli.doctor import can_run_kernels, check_fleet, check_machine, is_fleet_whole

    if fleet:
        from kernalyse.services.cli.session import analyzer_session

        with analyzer_session(server, with_profiler=False) as client:
            checks = check_fleet(known_nodes(client))
    else:
        checks = check_machine()
    if json_output:
        import dataclasses

        typer.echo(json.dumps([dataclasses.asdict(check) for check in checks], indent=2))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            typer.echo(f"{check.state:<10}  {check.name:<{width}}  {check.found}")
            if check.remedy:
                typer.echo(f"{'':<10}  {'':<{width}}  {check.remedy}")
    if not (is_fleet_whole(checks) if fleet else can_run_kernels(checks)):
        raise typer.Exit(1)


def _node_row(status: NodeStatus) -> dict[str, object]:
    node = status.node
    return {
        "address": status.address,
        "health": str(status.health),
        "node_id": None if node is None else node.node_id,
        "hostname": None if node is None else node.hostname,
        "version": None if node is None else node.version,
        "device_count": None if node is None else len(node.devices),
        "role": None if node is None else "observes" if status.observes_only else "measures",
        "origin": str(status.origin).lower(),
        "gone_since": None if status.unreachable_since_time is None else status.unreachable_since_time.isoformat(timespec="seconds"),
        "problem": status.collecting_problem or status.version_note or None,
    }


def _device_rows(status: NodeStatus, telemetry: Sequence[NodeTelemetry]) -> list[dict[str, object]]:
    from kernalyse.services.core.formatting import device_use

    if status.node is None:
        return []
    node_id = status.node.node_id
    users = {reading.telemetry.device_id: reading.telemetry.other_processes for reading in telemetry if reading.node_id == node_id}
    return [
        {
            "hostname": status.node.hostname,
            "device_id": device.device_id,
            "name": device.name,
            "health": str(status.health),
            "use": device_use(users.get(device.device_id)),
            "kind": str(device.kind),
            "backends": ", ".join(backend.lower() for backend in device.backends),
            "memory_bytes": device.memory_bytes,
            "compute_capability": device.compute_capability,
            "compute_unit_count": device.compute_unit_count,
            "driver_version": device.driver_version,
            "runtime": device.runtime,
        }
        for device in status.node.devices
    ]


def _print_rows(rows: list[dict[str, object]]) -> None:
    from kernalyse.services.cli.output import TerminalTable, console
    from kernalyse.services.core.formatting import UNKNOWN, size

    def shown(name: str, value: object) -> str:
        return UNKNOWN if value is None else size(value) if name.endswith("_bytes") and isinstance(value, int) else str(value)

    headings = [name.removesuffix("_bytes").replace("_", " ") for name in rows[0]]
    unwrapped = ("device id", "address", "memory")
    console().print(TerminalTable(headings, ([shown(*item) for item in row.items()] for row in rows), unwrapped=unwrapped))
