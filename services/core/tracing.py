"""Spans of what services, commands and workers do, exported by OpenTelemetry where an endpoint is set.

A trace follows a run: the call that starts it, the services on the way, its worker, and how the analyzer collects and compacts it. The
context travels whether anything is exported or not (`kernalyse.trace_context`), so that services that export join those that do not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from kernalyse.services.core.errors import InvalidSettingError
from kernalyse.trace_context import HEADER, carried, current_traceparent

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

EXPORT_TIMEOUT_S: Final = 2.0
"""For one batch. A process that ends waits for it at most as long: a collector that is away must not hold up a run."""

NO_ATTRIBUTES: Final[Mapping[str, str]] = {}


class _Export:
    """Where spans of this process go. tracer: None: nowhere."""

    tracer: Tracer | None = None


@contextmanager
def exported(service: str, endpoint: str, attributes: Mapping[str, str] = NO_ATTRIBUTES) -> Iterator[None]:
    """Export the spans of this process while the block runs.

    Args:
        service: part of the name under which they are shown.
        endpoint: URL of a collector that takes OTLP over gRPC; empty: nothing is exported, and nothing imported.
        attributes: of the process, for each of its spans.

    Raises:
        InvalidSettingError: OpenTelemetry is not installed.
    """
    if not endpoint:
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise InvalidSettingError(
            f"otel_endpoint {endpoint}",
            found=f"no Python module {error.name}",
            expected="OpenTelemetry's SDK and its exporter",
            remedy="Install it with: pip install 'kernalyse[otel]', or leave the setting empty.",
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": f"kernalyse-{service}", **attributes}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)))
    _Export.tracer = provider.get_tracer("kernalyse")
    try:
        yield
    finally:
        _Export.tracer = None
        provider.shutdown()


@contextmanager
def span(
    name: str, attributes: Mapping[str, str] = NO_ATTRIBUTES, *, parent: str | None = None, begin_unix_ns: int | None = None
) -> Iterator[None]:
    """Make the block a span; calls within it carry it on. Without an exporter they carry on the parent.

    Args:
        parent: traceparent of the span that it is part of; empty: of none; None: of the one around.
        begin_unix_ns: when it began, if that was earlier than now.
    """
    outer = current_traceparent() if parent is None else parent
    if _Export.tracer is None:
        with carried(outer):
            yield
        return
    from opentelemetry.trace import Status, StatusCode

    begun = _Export.tracer.start_span(
        name,
        context=_context_of(outer),
        attributes=dict(attributes),
        start_time=begin_unix_ns or time.time_ns(),
        record_exception=False,
        set_status_on_exception=False,
    )
    try:
        with carried(_traceparent_of(begun)):
            yield
    except Exception as error:
        begun.set_status(Status(StatusCode.ERROR, str(error)))
        raise
    finally:
        begun.end()


def _context_of(traceparent: str) -> Any:
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({HEADER: traceparent}, context=Context())


def _traceparent_of(begun: Span) -> str:
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, context=set_span_in_context(begun))
    return carrier.get(HEADER, "")
