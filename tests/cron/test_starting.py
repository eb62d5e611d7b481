"""May a tick start now? Missed ones do not, also without a beat; and overlap is allowed, skipped or waits."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from delayedq.cron.definitions import read
from delayedq.cron.starting import check_start, must_ask
from delayedq.exceptions import Cancel, Snooze
from delayedq.models import CronSchedule, FinishedMessage, Message
from delayedq.store.protocol import GiveBack
from tests.app.models import Mark
from tests.cron.given import MINUTELY, NOW, at, beat_at, cancelled, claim_due, metadata_of
from tests.store.given import retry, settle, succeed, together

SKIP = {**MINUTELY, "misfire": "all", "overlap": "skip"}
WAIT = {**SKIP, "overlap": "wait"}


def start(claimed):
    check_start(claimed, metadata_of(claimed)["cron"])


def due(store, count):
    """That many ticks, claimed one after the other."""
    claims = claim_due(store, at(minutes=count - 1))
    assert len(claims) == count
    return claims


# Missed ticks


@pytest.mark.parametrize(
    ("policy", "ran"),
    [
        ({"misfire": "skip"}, 0),
        ({"misfire": "once"}, 0),
        ({"misfire": "all"}, 10),
        ({"misfire": "all", "starting_deadline": timedelta(minutes=5)}, 0),
        ({"misfire": "skip", "starting_deadline": timedelta(days=1)}, 10),
    ],
    ids=str,
)
def test_a_worker_that_knows_no_schedule_judges_missed_ticks_as_it_claims_them(store, drain, options, policy, ran):
    placed_at = store.now().replace(second=30, microsecond=0) - timedelta(hours=5)
    beat_at(store, placed_at, own={**MINUTELY, **policy})
    drain(replace(options, cron=False))

    assert Mark.objects.count() == ran
    assert len(cancelled()) == 10 - ran
    ended = FinishedMessage.objects.cancelled()
    assert {(row.attempts, row.started_at) for row in ended} <= {(0, None)}


def test_a_tick_that_somebody_moved_by_hand_runs_however_late(store):
    beat_at(store, NOW, own={**MINUTELY, "misfire": "skip"})
    Message.objects.filter(scheduled_at=at()).update(scheduled_at=at(minutes=9, seconds=1))
    *_, moved = claim_due(store, at(minutes=9, seconds=1))
    start(moved)


def test_a_tick_that_has_begun_before_is_not_missed(store):
    beat_at(store, NOW, own={**MINUTELY, "misfire": "skip"})
    (claimed,) = claim_due(store, at())
    settle(store, retry(claimed, delay=0.0), now=at())
    again = next(one for one in claim_due(store, at(seconds=1)) if one.id == claimed.id)
    start(again)


def test_messages_that_are_no_ticks_are_not_asked(store):
    beat_at(store, NOW, own={**MINUTELY, "misfire": "all"})
    (claimed,) = claim_due(store, at())
    assert not must_ask(claimed)
    assert not must_ask(claimed._replace(metadata=None))


# Overlap


def test_skip_cancels_a_tick_while_another_one_has_not_ended(store):
    beat_at(store, NOW, own=SKIP)
    one, two, three = due(store, 3)
    start(one)
    with pytest.raises(Cancel, match=r"Another tick of its schedule has not ended \(overlap: skip\)"):
        start(two)
    start(one)  # again, as after a retry
    settle(store, succeed(one), now=at(minutes=3))
    start(three)


def test_a_tick_that_waits_for_its_next_attempt_has_not_ended(store):
    beat_at(store, NOW, own=SKIP)
    one, two = due(store, 2)
    start(one)
    settle(store, retry(one, delay=600.0), now=at(minutes=2))
    with pytest.raises(Cancel):
        start(two)


def test_a_tick_that_was_given_back_unstarted_holds_nobody_up(store):
    beat_at(store, NOW, own=SKIP)
    one, two = due(store, 2)
    start(one)
    settle(store, GiveBack(one, charged=False), now=at(minutes=2))
    start(two)
    (again,) = [claimed for claimed in claim_due(store, at(minutes=2)) if claimed.id == one.id]
    with pytest.raises(Cancel):
        start(again)


def test_wait_lets_one_tick_wait_and_cancels_those_after_it(store):
    beat_at(store, NOW, own=WAIT)
    one, two, three = due(store, 3)
    start(one)
    with pytest.raises(Snooze) as snooze:
        start(two)
    assert timedelta(seconds=1) <= snooze.value.delay <= timedelta(seconds=30)
    with pytest.raises(Cancel, match=r"waits already \(overlap: wait\)"):
        start(three)
    settle(store, succeed(one), GiveBack(two, charged=False, delay=1.0), now=at(minutes=3))
    (again,) = [claimed for claimed in claim_due(store, at(minutes=3, seconds=2)) if claimed.id == two.id]
    start(again)


def test_a_tick_that_waits_for_another_one_is_not_missed(store):
    """Neither by a beat, nor because the next one comes."""
    schedule = {**WAIT, "misfire": "once"}
    beat_at(store, NOW, own=schedule)
    one, two = due(store, 2)
    start(one)
    with pytest.raises(Snooze):
        start(two)
    settle(store, GiveBack(two, charged=False, delay=1.0), now=at(minutes=1))
    beat_at(store, at(minutes=5), own=schedule)
    assert Message.objects.filter(id=two.id).exists()


@pytest.mark.parametrize("_again", range(3))
def test_of_ticks_that_start_at_once_one_runs(store, _again):
    beat_at(store, NOW, own=SKIP)

    def tried(claimed):
        try:
            start(claimed)
        except Cancel:
            return False
        return True

    started = together(*[lambda claimed=claimed: tried(claimed) for claimed in due(store, 4)])
    assert started.count(True) == 1


def test_other_schedules_and_allowed_overlap_are_not_affected(store):
    beat_at(store, NOW, own=SKIP, other=SKIP, free={**SKIP, "overlap": "allow"})
    claims = claim_due(store, at(minutes=1))
    by_name = {}
    for claimed in claims:
        by_name.setdefault(claimed.key.split("/")[0], []).append(claimed)
    start(by_name["own"][0])
    start(by_name["other"][0])
    assert not any(map(must_ask, by_name["free"]))
    assert CronSchedule.objects.get(name="free").running_id is None


def test_run_by_hand_is_no_tick_and_overlaps(store):
    read("own", SKIP).run()
    (claimed,) = claim_due(store, store.now() + timedelta(seconds=1))
    assert not must_ask(claimed)
