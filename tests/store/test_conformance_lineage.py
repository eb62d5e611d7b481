"""A message knows which message has made it, and is found by that."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from delayedq import current_message
from delayedq.core.metadata import PARENT, ROOT, with_own
from delayedq.models import FinishedMessage, Message
from delayedq.operations.timeline import made, parent_of, root_of, timeline
from delayedq.store.lineage import made_by
from delayedq.testing import run_due
from tests.app import lifecycle, tasks
from tests.store.given import LEASE, message, settle, succeed
from tests.worker.attempts import drained

LATER = datetime(2040, 1, 1, tzinfo=UTC)


def child_of(parent, key=None, metadata=None):
    return message(key, metadata=with_own(metadata, {PARENT: parent, ROOT: 1}))


def end(store, id_):
    settle(store, succeed(store.claim_unchanged(id_, 0, LEASE, "first")))


def begin():
    """A message whose task enqueues another, whose task enqueues two."""
    tasks.bodies["parent"] = lambda: str(tasks.play.enqueue("child").id)
    tasks.bodies["child"] = lambda: len(tasks.mark.enqueue_many([(("a",), {}), (("b",), {})]))
    return int(tasks.play.enqueue("parent").id)


@pytest.mark.parametrize("run", [drained, lambda _: run_due()], ids=["worker", "run_due"])
def test_what_a_task_enqueues_has_its_message_as_parent(store, run):
    first = begin()
    run(store)
    child = FinishedMessage.objects.get(kind=tasks.play.module_path, id__gt=first)
    marks = FinishedMessage.objects.filter(kind=tasks.mark.module_path)
    assert (parent_of(child), root_of(child)) == (first, first)
    assert {(parent_of(one), root_of(one)) for one in marks} == {(child.id, first)}
    assert [one.id for one in made(store, child)] == sorted(one.id for one in marks)
    assert parent_of(FinishedMessage.objects.get(id=first)) is None


def test_what_follows_an_end_has_it_as_parent(store):
    tasks.bodies["parent"] = list
    first = int(lifecycle.followed.enqueue("parent").id)
    run_due()
    (follower,) = made(store, FinishedMessage.objects.get(id=first))
    assert (follower.kind, follower.outcome) == (lifecycle.succeeded.module_path, "succeeded")


def test_a_task_sees_where_it_comes_from(alias):
    seen = []
    tasks.bodies["child"] = lambda: seen.append((current_message().parent_id, current_message().root_id))
    tasks.bodies["parent"] = lambda: str(tasks.play.using(metadata={"a": 1}).enqueue("child").id)
    id_ = int(tasks.play.enqueue("parent").id)
    tasks.play.enqueue("child")
    run_due()
    assert (id_, id_) in seen
    assert any(parent is None and root > id_ for parent, root in seen)


def test_a_message_with_a_key_is_that_of_all_who_offer_it(alias):
    tasks.bodies["parent"] = lambda: str(tasks.remind.schedule_at(LATER, 7, key="a").outcome)
    tasks.remind.schedule_at(LATER, 7, key="a")
    tasks.play.enqueue("parent")
    run_due()
    assert FinishedMessage.objects.get().result == '"ignored"'
    assert Message.objects.get().metadata is None


def test_live_and_ended_ones_are_found_and_no_others(store):
    parent = store.offer(message()).id
    quoted = json.dumps({"z": f'"{PARENT}":{parent},'})
    offers = [child_of(parent), child_of(10 * parent), message(metadata=quoted), child_of(parent, metadata='{"a":1}')]
    first, _, _, last = [offered.id for offered in store.offer_many(offers)]
    assert made_by(store.database, parent) == ([first, last], [])
    end(store, first)
    assert made_by(store.database, parent) == ([last], [first])


def test_the_timeline_names_both_ends(store):
    first = begin()
    drained(store)
    child = FinishedMessage.objects.get(kind=tasks.play.module_path, id__gt=first)
    events = timeline(store, child, child.finished_at)
    told = [(event.what, event.detail, event.message) for event in events if event.message is not None]
    marks = sorted(FinishedMessage.objects.filter(kind=tasks.mark.module_path).values_list("id", flat=True))
    assert told[0] == ("created", f"by message #{first}", first)
    assert told[1:] == [("has made", f"#{id_} tests.app.tasks.mark", id_) for id_ in marks]


def test_it_is_found_by_its_index(store, alias):
    if alias == "mariadb":
        return  # it has no such index
    store.offer_many([child_of(5), *(message() for _ in range(500))])
    connection = connections[alias]
    with transaction.atomic(using=alias), connection.cursor() as cursor, CaptureQueriesContext(connection) as queries:
        if alias == "postgresql":
            cursor.execute("SET LOCAL enable_seqscan = off")
        made_by(store.database, 5)
        find = next(query["sql"] for query in queries if "FROM delayedq_message" in query["sql"])
        cursor.execute(("EXPLAIN " if alias == "postgresql" else "EXPLAIN QUERY PLAN ") + find)
        assert "delayedq_made_by" in str(cursor.fetchall())


def test_a_message_that_no_task_has_made_has_no_metadata(alias):
    tasks.remind.enqueue(7)
    assert Message.objects.get().metadata is None


def test_a_message_in_another_database_has_no_parent(settings, store, alias):
    if alias != "postgresql":
        return
    options = {"BACKEND": "delayedq.backend.DelayedQBackend", "QUEUES": []}
    settings.TASKS = {
        "default": {**options, "OPTIONS": {"DATABASE": alias}},
        "elsewhere": {**options, "OPTIONS": {"DATABASE": "default"}},
        "beside": {**options, "OPTIONS": {"DATABASE": alias}},
    }
    tasks.bodies["parent"] = lambda: [
        tasks.nothing.using(backend=name).enqueue().id for name in ("elsewhere", "beside")
    ]
    tasks.play.enqueue("parent")
    run_due(using=alias, follow=False)
    assert Message.objects.using("default").get().metadata is None
    assert parent_of(Message.objects.using(alias).get()) is not None
    Message.objects.using("default").all().delete()
