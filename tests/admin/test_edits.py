"""Bulk actions: choice, confirmation, change and report."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from django.utils import timezone

from delayedq import DelayedQueue
from delayedq.models import Edit, FinishedMessage, Message
from delayedq.operations import browsing, edits
from tests.admin.given import (
    HOUR,
    MESSAGES,
    choose_all,
    confirm,
    do,
    keys_on,
    live,
    offer,
    run,
    said,
    soon,
    text_of,
    tick,
    undo,
)
from tests.store.given import KIND, message

# The confirmation


def test_a_confirmation_shows_how_many_will_be_changed_and_skipped(operator, store):
    waiting, running, gone = offer(store, "a"), offer(store, "b", queue="b"), offer(store, "c")
    run(store, "b")
    store.unschedule(KIND, "c")

    page = tick(operator, "cancel", waiting, running, gone)

    text = text_of(page)
    assert "To be changed: 1 message ." in text
    assert "1 running" in text
    assert "1 ended" in text
    assert keys_on_preview(page) == ["a", "b"]
    assert set(Message.objects.values_list("key", flat=True)) == {"a", "b"}


def keys_on_preview(page):
    return [row.key for row in page.context["preview"].rows]


def test_a_confirmation_of_all_that_match_counts_them(operator, store):
    for key in "abc":
        offer(store, key, queue="many")
    offer(store, "d")
    run(store, "many")

    text = text_of(choose_all(operator, "shift", "queue=many"))

    assert "To be changed: 2 messages ." in text
    assert "1 running" in text


def test_without_an_action_or_ticked_messages_no_confirmation_is_shown(operator, store):
    id_ = offer(store, "a")
    assert said(operator.post(f"{MESSAGES}act/", {"ids": [id_]}, follow=True)) == ["Choose an action first."]
    assert said(operator.post(f"{MESSAGES}act/", {"action": "cancel"}, follow=True)) == ["Tick messages first."]
    assert said(operator.get(f"{MESSAGES}act/", follow=True)) == ["Choose an action first."]


@pytest.mark.parametrize(
    "given", [{"ids": ["x"]}, {"ids": ["1", "2.5"]}, {"chosen": "forged", "ids": ["1"]}, {"chosen": "a:b:c"}]
)
def test_an_unreadable_selection_changes_nothing(operator, store, given):
    offer(store, "a")
    page = operator.post(f"{MESSAGES}act/", {"action": "cancel", "confirmed": "yes", **given}, follow=True)
    assert said(page) == ["The selection could not be read, or is another user's. Choose again."]
    assert Message.objects.count() == 1


# Each action


def test_run_now(operator, store):
    later, earlier = offer(store, "a", seconds=HOUR), offer(store, "b", seconds=-HOUR)
    before = live(earlier).scheduled_at

    (note,) = do(operator, "run_now", later, earlier)

    assert note.startswith("Run now: 1 message changed, 1 skipped (1 already as requested).")
    assert soon(live(later).scheduled_at)
    assert live(earlier).scheduled_at == before
    assert run(store).id == earlier


def test_reschedule_to_a_time_in_the_current_time_zone(operator, store):
    id_ = offer(store, "a")
    do(operator, "reschedule", id_, at="2126-07-01T09:30")
    assert live(id_).scheduled_at == datetime(2126, 7, 1, 13, 30, tzinfo=UTC)  # New York's summer


@pytest.mark.parametrize(
    ("amount", "unit", "seconds"), [(2, "hours", 7_200), (-30, "minutes", -1_800), (1.5, "days", 129_600)]
)
def test_shift_by_an_amount(operator, store, amount, unit, seconds):
    ids = [offer(store, key, seconds=HOUR) for key in "ab"]
    before = [live(id_).scheduled_at for id_ in ids]

    do(operator, "shift", *ids, amount=amount, unit=unit)

    assert [live(id_).scheduled_at for id_ in ids] == [time + timedelta(seconds=seconds) for time in before]


def test_spread_over_a_period(operator, store):
    ids = [offer(store, f"{n}") for n in range(60)]

    do(operator, "spread", *ids, start="2126-01-01T00:00", amount=60, unit="minutes", jitter=0)

    start = datetime(2126, 1, 1, 5, tzinfo=UTC)
    minutes = sorted((live(id_).scheduled_at - start).total_seconds() / 60 for id_ in ids)
    assert minutes[0] >= 0
    assert minutes[-1] < 60
    assert max(later - earlier for earlier, later in pairwise(minutes)) < 3


def test_spread_from_now_with_jitter(operator, store):
    ids = [offer(store, f"{n}") for n in range(20)]
    do(operator, "spread", *ids, amount=1, unit="hours", jitter=100)
    due = {live(id_).scheduled_at for id_ in ids}
    assert len(due) == 20
    assert max(due) - timezone.now() < timedelta(hours=1)


def test_change_priority_and_queue(operator, store):
    id_ = offer(store, "a")
    do(operator, "priority", id_, priority=-7)
    do(operator, "queue", id_, queue="slow")
    assert (live(id_).priority, live(id_).queue) == (-7, "slow")


def test_cancel(operator, store):
    id_ = offer(store, "a")
    (note,) = do(operator, "cancel", id_)
    assert note.startswith("Cancel: 1 message changed.")
    assert FinishedMessage.objects.get().outcome == "cancelled"


@pytest.mark.parametrize(
    ("action", "fields"),
    [
        ("reschedule", {}),
        ("reschedule", {"at": "soon"}),
        ("shift", {"amount": "much", "unit": "hours"}),
        ("shift", {"amount": "1", "unit": "fortnights"}),
        ("shift", {"amount": "nan", "unit": "hours"}),
        ("shift", {"amount": "1e300", "unit": "days"}),
        ("spread", {"amount": "-1", "unit": "hours", "jitter": "0"}),
        ("spread", {"amount": "1", "unit": "hours", "jitter": "101"}),
        ("priority", {"priority": "101"}),
        ("priority", {"priority": ""}),
        ("queue", {"queue": " "}),
        ("queue", {"queue": "q" * 201}),
        ("queue", {"queue": "bare|queue"}),
    ],
)
def test_invalid_parameters_show_the_form_again_and_change_nothing(operator, store, action, fields):
    id_ = offer(store, "a", seconds=HOUR)
    before = Message.objects.values().get()

    page = confirm(operator, tick(operator, action, id_), **fields)

    assert page.context["form"].errors
    assert Message.objects.values().get() == before
    assert not Edit.objects.exists()
    assert page.context["chosen"]


def test_a_message_of_a_bare_queue_stays_in_it(operator, store):
    bare = store.offer(message("a", queue="q|Payload", kind="q|Payload")).id
    (note,) = do(operator, "queue", bare, queue="slow")
    assert "1 in a bare queue" in note
    assert live(bare).queue == "q|Payload"


def test_a_message_of_a_bare_queue_gets_a_priority_that_its_queue_declares_and_no_other(operator, store):
    declaring = DelayedQueue("alerts", priorities=[10, -10])
    for queue in (declaring, DelayedQueue("alerts", priorities=[3]), DelayedQueue("plain")):
        queue.offer_or_update("a", 1)
    alert, plain = (Message.objects.get(queue=f"{name}|json").id for name in ("alerts", "plain"))

    (note,) = do(operator, "priority", alert, priority="7")
    assert "1 in a bare queue whose consumers poll the priorities 10, 3, 0, -10 and not 7" in note
    (note,) = do(operator, "priority", alert, plain, priority="-10")
    assert "1 message changed, 1 skipped" in note
    assert "poll the priorities 0 and not -10" in note
    assert (live(alert).priority, live(plain).priority) == (-10, 0)
    assert declaring.try_poll().key == "a"


def test_an_action_returns_to_the_list_with_its_filters(operator, store):
    offer(store, "a", queue="one")
    id_ = offer(store, "b", queue="two")
    confirmation = operator.post(f"{MESSAGES}act/", {"action": "run_now", "ids": [id_], "query": "queue=two"})
    assert keys_on(confirm(operator, confirmation)) == ["b"]


# Skipping


def test_a_message_that_starts_after_the_confirmation_is_skipped(operator, store):
    first, second = offer(store, "a", queue="a"), offer(store, "b")
    confirmation = tick(operator, "cancel", first, second)
    run(store, "a")

    (note,) = said(confirm(operator, confirmation))

    assert note.startswith("Cancel: 1 message changed, 1 skipped (1 running).")
    assert set(Message.objects.values_list("key", flat=True)) == {"a"}


def test_a_form_that_is_sent_twice_shifts_once(operator, store):
    id_ = offer(store, "a", seconds=HOUR)
    before = live(id_).scheduled_at
    confirmation = tick(operator, "shift", id_)

    confirm(operator, confirmation, amount=1, unit="hours")
    (note,) = said(confirm(operator, confirmation, amount=1, unit="hours"))

    assert "0 messages changed, 1 skipped (1 changed meanwhile)" in note
    assert live(id_).scheduled_at == before + timedelta(hours=1)


# All that match


def test_all_that_match_are_changed_and_nothing_else(operator, store):
    for number in range(5):
        offer(store, f"{number}", queue="many", seconds=HOUR)
    other = offer(store, "other", seconds=HOUR)

    confirm(operator, choose_all(operator, "priority", "queue=many&state=scheduled"), priority=9)

    assert Message.objects.filter(priority=9).count() == 5
    assert live(other).priority == 0


def test_messages_offered_after_the_selection_are_not_changed(operator, store):
    offer(store, "a")
    confirmation = choose_all(operator, "cancel")
    offer(store, "b")

    confirm(operator, confirmation)

    assert list(Message.objects.values_list("key", flat=True)) == ["b"]


@pytest.fixture
def small_steps(monkeypatch):
    """Chunks of four messages, three of them per call."""
    calls = []
    monkeypatch.setattr(browsing, "CHUNK", 4)
    monkeypatch.setattr(edits, "CHUNKS", 3)
    monkeypatch.setattr("delayedq.operations.undo.CHUNKS", 3)
    monkeypatch.setattr("delayedq.operations.undo.CHUNK", 4)
    monkeypatch.setattr(edits, "carry_out", lambda *given, real=edits.carry_out: calls.append(1) or real(*given))
    return calls


def test_messages_are_shifted_once_each_over_several_calls(operator, store, small_steps):
    store.offer_many([message(f"{n}", scheduled_at=timezone.now() + timedelta(hours=n)) for n in range(50)])
    before = dict(Message.objects.values_list("id", "scheduled_at"))

    (note,) = said(confirm(operator, choose_all(operator, "shift"), amount=1, unit="hours"))

    assert note.startswith("Shift by an amount: 50 messages changed.")
    assert len(small_steps) == 5
    after = dict(Message.objects.values_list("id", "scheduled_at"))
    assert after == {id_: time + timedelta(hours=1) for id_, time in before.items()}
    assert Edit.objects.get().changed == 50
    assert undo(operator) == ["Undone: 50 messages changed."]
    assert dict(Message.objects.values_list("id", "scheduled_at")) == before
