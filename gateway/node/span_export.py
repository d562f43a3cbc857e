"""The way of traces to an OpenTelemetry collector, over OTLP/gRPC, by the SDK's batch thread.

A shell. It needs the extra `otel`: only a node with `otel.endpoint` imports it. The SDK reads the OTEL_*
variables: service name, resource attributes, headers, certificates, sizes of queue and batch.

Invariants
  - `emit` does not wait. When the queue (`OTEL_BSP_MAX_QUEUE_SIZE`) has no room for the spans of a block, as
    behind a collector that is away or slow, it drops them all. The SDK would drop others one by one, and log
    each.
  - Such a time is one line of the log at its begin and one at its end, with at least `quiet_seconds` between
    two of them; the SDK's own lines are not written.

Source: docs/operations.md, "Trace blocks".
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from typing import Final

from sluice import gateway
from sluice.gateway.errors import SettingError
from sluice.gateway.logs import fields
from sluice.gateway.pipeline.tracing import Span

try:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.environment_variables import OTEL_BSP_MAX_QUEUE_SIZE
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
except ImportError as error:
    raise SettingError(
        "otel.endpoint",
        got=f"no module {error.name}",
        expected="the extra: pip install 'sluice-gateway[otel]'",
        where="settings",
    ) from error

__all__ = ["SpanExport"]

log = logging.getLogger(__name__)

QUEUE_SPANS_MAX: Final = 2048
"""The SDK's default."""
CLOCK_STEP_NS: Final = 1_000_000
"""The clock of day has been set. Below it, all spans of a trace have the same offset, and so fit together."""
_SDK_LOGGER: Final = "opentelemetry"
_SCOPE = InstrumentationScope("sluice", gateway.__version__)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET = Status(StatusCode.UNSET)


class _Losses(logging.Handler):
    """Takes the SDK's log lines, and logs when spans begin and cease to be lost."""

    def __init__(self, endpoint: str, quiet_seconds: float) -> None:
        super().__init__(logging.WARNING)
        self._quiet_seconds = quiet_seconds
        self.is_over = False
        """Nothing is logged any more."""
        self._endpoint = endpoint
        self._reason = ""
        self._lost_at: float | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line of the SDK, such as the reason of a failed export."""
        if record.name.startswith(f"{_SDK_LOGGER}.sdk"):
            self.lost(record.getMessage())
        else:
            self._reason = record.getMessage()

    def lost(self, reason: str = "") -> None:
        """Note that spans are lost."""
        before, self._lost_at = self._lost_at, time.monotonic()
        if before is None and not self.is_over:
            extra = fields(endpoint=self._endpoint, got=reason or self._reason)
            log.warning("traces are lost: the collector does not take them", extra=extra)

    def exported(self) -> None:
        """Note that the collector has taken spans."""
        if self._lost_at is not None and time.monotonic() - self._lost_at > self._quiet_seconds:
            self._lost_at = None
            log.info("the collector takes traces again", extra=fields(endpoint=self._endpoint))


class _Exporter(OTLPSpanExporter):
    def __init__(self, endpoint: str, losses: _Losses) -> None:
        super().__init__(endpoint, insecure=not endpoint.startswith("https://"))
        self.taken_count = 0
        """Spans that have left the queue."""
        self._losses = losses

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans; in the batch thread."""
        self.taken_count += len(spans)
        result = super().export(spans)
        if result is SpanExportResult.SUCCESS:
            self._losses.exported()
        else:
            self._losses.lost()
        return result


class SpanExport:
    """Sends the spans of one node.

    Args:
        endpoint: the URL of the collector.
        instance: the id of this run of the node.
        node: its gRPC address, for people.
        quiet_seconds: how long spans have to arrive before the log says that they do again.

    Raises:
        SettingError: an OTEL_* variable is wrong.
    """

    def __init__(self, endpoint: str, instance: str, node: str, quiet_seconds: float) -> None:
        own = {
            "service.name": "sluice",
            "service.version": gateway.__version__,
            "service.instance.id": instance,
            "sluice.node": node,
        }
        self._queued_count = 0
        self._offset_ns = 0
        self._losses = _Losses(endpoint, quiet_seconds)
        try:
            self._resource = Resource.create({**own, **OTELResourceDetector().detect().attributes})
            self._exporter = _Exporter(endpoint, self._losses)
            self._queue_max = int(os.environ.get(OTEL_BSP_MAX_QUEUE_SIZE, QUEUE_SPANS_MAX))
            self._batches = BatchSpanProcessor(self._exporter, self._queue_max)
        except Exception as error:  # the SDK has no error of its own for a wrong variable
            raise SettingError(
                "otel.endpoint",
                got=f"{error}",
                expected="OTEL_* variables that the SDK can use",
                where="environment",
            ) from error
        logger = logging.getLogger(_SDK_LOGGER)
        logger.addHandler(self._losses)
        logger.propagate = False

    def emit(self, spans: Sequence[Span]) -> None:
        """Queue the finished spans of a block."""
        if self._queued_count + len(spans) - self._exporter.taken_count > self._queue_max:
            self._losses.lost(f"the queue has no room: {self._queue_max} spans")
            return
        self._queued_count += len(spans)
        offset_ns = time.time_ns() - time.monotonic_ns()
        if abs(offset_ns - self._offset_ns) > CLOCK_STEP_NS:
            self._offset_ns = offset_ns
        offset_ns = self._offset_ns
        trace_id = spans[0].trace_id
        contexts = {span.span_id: SpanContext(trace_id, span.span_id, False, _SAMPLED) for span in spans}
        for span in spans:
            parent = None
            if (parent_id := span.parent_id) is not None:  # that of a failed attempt comes later
                parent = contexts.get(parent_id) or SpanContext(trace_id, parent_id, False, _SAMPLED)
            self._batches.on_end(
                ReadableSpan(
                    span.name,
                    contexts[span.span_id],
                    parent,
                    self._resource,
                    span.attributes,
                    [Event(name, attributes, at_ns + offset_ns) for name, at_ns, attributes in span.events],
                    kind=SpanKind.SERVER if parent is None else SpanKind.INTERNAL,
                    status=_UNSET if span.error is None else Status(StatusCode.ERROR, span.error),
                    start_time=span.begun_ns + offset_ns,
                    end_time=span.ended_ns + offset_ns,
                    instrumentation_scope=_SCOPE,
                )
            )

    async def close(self, grace_seconds: float) -> None:
        """Send what is queued, at most for `grace_seconds`."""
        flushing = asyncio.ensure_future(asyncio.to_thread(self._batches.shutdown))
        if not (await asyncio.wait({flushing}, timeout=grace_seconds))[0]:
            self._losses.lost("no answer while the node stopped")
            self._exporter.shutdown()  # this ends the call under way, and so the batch thread
        self._losses.is_over = True  # the SDK's shutdown logs
        await flushing
        logger = logging.getLogger(_SDK_LOGGER)
        logger.removeHandler(self._losses)
        logger.propagate = not logger.handlers
