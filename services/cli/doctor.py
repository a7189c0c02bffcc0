"""`kernalyse doctor`: what this machine has and lacks."""

from __future__ import annotations

import typer

from services.cli.options import JsonFlag


def doctor(json_output: JsonFlag = False) -> None:
    """Say what this machine has for profiling, and the remedy for what it lacks. Status 1: no device can run kernels."""
    from services.cli.machine_checks import can_run_kernels, check_machine

    checks = check_machine()
    if json_output:
        import dataclasses
        import json

        typer.echo(json.dumps([dataclasses.asdict(check) for check in checks], indent=2))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            typer.echo(f"{check.state:<10}  {check.name:<{width}}  {check.found}")
            if check.remedy:
                typer.echo(f"{'':<10}  {'':<{width}}  {check.remedy}")
    if not can_run_kernels(checks):
        raise typer.Exit(1)
