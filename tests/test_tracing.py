"""Traces, by the SDK of OpenTelemetry: what a message makes of spans, and what it costs where nothing is configured."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from delayedq import hooks, tracing
from delayedq.exceptions import NotStorable
from delayedq.models import FinishedMessage, Message
from delayedq.testing import run_due
from delayedq.worker import executor
from tests.app import lifecycle, tasks
from tests.worker.attempts import playing, run

TRACED = {"METADATA_FROM": ["delayedq.tracing.made"], "AROUND_ATTEMPTS": ["delayedq.tracing.attempt"]}


@pytest.fixture
def spans(settings, monkeypatch):
    """All that ended."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_tracer", provider.get_tracer("delayedq"))
    settings.DELAYEDQ = TRACED
    return exporter.get_finished_spans


def by_name(spans):
    return {span.name: span for span in spans()}


def test_an_attempt_is_linked_to_where_its_message_was_made(store, spans):
    tasks.echo.enqueue("hello")
    metadata = Message.objects.get().metadata
    run_due()
    found = by_name(spans)
    made, ran = found["create default"], found["process default"]

    assert f"{made.context.span_id:016x}" in metadata
    assert (made.kind, ran.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert [link.context.span_id for link in ran.links] == [made.context.span_id]
    assert ran.context.trace_id != made.context.trace_id
    path = {
        "messaging.system": "delayedq",
        "messaging.destination.name": "default",
        "delayedq.task": tasks.echo.module_path,
    }
    assert made.attributes == path | {"messaging.operation.name": "create", "messaging.operation.type": "create"}
    assert ran.attributes == path | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "delayedq.attempt": 1,
        "messaging.message.id": str(FinishedMessage.objects.get().pk),
        "messaging.message.body.size": ran.attributes["messaging.message.body.size"],
    }
    assert ran.status.status_code is StatusCode.UNSET


def test_each_attempt_has_a_span_and_errors_are_recorded(store, spans):
    tasks.fail.enqueue("broken")
    run_due(raise_failures=False)
    ran = [span for span in spans() if span.kind is SpanKind.CONSUMER]

    assert [span.attributes["delayedq.attempt"] for span in ran] == list(range(1, len(ran) + 1))
    assert {span.status.status_code for span in ran} == {StatusCode.ERROR}
    assert ran[0].attributes["error.type"] == "ValueError"
    assert "broken" in ran[0].events[0].attributes["exception.message"]


def only_attempt(spans):
    (ran,) = [span for span in spans() if span.kind is SpanKind.CONSUMER]
    return ran


def unstorable():
    return object()


async def aunstorable():
    return object()


@pytest.mark.parametrize("body", [unstorable, aunstorable])
def test_a_result_that_can_not_be_stored_is_an_error_of_the_attempt(spans, body):
    ended = run(playing(body))
    ran = only_attempt(spans)

    assert isinstance(ended.error, NotStorable)
    assert (ran.status.status_code, ran.attributes["error.type"]) == (StatusCode.ERROR, "NotStorable")


def test_the_timeout_of_an_async_task_is_named(spans):
    async def forever():
        await asyncio.Event().wait()

    run(playing(forever, task=replace(tasks.aplay, timeout=timedelta(milliseconds=10))))
    assert only_attempt(spans).attributes["error.type"] == "TaskTimeout"


@pytest.mark.parametrize("body", [dict, unstorable])
def test_a_follow_up_belongs_to_the_attempt_that_it_follows(store, spans, body, monkeypatch):
    monkeypatch.setitem(tasks.bodies, "body", body)
    lifecycle.followed.using(max_attempts=1).enqueue("body")
    run_due(raise_failures=False)
    ran, followed = (span for span in spans() if span.kind is SpanKind.CONSUMER)
    made = [span for span in spans() if span.kind is SpanKind.PRODUCER][1]

    assert made.parent.span_id == ran.context.span_id
    assert [link.context.span_id for link in followed.links] == [made.context.span_id]


