"""Traces for OpenTelemetry: a span where a message is made, and one for each attempt, linked to it. Extra `otel`.

    DELAYEDQ = {"METADATA_FROM": ["delayedq.tracing.made"], "AROUND_ATTEMPTS": ["delayedq.tracing.attempt"]}

The context travels in the metadata of the message, as the global propagator writes it (`traceparent`). Names and
attributes are those of the semantic conventions for messaging.
"""

from __future__ import annotations

from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any

from django.dispatch import receiver

from delayedq.conf import ExtraMissing
from delayedq.exceptions import Fail, Steering
from delayedq.extras import told
from delayedq.results import masked_trace
from delayedq.signals import worker_stopped
from delayedq.tasks import current_attempt

try:
    from opentelemetry import propagate, trace
    from opentelemetry.trace import Link, NonRecordingSpan, SpanKind, Status, StatusCode
except ImportError as error:
    raise ExtraMissing(f"Traces need opentelemetry-api. {told(error, 'otel')}") from error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.trace import Span

    from delayedq.tasks import Task
    from delayedq.worker.attempt import Attempt

#: Seconds that a worker process which ends has to hand over its last spans.
LAST_EXPORT = 2.0

_tracer = trace.get_tracer("delayedq")


@receiver(worker_stopped)
def _hand_over(**_: Any) -> None:
    """A worker process ends at once, and not as Python ends: what waits for the next export would be lost.

    An exporter that nobody answers takes longer than that; the process does not wait for it.
    """
    export = getattr(trace.get_tracer_provider(), "force_flush", None)
    if export is not None:
        thread = Thread(target=export, name="delayedq-spans", daemon=True)
        thread.start()
        thread.join(LAST_EXPORT)


def made(task: Task[..., Any]) -> dict[str, str]:
    """The metadata of a message: the context of a span that says that it was made.

    Follow-ups are made after the attempt: its span has ended, and is their parent.
    """
    carrier: dict[str, str] = {}
    attempt, parent = current_attempt.get(), None
    if attempt is not None and attempt.span is not None and not trace.get_current_span().get_span_context().is_valid:
        parent = trace.set_span_in_context(NonRecordingSpan(attempt.span))
    attributes = _attributes("create", "create", task.queue_name, task.module_path)
    name = f"create {task.queue_name}"
    with _tracer.start_as_current_span(name, parent, kind=SpanKind.PRODUCER, attributes=attributes):
        propagate.inject(carrier)
    return carrier


@contextmanager
def attempt(message: Attempt) -> Iterator[None]:
    """A span around an attempt: a trace of its own, linked to the span in which the message was made."""
    context = propagate.extract(message.metadata)
    origin = trace.get_current_span(context).get_span_context()
    attributes = _attributes("process", "process", message.queue, message.kind) | {
        "messaging.message.id": str(message.id),
        "messaging.message.body.size": len(message.claimed.payload.encode()),
        "delayedq.attempt": message.attempt,
    }
    with _tracer.start_as_current_span(
        f"process {message.queue}",
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=[Link(origin)] if origin.is_valid else [],
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        message.span = span.get_span_context()
        try:
            yield
        except BaseException as error:
            _record(span, error, message)
            raise


def _record(span: Span, error: BaseException, message: Attempt) -> None:
    """Retry, Snooze and Cancel are no errors. What is said of a sensitive task might have its arguments."""
    if isinstance(error, Steering) and not isinstance(error, Fail):
        span.set_attribute("delayedq.asked", type(error).__name__)
        return
    span.set_attribute("error.type", type(error).__qualname__)
    if masked := masked_trace(message.claimed, error):
        span.add_event("exception", {"exception.type": type(error).__qualname__, "exception.stacktrace": masked})
        span.set_status(Status(StatusCode.ERROR))
        return
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, str(error)))


def _attributes(operation: str, kind: str, queue: str, task: str) -> dict[str, Any]:
    return {
        "messaging.system": "delayedq",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
        "delayedq.task": task,
    }
