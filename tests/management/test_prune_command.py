"""`manage.py delayedq prune`: what it deletes, what it keeps, and what it says."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from delayedq.core.lifecycle import FinalOutcome
from delayedq.models import Edit, FinishedMessage, Message
from delayedq.operations import pruning
from delayedq.store import retention
from delayedq.store.protocol import Finish, Lane
from tests.store.given import claim_one, message, settle

DAY = timedelta(days=1)


@pytest.fixture
def ended(store):
    """Let a message end this number of days ago."""

    def end(key, days, outcome=FinalOutcome.SUCCEEDED, queue="mail"):
        when = store.now() - days * DAY
        store.at(when).offer(message(key, queue=queue, scheduled_at=when))
        settle(
            store,
            Finish(claim_one(store, lanes=(Lane(queue, 0),), now=when), outcome, started=None, finished=0.0),
            now=when,
        )

    return end


def left():
    return set(FinishedMessage.objects.values_list("key", flat=True))


def prune(*arguments):
    out, err = StringIO(), StringIO()
    call_command("delayedq", "prune", *arguments, stdout=out, stderr=err)
    return out.getvalue() + err.getvalue()


def test_what_ended_longer_ago_goes_and_dead_letters_stay(ended):
    ended("old", 31)
    ended("cancelled", 31, FinalOutcome.CANCELLED)
    ended("dead", 31, FinalOutcome.FAILED)
    ended("new", 29)

    assert prune("--older-than", "30d").startswith("2 ended messages from before ")
    assert left() == {"dead", "new"}


def test_dead_letters_go_on_request_and_only_they(ended):
    ended("old", 31)
    ended("dead", 31, FinalOutcome.FAILED)
    ended("died lately", 29, FinalOutcome.FAILED)

    said = prune("--failed-older-than", "30d")
    assert said.startswith("1 dead letter from before ")
    assert said.endswith(" was deleted.\n")
    assert left() == {"old", "died lately"}
    prune("--failed-older-than", "30d")  # nothing is left, and nothing recorded
    prune("--older-than", "30d", "--dry-run")
    assert [edit.description for edit in Edit.objects.all()] == [said.strip()]


def test_both_have_an_age_of_their_own(ended):
    ended("old", 3)
    ended("dead", 3, FinalOutcome.FAILED)
    ended("long dead", 9, FinalOutcome.FAILED)

    first, second = prune("--older-than", "36h", "--failed-older-than", "1w").splitlines()
    assert (first[:15], second[:13]) == ("1 ended message", "1 dead letter")
    assert left() == {"dead"}


def test_only_one_queue(ended):
    ended("mail", 3)
    ended("sms", 3, queue="sms")
    ended("dead", 3, FinalOutcome.FAILED, queue="sms")

    assert "1 ended message of the queue sms from before" in prune("--older-than", "1d", "--queue", "sms")
    assert left() == {"mail", "dead"}
    prune("--failed-older-than", "1d", "--queue", "mail")
    assert left() == {"mail", "dead"}


def test_a_dry_run_counts_the_same_and_deletes_nothing(ended):
    ended("old", 3)
    ended("dead", 3, FinalOutcome.FAILED)
    arguments = ["--older-than", "1d", "--failed-older-than", "2d"]

    said = prune(*arguments, "--dry-run")
    assert "1 ended message from before" in said
    assert said.count("would be deleted") == 2
    assert left() == {"old", "dead"}
    assert prune(*arguments).count("was deleted") == 2
    assert left() == set()


def test_batches_are_small_and_all_are_visited(ended, store, monkeypatch):
    """Among dead letters, those of another queue, and equal times."""
    monkeypatch.setattr(pruning, "BATCH", 2)
    monkeypatch.setattr(pruning, "DEPTH", 3)
    for number in range(4):
        ended(f"{number}", 2)
        ended(f"dead {number}", 2, FinalOutcome.FAILED)
        ended(f"sms {number}", 2, queue="sms")
    FinishedMessage.objects.update(finished_at=store.now() - 2 * DAY)

    assert all(batch.deleted <= 2 for batch in pruning.prune(store, store.now(), queue="sms", dry_run=True))
    assert prune("--older-than", "1d", "--queue", "mail").startswith("4 ended messages")
    assert prune("--older-than", "1d").startswith("4 ended messages")
    assert left() == {f"dead {number}" for number in range(4)}


def test_live_messages_stay(store):
    store.offer(message("waits", scheduled_at=store.now() - 9 * DAY))

    told = prune("--older-than", "0s", "--failed-older-than", "0s").splitlines()
    assert [line[:2] for line in told] == ["0 ", "0 "]
    assert Message.objects.count() == 1


def test_what_the_archive_needs_stays_and_is_told(ended, store, monkeypatch):
    monkeypatch.setattr(retention, "_NEEDED", [])
    retention.keep_history(lambda: Message.objects.filter(key="batch").values_list("scheduled_at", flat=True))
    for days in (9, 8, 3):
        ended(f"{days}", days)
        ended(f"dead {days}", days, FinalOutcome.FAILED)
    store.offer(message("batch", scheduled_at=store.now() - 5 * DAY))

    for dry in (["--dry-run"], []):
        first, kept, second, too = prune("--older-than", "1d", "--failed-older-than", "1d", *dry).splitlines()
        assert (first[:2], second[:2]) == ("1 ", "1 ")
        assert kept == too == "2 are kept: an open batch of the archive still needs them."
    assert left() == {"9", "8", "dead 9", "dead 8"}
    store.unschedule(message("batch").kind, "batch")
    assert prune("--older-than", "1d").startswith("2 ")


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_nothing_is_deleted_that_was_not_asked_for(ended):
    ended("old", 99)

    with pytest.raises(CommandError, match="Say what to delete: --older-than AGE, --failed-older-than AGE, or both"):
        prune()
    assert left() == {"old"}


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
@pytest.mark.parametrize("age", ["30", "d", "-1d", "1y", "1d12h", "", "nan", "1e9d", "٣d", "9" * 400 + "d"])
def test_an_age_that_is_none_is_refused_with_an_example(ended, age):
    ended("old", 99)

    with pytest.raises(CommandError, match=r"as in 30d or 12h|is too long"):
        prune(f"--older-than={age}")
    assert left() == {"old"}


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_an_age_before_all_time_is_refused(ended):
    ended("old", 99)

    with pytest.raises(CommandError, match="400,000 days ago is before the year 1,000"):
        prune("--older-than", "400000d")
    assert left() == {"old"}


def test_a_queue_that_nobody_knows_is_told(ended):
    ended("old", 9)

    assert "the queue 'mial'" in prune("--older-than", "1d", "--queue", "mial")
    assert left() == {"old"}