def test_what_is_masked_is_in_no_span(store, spans):
    tasks.pay.using(max_attempts=1).enqueue(7, "the secret")
    run_due(raise_failures=False)
    (ran,) = [span for span in spans() if span.kind is SpanKind.CONSUMER]

    assert ran.status.status_code is StatusCode.ERROR
    assert "the secret" not in ran.to_json()
    assert ran.attributes["error.type"] in ran.to_json()


def test_what_a_task_makes_belongs_to_its_attempt(store, spans):
    """And what a request makes to its span."""
    with tracing._tracer.start_as_current_span("a request") as request:
        tasks.echo.enqueue("hello")
    made = by_name(spans)["create default"]

    assert made.parent.span_id == request.context.span_id


def test_a_message_with_a_key_stays_what_it_was(store, spans):
    """Or the same offer, in another trace, would replace it."""
    first = tasks.echo.schedule_at(store.now(), "hello", key="a")
    again = tasks.echo.schedule_at(Message.objects.get().scheduled_at, "hello", key="a")

    assert (first.outcome, again.outcome) == ("created", "ignored")
    assert Message.objects.get().metadata is None


def test_a_hook_that_fails_changes_nothing(store, settings, caplog):
    @contextmanager
    def broken(message):
        yield
        raise RuntimeError("left badly")

    settings.DELAYEDQ = {
        "METADATA_FROM": [lambda task: {"a": 1}, lambda task: 1 / 0, lambda task: {"b": object()}],
        "AROUND_ATTEMPTS": [lambda message: 1 / 0, broken],
    }
    tasks.echo.enqueue("hello")
    assert Message.objects.get().metadata == '{"a": 1}' or Message.objects.get().metadata == '{"a":1}'
    run_due()

    assert FinishedMessage.objects.get().outcome == "succeeded"
    assert caplog.text.count("the message goes its way without it") == 4


def test_a_context_manager_hides_no_error(store, settings):
    class Hiding(nullcontext):
        def __exit__(self, *_):
            return True

    settings.DELAYEDQ = {"AROUND_ATTEMPTS": [lambda message: Hiding()]}
    tasks.fail.using(max_attempts=1).enqueue("broken")
    run_due(raise_failures=False)

    assert FinishedMessage.objects.get().outcome == "failed"


def test_where_nothing_is_configured_a_message_pays_less_than_a_microsecond(settings):
    """Both questions, as a message asks them: the best of five rounds."""
    settings.DELAYEDQ = {}

    def asked(rounds=20_000):
        began = time.perf_counter()
        for _ in range(rounds):
            hooks.enqueue_hooks()
            executor.attempt_hooks()
        return (time.perf_counter() - began) / rounds

    assert min(asked() for _ in range(5)) < 1e-6
    assert not trace.get_current_span().get_span_context().is_valid


@pytest.fixture
def drained(environment, tmp_path):
    """Runs workers until the queue is empty, in a process with a batching exporter; returns what that has got."""

    def run(**exporter):
        file = tmp_path / "spans"
        own = {"DJANGO_SETTINGS_MODULE": "tests.traced_settings", "SPANS": str(file), **exporter}
        command = [sys.executable, "-m", "django", "run_workers", "--drain", "--processes", "1"]
        done = subprocess.run(command, env=environment | own, capture_output=True, text=True, check=False, timeout=100)
        assert done.returncode == 0, done.stderr
        return file.read_text().split("\n") if file.exists() else []

    return run


@pytest.mark.slow
@pytest.mark.parametrize("alias", ["sqlite", "postgresql"], indirect=True)
def test_the_last_spans_of_a_process_are_exported_before_it_ends(store, drained):
    tasks.echo.enqueue_many([((number,), {}) for number in range(20)])
    assert drained().count("process default") == 20


@pytest.mark.slow
@pytest.mark.parametrize("exporter", ["hangs", "fails"])
@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_an_exporter_without_a_collector_holds_up_no_message_and_no_end(store, drained, exporter):
    tasks.echo.enqueue_many([((number,), {}) for number in range(2_000)])
    assert drained(EXPORT=exporter) == []
    assert FinishedMessage.objects.succeeded().count() == 2_000
