"""The page of one message."""

from __future__ import annotations

import json

from delayedq.models import Message
from delayedq.store.protocol import GiveBack
from tests.admin.given import MESSAGES, do, offer, run, text_of

URL = f"{MESSAGES}{{}}/change/"
FAILED = {
    "attempt": 1,
    "failed_at": "2026-03-08T06:59:30+00:00",
    "seconds": 1.5,
    "worker": "host:7",
    "exception": "builtins.ValueError",
    "message": "no such flight",
    "traceback": "Traceback (most recent call last): …",
}


def test_the_page_shows_the_message(operator, store):
    id_ = offer(
        store,
        "UA1545",
        '{"args":["ann"],"kwargs":{"subject":"Hi"}}',
        seconds=7_250,
        kind="tests.app.tasks.send",
        metadata='{"team":"gate"}',
        priority=3,
        max_attempts=8,
    )
    text = text_of(operator.get(URL.format(id_)))
    for part in (
        "scheduled",
        "send tests. app. tasks",
        "UA1545",
        "mail, priority 3",
        "in 2 h",
        "0 of 8",
        'to "ann"',
        'subject "Hi"',
        '"team": "gate"',
        "Why is it not running?",
        "It is due in 2 h",
    ):
        assert part in text


def test_its_attempts_are_in_its_timeline(operator, store):
    id_ = offer(store, "a", max_attempts=3)
    back = GiveBack(run(store), charged=True, started=1.0, delay=0.0, errors=json.dumps([FAILED, "nonsense", {}]))
    store.settle([back], "worker-1")
    run(store)

    page = operator.get(URL.format(id_))

    text = text_of(page)
    assert "attempt 1 failed after 1.5 s on host:7: builtins.ValueError: no such flight" in text
    assert "Traceback (most recent call last): …" in text
    assert "attempt 2 runs on worker-1; its lease ends unless renewed" in text
    assert page.content.decode().count('class="dq-failure"') == 1
    events = page.context["events"]
    assert events == sorted(events, key=lambda event: event.at)


def test_unreadable_errors_are_left_out(operator, store):
    id_ = offer(store, "a")
    for errors in (
        '[{"failed_at": "2026-01-01T00:00:00+00:00", "seconds": 1e300}]',
        "{",
        "7",
        "[7]",
        '[{"failed_at": 7}]',
        '[{"failed_at": "2026-01-01"}]',
        "[" * 5_000,
    ):
        Message.objects.update(errors=errors)
        assert operator.get(URL.format(id_)).status_code == 200


def test_a_tick_links_to_its_schedule(operator, store):
    metadata = '{"cron":{"schedule":"night & day","nominal_at":"2026-01-01T00:00:00+00:00"}}'
    page = operator.get(URL.format(offer(store, "a", metadata=metadata)))
    assert "Its schedule: night & day" in text_of(page)
    assert "/cronschedule/schedule/?name=night%20%26%20day" in page.content.decode()


def test_a_tick_of_a_bare_queue_names_its_schedule_without_a_link(operator, store):
    metadata = '{"cron":{"schedule":"nightly","nominal_at":"2026-01-01T00:00:00+00:00"}}'
    page = operator.get(URL.format(offer(store, "a", queue="contacts|json", kind="contacts|json", metadata=metadata)))
    assert "Its schedule: nightly" in text_of(page)
    assert "schedule/?name=" not in page.content.decode()


def test_the_page_links_to_other_messages_with_the_key(operator, store):
    id_ = offer(store, "a&b")
    assert "?q=a%26b" in operator.get(URL.format(id_)).content.decode()


def test_one_message_is_changed_from_its_page(operator, store):
    id_ = offer(store, "a", seconds=3_600)
    assert 'value="run_now"' in operator.get(URL.format(id_)).content.decode()
    (note,) = do(operator, "run_now", id_)
    assert note.startswith("Run now: 1 message changed.")
