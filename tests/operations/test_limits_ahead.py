"""The forecast knows limits: what waits for one is not overdue, and what a rate limits ends no faster."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.test.utils import CaptureQueriesContext

from delayedq import Call, Rate, limits
from delayedq.limits import rules_for
from delayedq.limits.channels import Channels
from delayedq.operations import counting
from delayedq.operations.figures import Ahead, forecast
from tests.app import tasks

NOW = datetime(2026, 5, 20, 9, 37, 30, tzinfo=UTC)
REPORT, DELIVER, FORWARD = (one.module_path for one in (tasks.report, tasks.deliver, tasks.forward))
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
EARLIER = NOW - 5 * 60 * SECOND


def offer(task, number, *arguments, due=EARLIER):
    task.enqueue_many(Call(arguments, at=due) for _ in range(number))


def claim(store):
    rules = rules_for(lambda queue: True)
    return Channels.of(store.at(NOW)).claim(rules, 500, timedelta(minutes=1), "w:1").claimed


def held_back(found):
    return [(one.scope, one.channel, one.waiting, one.until) for one in found.limited.held_back]


def test_what_a_rate_limits_ends_no_faster(store):
    offer(tasks.report, 20, 7)
    assert len(claim(store)) == 2
    found = forecast(store, Ahead.DAY, NOW)
    assert held_back(found) == [(REPORT, "", 18, NOW + 9 * HOUR)]
    assert (found.overdue, found.limited.overdue) == (0, 18)


def test_a_shared_limit_holds_back_the_messages_of_all_its_tasks(store, settings):
    settings.DELAYEDQ = {"LIMITS": {"webhooks": {"rate": Rate(1, per=SECOND)}}}
    offer(tasks.report, 2, 7)
    offer(tasks.deliver, 99, "acme")
    found = forecast(store, Ahead.DAY, NOW)
    assert held_back(found) == [("webhooks", "", 101, NOW + 100 * SECOND)]


def test_a_limit_that_is_set_live_counts_and_one_that_is_lifted_does_not(store):
    offer(tasks.report, 20, 7)
    limits.set(REPORT, rate=Rate(20, per=HOUR), store=store)
    assert held_back(forecast(store, Ahead.DAY, NOW)) == []
    limits.set("the-press", rate=Rate(1, per=HOUR), store=store)
    assert held_back(forecast(store, Ahead.DAY, NOW)) == [("the-press", "", 20, NOW + 19 * HOUR)]


def test_what_falls_due_later_is_held_back_from_then_on(store):
    offer(tasks.report, 5, 7, due=NOW + 90 * 60 * SECOND)
    offer(tasks.report, 5, 7, due=NOW + timedelta(days=2))
    # A rate that allows 2 an hour has these 2 at once, and is asked minute by minute.
    ((_, _, waiting, until),) = held_back(forecast(store, Ahead.DAY, NOW))
    assert (waiting, until) == (5, NOW.replace(second=0) + 90 * 60 * SECOND + 1.5 * HOUR)
    ((_, _, waiting, until),) = held_back(forecast(store, Ahead.WEEK, NOW))
    assert (waiting, until) == (10, NOW.replace(second=0) + timedelta(days=2) + 1.5 * HOUR)


def test_what_comes_no_faster_than_its_rate_is_not_held_back(store):
    for hours in range(6):
        offer(tasks.report, 2, 7, due=NOW + hours * HOUR)
    assert held_back(forecast(store, Ahead.DAY, NOW)) == []


def test_a_channel_has_its_own_limit(store):
    limits.set(FORWARD, channel="acme", rate=Rate(1, per=HOUR), store=store)
    offer(tasks.forward, 4, "acme")
    offer(tasks.forward, 3, "other")
    assert len(claim(store)) == 4
    found = forecast(store, Ahead.DAY, NOW)
    assert held_back(found) == [(FORWARD, "acme", 3, NOW + 3 * HOUR)]
    assert (found.overdue, found.limited.overdue) == (0, 3)


def test_what_is_paused_comes_first_and_has_no_end(store):
    offer(tasks.report, 3, 7)
    offer(tasks.deliver, 3, "acme")
    limits.pause(DELIVER, store=store)
    found = forecast(store, Ahead.DAY, NOW)
    assert [(scope, until is None) for scope, _, _, until in held_back(found)] == [(DELIVER, True), (REPORT, False)]


def test_what_waits_for_the_end_of_others_is_not_overdue(store):
    offer(tasks.deliver, 5, "acme")
    offer(tasks.forward, 2, "acme")
    assert forecast(store, Ahead.DAY, NOW).overdue == 7
    assert len(claim(store)) == 3
    found = forecast(store, Ahead.DAY, NOW)
    assert (found.overdue, found.limited.overdue, found.limited.held_back) == (0, 4, [])


def test_of_many_messages_a_sample_is_read(store, monkeypatch):
    monkeypatch.setattr(counting, "MOST", 1_000)
    offer(tasks.report, 6_000, 7)
    ((_, _, waiting, until),) = held_back(forecast(store, Ahead.DAY, NOW))
    assert waiting == pytest.approx(6_000, rel=0.15)
    assert until == NOW + (waiting - 2) / 2 * HOUR


def test_without_messages_in_channels_one_statement_finds_that_out(store, connection):
    with CaptureQueriesContext(connection) as captured:
        forecast(store, Ahead.DAY, NOW)
    assert sum("delayedq_channel" in query["sql"] or "limitstate" in query["sql"] for query in captured) == 1
