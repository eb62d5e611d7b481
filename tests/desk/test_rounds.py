"""What workers do for all items: what was withdrawn is closed, on every database."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from delayedq import desk
from delayedq.desk import figures
from delayedq.desk.models import Comment, Item, State
from delayedq.desk.rounds import close_withdrawn, forget_closed, withdraw
from delayedq.desk.signals import item_changed
from delayedq.desk.visits import measured
from delayedq.models import FinishedMessage, Message
from delayedq.results.cancelling import cancel
from delayedq.testing import clock, run_due
from delayedq.worker.keeper import SweepRounds
from tests.desk.given import ALL, PAID, opened, person, refund, reviewed

START = datetime(2026, 3, 2, 9, tzinfo=UTC)


@pytest.fixture
def told():
    """The items that were withdrawn, as receivers have them."""
    items = []

    def hear(item, verb, by, **_):
        if verb == "withdraw":
            items.append((item.pk, item.state, by))

    item_changed.connect(hear)
    yield items
    item_changed.disconnect(hear)


def swept(store):
    """A round, as lease keepers make it."""
    assert SweepRounds(store).go_on(time.monotonic() + 3_600) is False


def in_each_state(ann):
    """One item each that waits, is held, postponed, and pending review."""
    waiting, held, put_off, pending = opened(), opened(), opened(), opened(reviewed)
    held.take(ann)
    put_off.take(ann)
    put_off.postpone(START + timedelta(days=9), "later", by=ann)
    pending.take(ann)
    pending.finish(PAID, by=ann)
    return [waiting, held, put_off, pending]


def test_what_was_cancelled_is_closed_in_each_state_and_left_out_of_the_figures(store, told):
    ann = person("ann", *ALL)
    with clock(START) as clocked:
        items, kept = in_each_state(ann), in_each_state(ann)
        done = opened()
        done.take(ann)
        done.finish(PAID, by=ann)
        clocked.advance(hours=1)
        cancel(store, [item.message_id for item in items])
        swept(store)
        found = figures.by_queue(desk.items(), clocked())
        assert [(one.opened.number, one.open.number, one.done) for one in found] == [(5, 4, 1)]
        rows = Item.objects.filter(pk__in=[item.pk for item in items])
        expected = (State.WITHDRAWN, False, None, None, clocked())
        assert set(rows.values_list("state", "is_open", "holder", "until", "closed_at")) == {expected}
    assert told == [(item.pk, "withdrawn", None) for item in items]
    assert [Item.objects.get(pk=item.pk).state for item in kept] == [item.state for item in kept]
    assert Item.objects.get(pk=done.pk).state == State.DONE
    for verb in (lambda: items[1].finish(PAID, by=ann), items[3].approve):
        with pytest.raises(desk.NotOpen, match="withdrawn"):
            verb()
    swept(store)
    assert len(told) == len(items)


def test_open_items_are_looked_at_page_by_page(store, told):
    items = [opened() for _ in range(5)]
    cancel(store, [items[number].message_id for number in (0, 3, 4)])
    first = close_withdrawn(store, None, limit=2)
    second = close_withdrawn(store, first.reached, limit=2)
    third = close_withdrawn(store, second.reached, limit=2)
    assert [first, second, third] == [(1, items[1].pk), (1, items[3].pk), (1, None)]
    assert [pk for pk, _, _ in told] == [items[0].pk, items[3].pk, items[4].pk]


def test_what_is_decided_while_a_worker_looks_at_it_stays_decided(store, monkeypatch):
    ann, item = person("ann", *ALL), opened()
    item.take(ann)
    Message.objects.all().delete()
    decided = Item.objects.filter(pk=item.pk)

    def decided_meanwhile(store, ids):
        found = list(ids)
        assert decided.update(is_open=False, state=State.DONE)
        return withdraw(store, found)

    monkeypatch.setattr("delayedq.desk.rounds.withdraw", decided_meanwhile)
    assert close_withdrawn(store) == (0, None)
    assert decided.get().state == State.DONE


def test_what_was_brought_back_is_opened_anew(store):
    """A cancellation that was undone, or a dead letter that runs again, has the message's id and generation."""
    ann, result = person("ann", *ALL), refund.enqueue(100)
    run_due()
    item = desk.take_next(ann, "refunds")
    before = Message.objects.get()
    assert result.id == str(item.message_id)
    cancel(store, [before.pk])
    swept(store)
    FinishedMessage.objects.all().delete()
    before.scheduled_at = store.now()
    before.save(force_insert=True)
    run_due()
    item.refresh_from_db()
    assert (item.state, item.is_open, item.closed_at) == (State.WAITING, True, None)
    item.take(ann)
    item.finish(PAID, by=ann)
    assert FinishedMessage.objects.get(pk=before.pk).outcome == "succeeded"


