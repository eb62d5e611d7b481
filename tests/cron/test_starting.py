"""May a tick start now? Missed ones do not, also without a beat; and overlap is allowed, skipped or waits."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from delayedq.core.edits import Spread
from delayedq.cron.definitions import read
from delayedq.cron.starting import check_start, must_ask
from delayedq.exceptions import Cancel, Snooze
from delayedq.models import CronSchedule, FinishedMessage, Message, Outcome
from delayedq.operations.dead_letters import redrive
from delayedq.operations.edits import begin
from delayedq.store import operator_store
from delayedq.store.operator import FIRST, LAST, EndedQuery
from delayedq.store.protocol import GiveBack
from tests.app.models import Mark
from tests.cron.given import MINUTELY, NOW, at, beat_at, cancelled, claim_due, metadata_of
from tests.router import ChosenDatabase
from tests.store.given import fail, retry, settle, succeed, together

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


@pytest.mark.parametrize("jitter", [None, timedelta(minutes=3)])
def test_a_dead_letter_that_is_redriven_runs_however_late(store, alias, jitter):
    """Its new due time is that of the redrive: hours after the tick expired."""
    given = {"jitter": jitter} if jitter else {}
    beat_at(store, store.now() - timedelta(days=1), own={**MINUTELY, "misfire": "skip", **given})
    first = min(claim_due(store, store.now()), key=lambda claimed: claimed.scheduled_at)
    settle(store, fail(first), now=store.now())
    positions = operator_store(alias).keyset_scan_history(LAST, FIRST.at, 10, 10, EndedQuery(Outcome.FAILED)).found
    edit = begin(store, "retry", "all", "")
    redrive(store, edit, [position.id for position in positions], Spread(store.now(), timedelta()), store.now())
    (again,) = claim_due(store, store.now() + timedelta(seconds=1))
    assert (again.id, again.attempt) == (first.id, 1)
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
    schedule, now = {**WAIT, "cron": "* * * * * */10", "misfire": "once"}, store.now()
    beat_at(store, now - timedelta(seconds=20), own=schedule)
    one, two = claim_due(store, now)
    start(one)
    with pytest.raises(Snooze):
        start(two)
    settle(store, GiveBack(two, charged=False, delay=1.0), now=now)
    beat_at(store, now + timedelta(minutes=5), own=schedule)
    assert Message.objects.filter(id=two.id).exists()


def test_with_once_and_wait_only_the_latest_missed_tick_runs(store):
    """Those before it could be claimed before a beat had judged them."""
    beat_at(store, store.now().replace(second=30, microsecond=0) - timedelta(hours=5), own={**WAIT, "misfire": "once"})
    claims = claim_due(store, store.now())
    assert len(claims) == 10
    for claimed in claims:
        with pytest.raises(Cancel, match="It was missed"):
            start(claimed)


def waiting_since_yesterday(store, **options):
    """Two ticks of a day ago: one runs, and one waits for it, put off for the last time a moment ago."""
    beat_at(store, store.now() - timedelta(days=1), own={**WAIT, **options})
    one, two = sorted(claim_due(store, store.now()), key=lambda claimed: claimed.scheduled_at)[:2]
    CronSchedule.objects.update(running_id=one.id)
    return one, two._replace(scheduled_at=two.scheduled_at_initially + timedelta(seconds=40))


@pytest.mark.parametrize("ended", [True, False])
def test_a_tick_does_not_wait_beyond_its_deadline(store, ended):
    one, two = waiting_since_yesterday(store, starting_deadline=timedelta(minutes=5))
    if ended:
        settle(store, succeed(one), now=store.now())
    with pytest.raises(Cancel, match="It was missed"):
        start(two)


def test_a_tick_that_began_after_it_had_waited_is_held_to_no_deadline(store):
    one, two = waiting_since_yesterday(store, starting_deadline=timedelta(minutes=5))
    settle(store, succeed(one), now=store.now())
    CronSchedule.objects.update(running_id=two.id)
    start(two)


def test_it_asks_again_no_later_than_at_its_deadline(store, monkeypatch):
    monkeypatch.setattr("delayedq.cron.starting.LONGEST", timedelta(hours=1))
    monkeypatch.setattr("delayedq.cron.starting.SHORTEST", timedelta(hours=1))
    beat_at(store, store.now() - timedelta(seconds=130), own={**WAIT, "starting_deadline": timedelta(seconds=140)})
    one, two = sorted(claim_due(store, store.now()), key=lambda claimed: claimed.scheduled_at)[:2]
    start(one)
    with pytest.raises(Snooze) as snooze:
        start(two)
    assert store.now() + snooze.value.delay <= two.scheduled_at + timedelta(seconds=141)


def test_overlap_holds_on_a_database_that_is_not_the_default_one(store, alias, monkeypatch):
    """A worker of `run_workers --backend`."""
    monkeypatch.setattr("delayedq.store._served", [alias])
    beat_at(store, NOW, own=SKIP)
    one, two = due(store, 2)
    monkeypatch.setattr(ChosenDatabase, "alias", "default" if alias != "default" else alias)
    start(one)
    with pytest.raises(Cancel):
        start(two)


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
