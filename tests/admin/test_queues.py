"""The page of the queues: counts, trends, workers, and pausing."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.test.utils import CaptureQueriesContext

from delayedq.admin.queues import HEIGHT, WIDTH, sparkline
from delayedq.models import FinishedMessage, Message, PausedQueue
from delayedq.operations import queues as states
from delayedq.operations.edits import stop
from delayedq.operations.queues import BUCKETS, Trend
from delayedq.operations.workers import SHOWN
from delayedq.store import worker_registry
from delayedq.store.protocol import ClaimRequest, Lane
from tests.admin.given import dead, offer, run, said, text_of
from tests.store.given import LEASE, succeed
from tests.store.test_worker_registry import worker

QUEUES = "/admin/delayedq/pausedqueue/"
PAUSE, RESUME = f"{QUEUES}pause/?queue=mail", f"{QUEUES}resume/?queue=mail"


@pytest.fixture
def viewer(member):
    return member("view_pausedqueue")


def rows(client):
    return {row.name: row for row in client.get(QUEUES).context["rows"]}


# Counts


def test_a_queue_shows_due_and_scheduled_messages_and_the_oldest_due_time(store, operator):
    for seconds in (-7200, -60, 3600):
        offer(store, seconds=seconds)
    offer(store, seconds=-10, priority=9)
    offer(store, queue="other", seconds=60)
    found = rows(operator)
    assert (found["mail"].due, found["mail"].scheduled) == ("3", "1")
    assert "2 h ago" in found["mail"].oldest
    assert (found["other"].due, found["other"].scheduled, found["other"].oldest) == ("0", "1", "-")


def test_running_messages_do_not_count_as_due(store, operator):
    offer(store)
    run(store)
    assert (rows(operator)["mail"].due, rows(operator)["mail"].oldest) == ("0", "-")


def test_counts_stop_at_a_bound(store, operator, monkeypatch):
    monkeypatch.setattr(states, "MOST", 6)
    monkeypatch.setattr(states, "LEAST", 2)
    for _ in range(3):
        offer(store)
    assert rows(operator)["mail"].due == "3"
    offer(store)
    assert rows(operator)["mail"].due.startswith(("at least 3", "about "))


def test_a_queue_that_is_empty_and_paused_is_listed(store, operator):
    PausedQueue.objects.create(queue="mail", paused_at=store.now())
    assert rows(operator)["mail"].paused


def test_a_bare_queue_is_listed_and_can_not_be_paused(store, operator):
    offer(store, "a", queue="a|json", kind="a|json")
    page = operator.get(QUEUES)
    assert "polled by code" in text_of(page)
    assert "pause/" not in page.content.decode()


def test_the_number_of_statements_grows_with_the_lanes_alone(store, operator, connection):
    def cost():
        with CaptureQueriesContext(connection) as captured:
            operator.get(QUEUES)
        return len(captured)

    offer(store)
    dead(store)
    before = cost()
    for number in range(50):
        offer(store, seconds=number - 25)
        dead(store)
    assert cost() == before


def test_names_are_escaped(store, operator):
    offer(store, queue="<script>alert(1)</script>")
    page = operator.get(QUEUES)
    assert "<script>alert" not in page.content.decode()
    assert "<script>alert(1)</script>" in rows(operator)


# Trends


def test_the_sparkline_shows_ended_and_failed_messages(store, operator):
    offer(store)
    store.settle([succeed(run(store), finished=0.0)], "worker-1")
    dead(store)
    assert rows(operator)["mail"].spark.words == "1 ended, 0 of them failed, in the last 1 h"
    dying = rows(operator)["dying"].spark
    assert dying.words == "1 ended, 1 of them failed, in the last 1 h"
    assert dying.failed.count(",") == BUCKETS


def test_the_sparkline_leaves_out_older_ends(store, operator):
    dead(store)
    FinishedMessage.objects.update(finished_at=store.now() - timedelta(minutes=61))
    assert rows(operator) == {}


def test_the_window_is_shorter_if_many_messages_ended(store, operator, monkeypatch):
    monkeypatch.setattr(states, "MOST_ENDED", 5)
    now = store.now()
    for number in range(20):
        dead_id = dead(store)
        FinishedMessage.objects.filter(id=dead_id).update(finished_at=now - timedelta(minutes=number))
    (trend,) = states.trends(store, now).values()
    assert trend.window == timedelta(minutes=4)
    assert (sum(trend.ended), trend.ended[0], trend.ended[-1]) == (5, 1, 1)


def test_a_sparkline_stays_within_its_box():
    spark = sparkline(Trend(timedelta(hours=1), [0, 4, 8], [0, 0, 4]))
    points = [tuple(map(float, point.split(","))) for point in spark.ended.split()]
    assert points == [(0, HEIGHT - 1), (WIDTH / 2, 12), (WIDTH, 1)]
    assert spark.failed.endswith(f"{WIDTH:.1f},12.0")


def test_a_quiet_queue_has_a_flat_line():
    spark = sparkline(Trend(timedelta(hours=1), [0, 0], [0, 0]))
    assert (spark.ended, spark.failed) == ("0.0,23.0 120.0,23.0", "")


# Workers


def test_a_worker_is_shown_with_its_queues_and_running_messages(store, operator):
    id_ = offer(store)
    run(store)
    worker_registry(store.alias).heartbeat([worker("worker-1", queues="mail,sms", running=f"[{id_}]", held=3)])
    page = operator.get(QUEUES)
    (row,) = page.context["workers"]
    assert (row.name, row.queues, row.threads, row.held, row.is_alive) == ("worker-1", "mail, sms", 4, 3, True)
    assert f'href="/admin/delayedq/message/{id_}/change/"' in page.content.decode()


def test_messages_that_a_worker_no_longer_leases_are_not_shown(store, operator):
    id_ = offer(store)
    store.settle([succeed(run(store))], "worker-1")
    other = offer(store)
    run(store)
    worker_registry(store.alias).heartbeat([worker("another", running=f"[{id_}, {other}]")])
    (row,) = operator.get(QUEUES).context["workers"]
    assert row.messages == []


def test_a_silent_worker_is_marked(store, operator):
    worker_registry(store.alias).at(store.now() - timedelta(minutes=20)).heartbeat([worker("worker-1")])
    page = operator.get(QUEUES)
    assert "silent 20 min ago" in text_of(page)
    offer(store)
    assert rows(operator)["mail"].workers == 0


def test_queues_count_the_workers_that_serve_them(store, operator):
    offer(store)
    other = [worker("c", queues="other"), worker("d", excluded_queues="sms,mail")]
    worker_registry(store.alias).heartbeat([worker("a"), worker("b", queues="mail"), *other])
    assert rows(operator)["mail"].workers == 2


def test_a_worker_is_shown_with_the_queues_that_it_does_not_serve(store, operator):
    worker_registry(store.alias).heartbeat([worker("quick@host:7", excluded_queues="slow,bulk")])
    (row,) = operator.get(QUEUES).context["workers"]
    assert (row.name, row.queues) == ("quick@host:7", "all but slow, bulk")


# Pausing


def test_pausing_asks_for_confirmation(store, operator):
    offer(store)
    assert operator.get(PAUSE).status_code == 200
    assert store.paused() == set()
    page = operator.post(PAUSE, follow=True)
    assert said(page) == ["Queue mail is paused."]
    row = PausedQueue.objects.get()
    assert (row.queue, row.paused_by) == ("mail", "ann")
    assert "paused by ann" in text_of(page)
    PausedQueue.objects.update(paused_at=row.paused_at - timedelta(minutes=20))
    assert "paused by ann 20 min ago" in text_of(operator.get(QUEUES))


def test_to_resume_is_asked_back_and_then_done(store, operator):
    operator.post(PAUSE)
    assert operator.get(RESUME).status_code == 200
    assert store.paused() == {"mail"}
    assert said(operator.post(RESUME, follow=True)) == ["Queue mail is resumed."]
    assert store.paused() == set()


def test_the_log_tells_who_paused_and_resumed(store, operator):
    operator.post(PAUSE)
    operator.post(RESUME)
    entries = LogEntry.objects.order_by("id").values_list("user__username", "object_repr", "change_message")
    assert list(entries) == [("ann", "mail", "Paused."), ("ann", "mail", "Resumed.")]


def test_pausing_or_resuming_twice_is_harmless(store, operator):
    operator.post(PAUSE)
    assert "Queue mail was already paused." in said(operator.post(PAUSE, follow=True))
    operator.post(RESUME)
    assert "Queue mail is not paused." in said(operator.post(RESUME, follow=True))
    assert LogEntry.objects.count() == 2


@pytest.mark.parametrize("name", ["", "a%7Cjson", "x" * 201])
def test_only_queues_of_tasks_can_be_paused(store, operator, name):
    page = operator.post(f"{QUEUES}pause/?queue={name}", follow=True)
    assert page.status_code == 200
    assert store.paused() == set()


def test_any_name_can_be_paused(store, operator):
    name = "Ünï/?&=#%<b>"
    offer(store, queue=name)
    url = rows(operator)[name].pause_url
    assert operator.get(url).status_code == 200
    operator.post(url)
    assert store.paused() == {name}


# Permissions


def test_view_permission_alone_shows_no_button(store, viewer):
    offer(store)
    page = viewer.get(QUEUES)
    assert page.status_code == 200
    assert "pause/" not in page.content.decode()


@pytest.mark.parametrize("method", ["get", "post"])
@pytest.mark.parametrize("url", [PAUSE, RESUME])
def test_view_permission_alone_does_not_allow_pausing(store, viewer, method, url):
    PausedQueue.objects.create(queue="other", paused_at=store.now())
    assert getattr(viewer, method)(url).status_code == 403
    assert store.paused() == {"other"}


def test_the_pause_permission_allows_pausing(store, member):
    client = member("view_pausedqueue", "pause_queue")
    assert client.post(PAUSE).status_code == 302
    assert store.paused() == {"mail"}


def test_the_page_needs_view_permission(store, member):
    assert member().get(QUEUES).status_code == 403


def test_requests_without_a_csrf_token_change_nothing(store, operator):
    operator.handler.enforce_csrf_checks = True
    assert operator.post(PAUSE).status_code == 403
    assert store.paused() == set()


def test_the_index_of_the_admin_links_to_the_queues(store, operator):
    page = operator.get("/admin/")
    assert f'href="{QUEUES}"' in page.content.decode()
    operator.post(PAUSE)
    assert operator.get("/admin/").status_code == 200


def test_a_stopped_run_that_holds_its_thread_is_named_with_its_worker_and_a_restart(store, operator):
    """The attempt of a sync task can't be interrupted: what its worker reports after the stop tells it."""
    id_, other = offer(store, "hangs"), offer(store, "other")
    claimed = run(store)
    assert claimed.id == id_
    registry = worker_registry(store.alias)
    registry.heartbeat([worker("worker-1", running=json.dumps([id_]))])
    assert stop(store, Message.objects.get(pk=id_)) is not None
    ended = f"/admin/delayedq/finishedmessage/{id_}/change/"
    assert "that thread is lost" not in text_of(operator.get(ended))  # it was seen before the stop
    registry.heartbeat([worker("worker-1", running=json.dumps([id_, other]))])
    page = operator.get(ended)
    assert "Its attempt still ran on worker-1" in text_of(page)
    assert f'href="{QUEUES}worker/?name=worker-1&amp;ask=restart"' in page.content.decode()
    (row,) = operator.get(QUEUES).context["workers"]
    assert list(row.lost) == [id_]
    assert f"#{id_} was stopped; its thread is lost" in text_of(operator.get(QUEUES))
    registry.heartbeat([worker("worker-1", running="[]")])
    assert "that thread is lost" not in text_of(operator.get(ended))


def test_a_lost_thread_is_named_however_many_messages_its_worker_runs(store, operator):
    for number in range(SHOWN):
        offer(store, f"{number}")
    id_ = offer(store, "hangs")
    claimed = store.claim(ClaimRequest([Lane("mail", 0)], SHOWN + 1, LEASE, "worker-1"))
    ids = [one.id for one in claimed if one.id != id_]
    assert stop(store, Message.objects.get(pk=id_)) is not None
    worker_registry(store.alias).heartbeat([worker("worker-1", running=json.dumps([*ids, id_]))])
    (row,) = operator.get(f"{QUEUES}workers/").context["workers"]
    assert list(row.lost) == [id_]
