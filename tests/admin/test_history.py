"""The history, the dead letters, and how they are retried."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from delayedq.core.lifecycle import FinalOutcome
from delayedq.models import Edit, FinishedMessage, Message
from delayedq.operations import dead_letters, edits
from delayedq.store.protocol import Finish
from tests.admin.given import (
    EDITS,
    HISTORY,
    choose_all,
    confirm,
    dead,
    do,
    keys_on,
    live,
    offer,
    run,
    said,
    text_of,
    tick,
)

ERRORS = (
    '[{"attempt": 1, "failed_at": "2026-03-08T06:59:30+00:00", "seconds": 1.5, "worker": "w",'
    ' "exception": "ValueError", "message": "<no>", "traceback": "Traceback: <no>"}]'
)


def retry(client, *ids, **fields):
    return do(client, "retry", *ids, where=HISTORY, **{"amount": 0, "unit": "minutes", "jitter": 0} | fields)


def succeed(store, key, **fields):
    offer(store, key, queue="fine", **fields)
    claimed = run(store, "fine")
    store.settle([Finish(claimed, FinalOutcome.SUCCEEDED, 2.0, 1.0, '{"a":"<b>"}')], "worker-1")
    return claimed.id


# One dead letter


def test_a_dead_letter_begins_with_its_last_error(operator, store):
    first = ERRORS.replace("<no>", "first").removesuffix("]")
    id_ = dead(store, "a", errors=f"{first}, {ERRORS.removeprefix('[')}")
    page = operator.get(f"{HISTORY}{id_}/change/")
    text = text_of(page)
    begin = text.index("Last error ValueError : <no> All dead letters of this error Traceback: <no>")
    assert begin < text.index("Timeline")
    assert text.index("Traceback: first") > begin
    assert keys_on(operator.get(page.context["last_error"].url)) == ["a"]


def test_without_permission_it_does_not_say_what_the_error_said(member, store):
    id_ = dead(store, "a", errors=ERRORS)
    page = member().get(f"{HISTORY}{id_}/change/")
    assert page.context["last_error"].name == "ValueError"
    assert "&lt;no&gt;" not in page.content.decode()


def test_what_succeeded_has_no_last_error(operator, store):
    page = operator.get(f"{HISTORY}{succeed(store, 'a')}/change/")
    assert page.context["last_error"] is None


# The list


def test_ended_messages_are_listed_latest_first(operator, store):
    succeed(store, "a")
    dead(store, "b")
    page = operator.get(HISTORY)
    assert keys_on(page) == ["b", "a"]
    assert "2 messages" in text_of(page)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"outcome": "failed"}, ["b"]),
        ({"outcome": "succeeded"}, ["a"]),
        ({"outcome": "superseded"}, []),
        ({"queue": "fine"}, ["a"]),
        ({"kind": "tests.other"}, ["b"]),
        ({"q": "a"}, ["a"]),
        ({"q": "A"}, []),
        ({"until": "2020-01-01T00:00"}, []),
        ({"since": "2020-01-01T00:00"}, ["b", "a"]),
        ({"outcome": "failed", "queue": "fine"}, []),
    ],
)
def test_history_is_filtered(operator, store, query, expected):
    succeed(store, "a")
    dead(store, "b", kind="tests.other")
    assert keys_on(operator.get(HISTORY, query)) == expected


def test_each_row_says_how_long_it_waited_and_ran(operator, store):
    id_, never = succeed(store, "a"), succeed(store, "b")
    at = FinishedMessage.objects.get(id=id_).finished_at
    times = {"scheduled_at": at - timedelta(seconds=90), "started_at": at - timedelta(milliseconds=40)}
    FinishedMessage.objects.filter(id=id_).update(**times)
    FinishedMessage.objects.filter(id=never).update(started_at=None)
    rows = {row.id: (row.wait, row.run) for row in operator.get(HISTORY).context["rows"]}
    assert rows == {id_: ("1.5 min", "40 ms"), never: ("", "")}


def test_the_number_to_retry_is_shown_only_for_lists_of_dead_letters(operator, store):
    succeed(store, "a")
    dead(store, "b")

    assert "all dead letters that match (1)" in text_of(operator.get(HISTORY, {"outcome": "failed"}))
    assert "all dead letters that match (" not in text_of(operator.get(HISTORY))


def test_an_ended_message_is_found_by_its_id(operator, store):
    id_ = succeed(store, "a")
    dead(store, str(id_))
    assert set(keys_on(operator.get(HISTORY, {"q": str(id_)}))) == {"a", str(id_)}


def test_history_comes_in_pages(operator, store):
    rows = [
        FinishedMessage(
            id=n,
            finished_at=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=n // 4),
            scheduled_at=timezone.now(),
            scheduled_at_initially=timezone.now(),
            created_at=timezone.now(),
            priority=0,
            attempts=1,
            max_attempts=1,
            outcome="failed" if n % 2 else "succeeded",
            queue="q",
            kind="k",
            key=f"{n:03}",
            payload="{}",
        )
        for n in range(1, 131)
    ]
    FinishedMessage.objects.bulk_create(rows)
    for query, expected in (({}, range(130, 0, -1)), ({"outcome": "failed"}, range(129, 0, -2))):
        seen, after = [], ""
        while after is not None:
            page = operator.get(HISTORY, {**query, "after": after})
            seen += [row.id for row in page.context["rows"]]
            after = page.context["next"]
        assert seen == list(expected)


def test_the_page_of_an_ended_message_shows_its_details(operator, store):
    id_ = dead(store, "a", '{"args":[1]}', ERRORS)
    text = text_of(operator.get(f"{HISTORY}{id_}/change/"))
    for said_of_it in (
        "failed",
        "remind tests",
        "attempt 1 failed after 1.5 s",
        "on w: ValueError: <no>",
        "Traceback: <no>",
    ):
        assert said_of_it in text


def test_a_result_is_shown(operator, store):
    assert '"a": "<b>"' in text_of(operator.get(f"{HISTORY}{succeed(store, 'a')}/change/"))


# Retrying


def test_a_dead_letter_returns_to_its_queue_with_its_key(operator, store):
    id_ = dead(store, "a", '{"args":[1]}', ERRORS)

    (note,) = retry(operator, id_)

    assert note.startswith("Retry: 1 message changed.")
    row = live(id_)
    assert (row.key, row.queue, row.payload, row.attempt, row.errors) == ("a", "dying", '{"args":[1]}', 0, None)
    assert run(store, "dying").id == id_
    assert not FinishedMessage.objects.exists()
    assert "on w: ValueError: <no>" in text_of(operator.get(f"/admin/delayedq/message/{id_}/change/"))


def test_dead_letters_are_retried_later_and_spread(operator, store):
    ids = [dead(store, f"{n}") for n in range(10)]
    retry(operator, *ids, start="2126-01-01T00:00", amount=1, unit="hours", jitter=10)
    due = sorted(live(id_).scheduled_at - datetime(2126, 1, 1, 5, tzinfo=UTC) for id_ in ids)
    assert timedelta(0) <= due[0]
    assert due[-1] < timedelta(hours=1)
    assert len(set(due)) == 10


def test_a_confirmation_shows_how_many_dead_letters_cannot_be_retried(operator, store):
    taken, free, fine = dead(store, "a"), dead(store, "b"), succeed(store, "c")
    offer(store, "a")

    confirmation = tick(operator, "retry", taken, free, fine, where=HISTORY)
    text = text_of(confirmation)
    assert "To be changed: 1 message ." in text
    assert "1 not dead letters (any more)" in text
    assert "1 whose key a live message has" in text

    (note,) = said(confirm(operator, confirmation, HISTORY, amount=0, unit="minutes", jitter=0))
    assert note.startswith("Retry: 1 message changed, 2 skipped (1 their key was taken, 1 ended).")
    assert {row.pk for row in FinishedMessage.objects.all()} == {taken, fine}


def test_only_dead_letters_are_retried_whatever_the_list_shows(operator, store):
    succeed(store, "a")
    id_ = dead(store, "b")
    confirm(operator, choose_all(operator, "retry", "", HISTORY), HISTORY, amount=0, unit="minutes", jitter=0)
    assert [row.pk for row in Message.objects.all()] == [id_]


def test_all_that_match_are_retried_in_several_calls(operator, store, monkeypatch):
    monkeypatch.setattr(edits, "CHUNKS", 2)
    monkeypatch.setattr(dead_letters, "CHUNK", 3)
    ids = [dead(store, f"{n}") for n in range(14)]
    taken = offer(store, "13")  # the key of the latest dead letter, which is redriven first
    dead(store, "other", kind="tests.other")

    confirmation = choose_all(operator, "retry", "kind=tests.remind", HISTORY)
    (note,) = said(confirm(operator, confirmation, HISTORY, amount=0, unit="minutes", jitter=0))

    assert note.startswith("Retry: 13 messages changed, 1 skipped (1 their key was taken).")
    assert set(Message.objects.values_list("id", flat=True)) == {*ids[:13], taken}


def test_messages_that_fail_again_are_not_retried_by_the_same_form(operator, store):
    dead(store, "a")
    confirmation = choose_all(operator, "retry", "", HISTORY)
    again = dead(store, "b")
    confirm(operator, confirmation, HISTORY, amount=0, unit="minutes", jitter=0)
    assert FinishedMessage.objects.get().pk == again


def test_a_retry_can_be_undone_until_it_starts(operator, store):
    ids = [dead(store, "a", errors=ERRORS), dead(store, "b")]
    before = list(FinishedMessage.objects.order_by("id").values())
    retry(operator, *ids, start="2126-01-01T00:00")

    edit = Edit.objects.get()
    page = operator.post(f"{EDITS}{edit.pk}/undo/", follow=True)

    assert said(page)[-1] == "Undone: 2 messages changed."
    assert list(FinishedMessage.objects.order_by("id").values()) == before
    assert not Message.objects.exists()


def test_a_retry_that_has_started_is_not_undone(operator, store):
    id_ = dead(store, "a")
    retry(operator, id_)
    run(store, "dying")
    page = operator.post(f"{EDITS}{Edit.objects.get().pk}/undo/", follow=True)
    assert said(page)[-1] == "Undone: 0 messages changed, 1 skipped (1 changed meanwhile)."
    assert live(id_).leased_by == "worker-1"
