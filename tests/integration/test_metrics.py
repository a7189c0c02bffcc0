"""Figures for Prometheus, of real services: who may read them, and what they say."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kernalyse.services.core.identity import Scope, TokenFile
from kernalyse.services.core.metrics import device_metrics
from kernalyse.services.core.model import Telemetry
from tests.integration.analyzer_under_test import add_node, connected, eventually, in_state, serving
from tests.integration.profiler_node import behaving, calls_to, running_node
from tests.service_processes import ServiceProcesses, free_port


def scraped(port: int, token: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by its name and labels."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as response:
        text = response.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def refused(port: int, token: str) -> int:
    with pytest.raises(urllib.error.HTTPError) as caught:
        scraped(port, token)
    caught.value.close()
    return caught.value.code


async def test_an_analyzer_and_a_profiler_tell_of_runs_calls_and_nodes(tmp_path: Path) -> None:
    of_profiler, of_analyzer = free_port(), free_port()
    tokens = TokenFile(tmp_path / "tokens.json")
    (tmp_path / "n").mkdir()
    settings = {"metrics_address": f"127.0.0.1:{of_analyzer}", "tokens_file": tmp_path / "tokens.json"}
    with running_node(tmp_path / "n", stand_in=True, metrics_address=f"127.0.0.1:{of_profiler}") as node:
        async with serving(tmp_path, **settings) as analyzer, connected(analyzer.endpoint) as stub, calls_to(node) as calls:
            await add_node(stub, node.endpoint)
            run = await calls.start(behaving("succeed"))
            await in_state(stub, run.run_id, run.state.__class__.SUCCEEDED)
            token = tokens.issue("prometheus", Scope.READ)[1]

            async def told() -> bool:
                found = await asyncio.to_thread(scraped, of_analyzer, token)
                is_stored = found[("kernalyse_analyzer_stored_bytes", ())] > 0  # a moment after its end
                return is_stored and found[("kernalyse_analyzer_runs", (("state", "ended"),))] == 1

            await eventually(told)
            found = await asyncio.to_thread(scraped, of_analyzer, token)
            assert found[("kernalyse_analyzer_nodes", (("health", "serving"),))] == 1
            assert found[("kernalyse_analyzer_rpc_duration_seconds_count", (("code", "OK"), ("method", "AddNode")))] == 1
            assert found[("kernalyse_analyzer_event_lag_seconds", (("node", node.endpoint.address),))] >= 0
            assert await asyncio.to_thread(refused, of_analyzer, "wrong") == 401
            assert await asyncio.to_thread(refused, of_analyzer, tokens.issue("node", Scope.JOIN)[1]) == 401
            of_node = await asyncio.to_thread(scraped, of_profiler, node.endpoint.token)
            assert of_node[("kernalyse_profiler_runs", (("state", "running"),))] == 0
            assert of_node[("kernalyse_profiler_storage_problem", ())] == 0
            assert of_node[("kernalyse_profiler_rpc_duration_seconds_count", (("code", "OK"), ("method", "StartRun")))] == 1


def test_a_dashboard_tells_of_its_tabs(private_directories: Path, tmp_path: Path) -> None:
    port, services = free_port(), ServiceProcesses(tmp_path)
    try:
        ui = services.start("ui", "--metrics-address", f"127.0.0.1:{port}")
        assert scraped(port, ui.token)[("kernalyse_ui_tabs", ())] == 0
        assert refused(port, "") == 401
    finally:
        services.stop_all()


def test_devices_have_the_names_of_opentelemetry_and_what_is_unknown_is_left_out() -> None:
    reading = Telemetry(1, "cuda:0", utilization_ratio=0.5, power_watts=312.0)
    found = {
        sample.name: (sample.labels, sample.value)
        for family in device_metrics([("gpu1", "NVIDIA H100", reading)])
        for sample in family.samples
    }
    labels = {"host_name": "gpu1", "hw_id": "cuda:0", "hw_name": "NVIDIA H100"}
    assert found == {"hw_gpu_utilization_ratio": (labels, 0.5), "hw_gpu_power_watts": (labels, 312.0)}
