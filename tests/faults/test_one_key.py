"""What the calls about a key may answer together: what is refused, and what overlaps leave open."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from types import SimpleNamespace

import pytest

from tests.faults.linearizable import is_linearizable
from tests.faults.one_key import Judge, Left
from tests.faults.records import Record
from tests.store.given import LEASE, NOW

LATER = NOW + LEASE * 1.01
#: What a claim of the message 7 answers.
FIRST = SimpleNamespace(id=7, token=1, payload="0", attempt=1, generation=0, scheduled_at=NOW)
SECOND = SimpleNamespace(id=7, token=2, payload="0", attempt=2, generation=0, scheduled_at=NOW)
ENDED = Left(None, Counter([("0", "succeeded", 1)]))


def call(began, ended, verb, answer, *moments, **given):
    return Record(verb, "a", given, 0, began, ended, list(moments or (NOW,)), answer)


def offer(began, ended, outcome="created", payload="0", policy="replace", **given):
    return call(began, ended, "offer", (outcome, 7), payload=payload, due=NOW, policy=policy, **given)


def claim(began, ended, claimed, *moments):
    return call(began, ended, "claim", claimed, *moments, token=claimed.token)


def end(began, ended, claimed, answer, *moments):
    return call(began, ended, "finish", answer, *moments, claimed=claimed)


def explained(*records, left=ENDED):
    judge = Judge(records, records, LEASE, left)
    return is_linearizable(records, judge.outcomes, judge.ends_well, judge.start)


def test_one_life_of_a_message():
    assert explained(offer(1, 2), claim(3, 4, FIRST), end(5, 6, FIRST, "done"))


@pytest.mark.parametrize("left", [Left(None, Counter()), Left(None, Counter({("0", "succeeded", 1): 2}))])
def test_what_was_lost_or_ended_twice(left):
    assert not explained(offer(1, 2), claim(3, 4, FIRST), end(5, 6, FIRST, "done"), left=left)


def test_a_lease_that_holds_is_claimed_by_nobody_else():
    begun = offer(1, 2), claim(3, 4, FIRST)
    assert not explained(*begun, claim(5, 6, SECOND), end(7, 8, SECOND, "done"))
    late = claim(5, 6, SECOND, LATER), end(7, 8, SECOND, "done", LATER), end(9, 10, FIRST, "lost", LATER)
    assert explained(*begun, *late, left=Left(None, Counter([("0", "succeeded", 2)])))


def test_who_lost_its_lease_ends_nothing():
    begun = offer(1, 2), claim(3, 4, FIRST), claim(5, 6, SECOND, LATER)
    assert not explained(*begun, end(7, 8, FIRST, "done", LATER), left=Left(None, Counter([("0", "succeeded", 2)])))


def test_what_was_replaced_while_it_ran_is_not_ended_by_its_end():
    replaced = offer(1, 2), claim(3, 4, FIRST), offer(5, 6, "updated", "1")
    assert not explained(*replaced, end(7, 8, FIRST, "done"))
    left = Left((7, "1", NOW, 1, 0), Counter([("0", "superseded", 1)]))
    assert explained(*replaced, end(7, 8, FIRST, "superseded"), left=left)


def test_a_call_whose_answer_was_lost_has_happened_or_not():
    unknown = end(5, 6, FIRST, None)
    unknown.is_unknown = True
    begun = offer(1, 2), claim(3, 4, FIRST)
    assert explained(*begun, unknown)
    assert explained(*begun, unknown, left=Left((7, "0", NOW, 0, 1), Counter()))


def test_what_was_busy_met_another_call():
    begun = offer(1, 2), claim(3, 4, FIRST)
    then = end(7, 8, FIRST, "done")
    assert not explained(*begun, end(5, 6, FIRST, "busy"), then)
    beside = call(5, 6, "drop", True)
    beside.is_undone = True
    assert explained(*begun, end(5, 6, FIRST, "busy"), beside, then)


def test_what_was_cancelled_and_brought_back_keeps_the_time_of_its_last_attempt():
    """The moment of that attempt's end is one of two, and only the second explains what is left."""
    given_back = call(5, 6, "retry", "done", NOW, LATER, claimed=FIRST, delay=timedelta(0))
    edits = (
        call(7, 8, "cancel", True, LATER, edit=1, id_=7),
        call(9, 10, "undo cancel", True, LATER, edit=1, id_=7),
    )
    left = Left((7, "0", LATER, 0, 1), Counter())
    assert explained(offer(1, 2), claim(3, 4, FIRST), given_back, *edits, left=left)