@pytest.fixture
def retention(settings):
    settings.DELAYEDQ = {"RETENTION": timedelta(days=30)}


def closed(count, **fields):
    """Items that were decided an hour apart, from START on."""
    moments = [START + timedelta(hours=number) for number in range(count)]
    first = Item.objects.count()
    given = {"kind": refund.module_path, "queue": "refunds", "mode": "shadow", "state": State.DONE, "is_open": False}
    return Item.objects.bulk_create(
        Item(message_id=-first - number, opened_at=moment, decided_at=moment, closed_at=moment, **given | fields)
        for number, moment in enumerate(moments, 1)
    )


@pytest.mark.usefixtures("retention")
def test_what_was_closed_goes_with_the_history_and_what_is_open_stays(store):
    ann = person("ann", *ALL)
    with clock(START) as clocked:
        first, second, gone, held = (opened() for _ in range(4))
        held.take(ann)
        for item in (first, second):
            item.take(ann)
        first.comments.create(by=ann, at=START, text="asked")
        first.finish(PAID, by=ann)
        cancel(store, [gone.message_id])
        swept(store)
        clocked.advance(hours=1)
        second.comments.create(by=ann, at=START, text="told")
        second.finish(PAID, by=ann)
        clocked.advance(days=30)
        swept(store)
        assert list(Item.objects.order_by("pk")) == [second, held]
        assert [comment.text for comment in Comment.objects.all()] == ["told"]
        clocked.advance(seconds=1)
        swept(store)
        assert list(Item.objects.all()) == [held]
        clocked.advance(days=300)
        held.finish(PAID, by=ann)
    assert held.state == State.DONE


@pytest.mark.usefixtures("retention")
def test_a_planted_case_that_was_cancelled_before_it_was_opened_goes_too(store):
    with clock(START) as clocked:
        cancelled, kept = (desk.plant(refund, (100,), answer=PAID) for _ in range(2))
        cancel(store, [int(cancelled.id)])
        swept(store)
        assert list(Item.objects.order_by("pk").values_list("closed_at", flat=True)) == [START, None]
        clocked.advance(days=31)
        swept(store)
    assert Item.objects.get().message_id == int(kept.id)


def test_without_a_retention_nothing_goes(store, settings):
    settings.DELAYEDQ = {"RETENTION": None}
    closed(2)
    with clock(START + timedelta(days=9_000)):
        assert forget_closed(store) == (0, None)
    assert Item.objects.count() == 2


@pytest.mark.usefixtures("retention")
def test_closed_items_are_deleted_page_by_page_and_the_last_comparisons_stay(store, monkeypatch):
    for module in ("rounds", "visits"):
        monkeypatch.setattr(f"delayedq.desk.{module}.WINDOW", 2)
    plain, alike, unlike = closed(3), closed(3, agreed=True), closed(1, agreed=False)
    other = closed(1, agreed=True, kind=reviewed.module_path)
    with clock(START + timedelta(days=60)):
        before = measured(refund.module_path), measured(reviewed.module_path)
        pages, after = [], None
        while not pages or after is not None:
            page = forget_closed(store, after, limit=3)
            pages.append(page.removed)
            after = page.reached
        assert pages == [2, 1, 1]
        assert forget_closed(store) == (0, None)
        assert (measured(refund.module_path), measured(reviewed.module_path)) == before
    assert set(Item.objects.all()) == {*alike[1:], *unlike, *other}
    assert not Item.objects.filter(pk__in=[item.pk for item in plain])
