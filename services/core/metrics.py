"""Figures of a running service for Prometheus: an HTTP address of its own, behind a token with scope read.

Names follow Prometheus' conventions (base units, `_total`), those of devices OpenTelemetry's hw.gpu.* in Prometheus' spelling.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Histogram, make_wsgi_app
from prometheus_client.core import GaugeMetricFamily, Metric

from kernalyse.channel import is_local
from kernalyse.services.core.errors import InvalidSettingError
from kernalyse.services.core.model import Telemetry

RPC_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
POLL_S: Final = 0.2
COLLECT_TIMEOUT_S: Final = 5.0

logger = logging.getLogger(__name__)


class Metrics:
    """The figures of one service.

    Args:
        service: its name, part of what every figure is called.
    """

    def __init__(self, service: str) -> None:
        self._service = service
        self._collectors: list[Callable[[], Iterable[Metric]]] = []
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self.rpc_duration = Histogram(
            f"kernalyse_{service}_rpc_duration_seconds",
            "From a call's arrival to its last response.",
            ("method", "code"),
            buckets=RPC_BUCKETS_S,
            registry=self.registry,
        )

    def add_blocking(self, collect: Callable[[], Iterable[Metric]]) -> None:
        """Ask for further figures whenever somebody reads them. collect: called on the reader's thread."""
        self._collectors.append(collect)

    def add(self, collect: Callable[[], Iterable[Metric]]) -> None:
        """The same for figures of what one loop alone changes.

        Args:
            collect: called on the loop that runs now, while the reader's thread waits.
        """
        loop = asyncio.get_running_loop()

        async def collected() -> tuple[Metric, ...]:
            return tuple(collect())

        self._collectors.append(lambda: asyncio.run_coroutine_threadsafe(collected(), loop).result(COLLECT_TIMEOUT_S))

    def collect(self) -> Iterator[Metric]:
        """Yield the figures of now; a part that fails is logged and left out."""
        for collect in tuple(self._collectors):
            try:
                yield from tuple(collect())
            except Exception:
                logger.exception("Figures of the %s are left out", self._service)

    def gauge(self, name: str, meaning: str, value: float) -> GaugeMetricFamily:
        """Return a figure of the service."""
        return GaugeMetricFamily(f"kernalyse_{self._service}_{name}", meaning, value=value)

    def gauges(self, name: str, meaning: str, label: str, values: Iterable[tuple[str, float]]) -> GaugeMetricFamily:
        """Return a figure for each value of a label."""
        family = GaugeMetricFamily(f"kernalyse_{self._service}_{name}", meaning, labels=(label,))
        for key, value in values:
            family.add_metric((key,), value)
        return family


def device_metrics(readings: Iterable[tuple[str, str, Telemetry]]) -> Iterator[Metric]:
    """Yield figures of devices, as OpenTelemetry's conventions for hardware name them.

    Args:
        readings: name of the node, name of the device, and its newest reading.
    """
    figures: dict[str, tuple[str, Callable[[Telemetry], float | None]]] = {
        "hw_gpu_utilization_ratio": ("Fraction of time in which a kernel ran.", lambda reading: reading.utilization_ratio),
        "hw_gpu_memory_usage_bytes": ("Device memory in use.", lambda reading: reading.memory_used_bytes),
        "hw_gpu_memory_limit_bytes": ("Device memory.", lambda reading: reading.memory_total_bytes),
        "hw_gpu_clock_hertz": ("Clock of the multiprocessors.", lambda reading: reading.clock_hz),
        "hw_gpu_temperature_celsius": ("Temperature.", lambda reading: reading.temperature_celsius),
        "hw_gpu_power_watts": ("Power drawn.", lambda reading: reading.power_watts),
    }
    listed = list(readings)
    for name, (meaning, value_of) in figures.items():
        family = GaugeMetricFamily(name, meaning, labels=("host_name", "hw_id", "hw_name"))
        for host, device_name, reading in listed:
            value = value_of(reading)
            if value is not None:
                family.add_metric((host, reading.device_id or "", device_name), value)
        yield family
    errors = GaugeMetricFamily(
        "hw_errors", "Errors that the device's driver counts.", labels=("host_name", "hw_id", "hw_name", "error_type")
    )
    for host, device_name, reading in listed:
        for count in reading.error_counts:
            errors.add_metric((host, reading.device_id or "", device_name, count.name), count.count)
    yield errors


# ---------------------------------------------------------------- the HTTP address


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: Prometheus asks every few seconds."""


@contextmanager
def served(
    address: str,
    metrics: Metrics,
    is_allowed: Callable[[str], bool],
    certificate: tuple[Path | None, Path | None] = (None, None),
    *,
    is_insecure_allowed: bool = False,
) -> Iterator[str]:
    """Serve the figures at /metrics while the block runs, and yield the real address.

    Args:
        address: host:port; empty: they are served nowhere.
        is_allowed: whether the holder of a token may read them.
        certificate: files of certificate and key; None: no TLS.
        is_insecure_allowed: other machines may reach them without TLS.

    Raises:
        InvalidSettingError: the address cannot be used, or is reachable from elsewhere without TLS.
    """
    if not address:
        yield ""
        return
    if certificate[0] is None and not is_local(address) and not is_insecure_allowed:
        raise InvalidSettingError(
            f"metrics_address {address}",
            found="an address that other machines can reach, without TLS",
            expected="loopback, or a certificate",
            remedy="Set certificate and key, or say --insecure to send tokens in the clear.",
        )
    application = make_wsgi_app(metrics.registry)

    def answer(environ: dict[str, Any], start_response: Any) -> Sequence[bytes]:
        scheme, _, token = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
        if environ["PATH_INFO"] != "/metrics":
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"Figures are at /metrics.\n"]
        if scheme.lower() != "bearer" or not is_allowed(token.strip()):
            start_response("401 Unauthorized", [("Content-Type", "text/plain"), ("WWW-Authenticate", "Bearer")])
            return [b"Send a token with scope read: Authorization: Bearer TOKEN\n"]
        found: Sequence[bytes] = application(environ, start_response)
        return found

    host, _, port = address.rpartition(":")
    try:
        server = make_server(host.strip("[]"), int(port), answer, server_class=_Server, handler_class=_Handler)
    except (OSError, ValueError, OverflowError) as error:
        raise InvalidSettingError(
            f"metrics_address {address}", found=str(error), expected="host:port of this machine that is free", remedy="Choose another."
        ) from error
    certificate_file, key_file = certificate
    if certificate_file is not None and key_file is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate_file, key_file)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(POLL_S,), name="metrics", daemon=True)
    thread.start()
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
