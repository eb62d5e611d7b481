"""Keeping the leases of workers, and releasing what those held that died."""

from __future__ import annotations

import math
import multiprocessing
import os
import re
import signal
import threading
from datetime import timedelta

import pytest
from django.db import OperationalError, connections
from django.utils import timezone

from delayedq.core.lifecycle import FinalOutcome
from delayedq.models import FinishedMessage, Message
from delayedq.store.protocol import ClaimRequest, Finish
from delayedq.worker import keeper as hung
from delayedq.worker import keeper as lease_keeper
from delayedq.worker import shared_leases
from delayedq.worker.keeper import LeaseKeeper
from delayedq.worker.shared_leases import SharedLeases
from tests.partitioned import partitions, plain_afterwards
from tests.store.given import kill_others, message
from tests.worker.attempts import PATIENCE
from tests.worker.conftest import eventually
from tests.worker.keepers import LANE, LONG, Keeping, keeping, options

LEASE = timedelta(seconds=0.6)


def until(claimed):
    return Message.objects.get(id=claimed.id).leased_until


# Renewing


@pytest.mark.slow
def test_what_is_held_is_renewed_again_and_again(store, claim):
    first, second, lease = SharedLeases(8), SharedLeases(8), timedelta(seconds=3)
    held = [*claim(first, 2, lease), *claim(second, 1, lease)]
    with keeping(store, first, second, lease=lease):
        for _ in range(3):
            before = {one.id: until(one) for one, _ in held}
            eventually(lambda before=before: all(until(one) > before[one.id] for one, _ in held))
            assert not Message.objects.expired().exists()


def test_what_is_held_later_is_renewed_too_and_what_was_dropped_is_not(store, claim):
    leases = SharedLeases(8)
    with keeping(store, leases, lease=LEASE):
        (first, slot), (second, _) = claim(leases, 2, LEASE)
        before = until(second)
        eventually(lambda: until(second) > before)
        leases.drop(slot)
        eventually(lambda: Message.objects.expired().filter(id=first.id).exists())
        after = until(second)
        eventually(lambda: until(second) > after)


@pytest.mark.slow
def test_expired_leases_may_be_claimed_only_while_renewals_go_through(store, monkeypatch):
    leases, away = SharedLeases(8), threading.Event()
    leases.let_claim_expired(0)
    renew = type(store).renew

    def renew_unless_away(*args):
        if away.is_set():
            raise OperationalError("it is away")
        return renew(*args)

    monkeypatch.setattr(type(store), "renew", renew_unless_away)
    with keeping(store, leases, lease=timedelta(seconds=2)):
        eventually(leases.may_claim_expired)
        away.set()
        eventually(lambda: not leases.may_claim_expired())
        away.clear()
        eventually(leases.may_claim_expired)


def test_after_an_interruption_others_may_renew_before_expired_leases_are_claimed(store):
    leases = SharedLeases(8)
    leases.let_claim_expired(0)
    keeper = Keeping(store, leases, lease=timedelta(seconds=60)).keeper
    may_claim = []
    for moment in (1000, 1020, 1080, 1100, 1131):
        leases.let_claim_expired(0)
        keeper._let_claim_expired(moment)
        may_claim.append(leases.may_claim_expired())
    assert may_claim == [False, True, False, True, False]


def test_a_lost_lease_is_reported_to_its_worker_and_to_no_other(store, claim):
    leases = SharedLeases(8)
    (lost, slot), (kept, other) = claim(leases, 2, LEASE)
    with keeping(store, leases, lease=LEASE):
        Message.objects.filter(id=lost.id).update(lease_token=lost.token - 1)
        eventually(lambda: leases.is_lost(slot, lost.token))
        assert not leases.is_lost(other, kept.token)
    assert until(lost) < timezone.now() + LONG


def test_a_cancelled_message_is_reported_to_its_worker(store, claim):
    leases = SharedLeases(8)
    ((claimed, slot),) = claim(leases, 1, LEASE, key="a")
    with keeping(store, leases, lease=LEASE):
        assert store.unschedule(claimed.kind, "a")
        eventually(lambda: leases.is_lost(slot, claimed.token))


def test_a_message_that_another_worker_took_over_is_lost_to_the_first_alone(store, claim):
    """Both hold it: the first froze past its lease."""
    first, second = SharedLeases(8), SharedLeases(8)
    ((old, slot),) = claim(first, 1, -LEASE)
    (new,) = store.claim(ClaimRequest(LANE, 1, LEASE, "another"))
    assert new.id == old.id
    other = second.hold(new.id, new.token)
    with keeping(store, first, second, lease=LEASE):
        for _ in range(2):
            before = until(new)
            eventually(lambda before=before: until(new) > before)
        assert (first.is_lost(slot, old.token), second.is_lost(other, new.token)) == (True, False)


# Releasing


def attempts():
    return dict(Message.objects.waiting().values_list("id", "attempt"))


def test_what_a_dead_worker_had_not_started_is_given_back_uncharged(store, claim):
    leases = SharedLeases(8)
    (started, slot), (waiting, _) = claim(leases, 2)
    leases.start(slot)
    with keeping(store, leases) as kept:
        kept.release_exited(0)
        assert attempts() == {waiting.id: 0}
        assert Message.objects.leased().get().id == started.id
        assert leases.entries() == []


def test_a_worker_that_gave_up_gives_all_of_it_back(store, claim):
    leases = SharedLeases(8)
    (started, slot), (waiting, _) = claim(leases, 2)
    leases.start(slot)
    with keeping(store, leases) as kept:
        kept.release_exited(0, all_of_it=True)
        assert attempts() == {started.id: 0, waiting.id: 0}


def test_the_living_keep_what_they_hold(store, claim):
    dead, alive = SharedLeases(8), SharedLeases(8)
    claim(dead)
    claim(alive)
    with keeping(store, dead, alive) as kept:
        kept.release_exited(0)
        assert (len(dead.entries()), len(alive.entries())) == (0, 1)
        assert Message.objects.leased().count() == 1


def test_one_death_after_another_is_answered(store, claim):
    all_leases = [SharedLeases(8) for _ in range(3)]
    with keeping(store, *all_leases) as kept:
        for number in (2, 0, 1, 1):
            claim(all_leases[number])
            kept.release_exited(number)
        assert not Message.objects.leased().exists()


def test_when_the_supervisor_is_gone_all_that_was_not_started_is_given_back(store, claim):
    all_leases = [SharedLeases(8), SharedLeases(8)]
    ((_, slot),) = claim(all_leases[0])
    all_leases[0].start(slot)
    claim(all_leases[1], 2)
    with keeping(store, *all_leases) as kept:
        kept.pipe.close()
        kept.thread.join(PATIENCE)
        assert sorted(attempts().values()) == [0, 0]
        assert Message.objects.leased().count() == 1


def test_an_orphaned_keeper_ends_although_nobody_waits_for_its_dead_worker(store, claim, asleep):
    leases = SharedLeases(8)
    claim(leases)
    leases.register(asleep)
    with keeping(store, leases) as kept:
        kept.pipe.close()
        eventually(lambda: kept.keeper._orphaned)
        assert kept.thread.is_alive()
        os.kill(asleep, signal.SIGKILL)
        kept.thread.join(PATIENCE)
        assert not kept.thread.is_alive()
    assert list(attempts().values()) == [0]


def test_a_process_that_was_given_the_id_of_a_dead_worker_is_not_killed(store, asleep, monkeypatch):
    monkeypatch.setattr(hung, "SHORTEST_LIMIT", 0.0)
    leases = SharedLeases(8)
    leases.register(asleep)
    workers = hung.HungWorkers(store, [leases], timedelta(0))
    monkeypatch.setattr(shared_leases, "find", lambda _: None)
    workers.end()
    workers.end()
    assert workers.reasons == {}
    os.kill(asleep, 0)


# Pruning


@pytest.fixture
def history(store):
    """One row per outcome, a day old."""
    for outcome in FinalOutcome:
        store.offer(message(outcome.value, scheduled_at=None))
        (claimed,) = store.claim(ClaimRequest(LANE, 1, LONG, "worker"))
        store.settle([Finish(claimed, outcome, 1.0, 0.5)], "worker")
    FinishedMessage.objects.update(finished_at=timezone.now() - timedelta(days=1))


def left():
    return set(FinishedMessage.objects.values_list("key", flat=True))


def test_old_history_is_pruned_but_dead_letters_stay(store, history, settings):
    settings.DELAYEDQ = {"RETENTION": timedelta(hours=23)}
    with keeping(store) as kept:
        kept.thread.join(0)
        eventually(lambda: left() == {"failed"})


@pytest.mark.slow
@pytest.mark.parametrize("retention", [timedelta(hours=25), None], ids=["young", "for ever"])
def test_history_within_its_time_stays(store, history, settings, retention):
    settings.DELAYEDQ = {"RETENTION": retention}
    leases = SharedLeases(8)
    with keeping(store, leases) as kept:
        kept.release_exited(0)
        kept.release_exited(0)  # by now it has pruned once at least
    assert left() == {outcome.value for outcome in FinalOutcome}


def test_much_history_is_pruned_in_small_batches_without_a_rest(store, history, settings, monkeypatch):
    settings.DELAYEDQ = {"RETENTION": timedelta(hours=23)}
    monkeypatch.setattr(lease_keeper, "PRUNE_ROWS", 1)
    with keeping(store, lease=LEASE):
        eventually(lambda: left() == {"failed"})


def test_a_locked_history_is_pruned_later_and_is_no_outage(store, claim, history, settings, monkeypatch, caplog):
    settings.DELAYEDQ = {"RETENTION": timedelta(hours=23)}
    leases = SharedLeases(8)
    claim(leases)

    def fail(*_):
        raise OperationalError("canceling statement due to lock timeout")

    with monkeypatch.context() as locked:
        locked.setattr(type(store), "prune", fail)
        with keeping(store, leases) as kept:
            kept.release_exited(0)
    assert list(attempts().values()) == [0]
    assert "History is not pruned: canceling statement due to lock timeout. Next try in 60 s." in caplog.text
    assert "has not answered" not in caplog.text


# When the database goes away


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_it_goes_on_after_its_connection_was_killed(store, claim, connection, caplog):
    leases = SharedLeases(8)
    ((claimed, _),) = claim(leases, 1, LEASE)
    with keeping(store, leases, lease=LEASE) as kept:
        before = until(claimed)
        eventually(lambda: until(claimed) > before)
        assert kill_others(connection) >= 1  # beside its own, one that the server has not ended yet
        before = until(claimed)
        eventually(lambda: until(claimed) > before)
        # What it was doing when its connection was killed is told.
        assert "the database has not answered" in caplog.text or "History is not pruned" in caplog.text
        kept.release_exited(0)
    assert attempts() == {claimed.id: 0}


def test_its_connection_is_closed_at_the_end(store, alias, monkeypatch):
    opened = []
    wrapper = type(connections[alias])
    connect = wrapper.connect
    monkeypatch.setattr(wrapper, "connect", lambda self: opened.append(self) or connect(self))
    leases = SharedLeases(8)
    with keeping(store, leases) as kept:
        kept.release_exited(0)
    mine = connections[alias]
    assert [one for one in opened if one is not mine and one.connection is not None] == []
    assert len(opened) == 1


def test_what_a_stuck_worker_had_not_started_goes_to_others(store, claim, monkeypatch):
    """Its loop has not turned for longer than a lease: a call into C holds its interpreter, or it is frozen."""
    monkeypatch.setattr(lease_keeper, "SILENCE", -1.0)
    leases = SharedLeases(8)
    claim(leases, 2, lease=timedelta(microseconds=1))
    running, waiting = leases.entries()
    leases.start(running.slot)
    far_end = multiprocessing.Pipe()[0]
    LeaseKeeper(store, [leases], options(timedelta(microseconds=1)), far_end)._recall()
    assert leases.is_lost(waiting.slot, waiting.token)
    assert not leases.is_lost(running.slot, running.token)
    rows = dict(Message.objects.values_list("id", "lease_token"))
    assert rows == {running.id: running.token, waiting.id: None}
    assert Message.objects.get(id=waiting.id).attempt == 0
    connections[store.alias].close()


# Partitions of the history


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_the_keeper_makes_the_partition_that_is_due(store, connection):
    with plain_afterwards(connection):
        [*store.at(store.now() - timedelta(days=100)).partition_history(None)]
        due = f"{store.now():%Y%m}"
        assert due not in partitions(connection)
        with keeping(store, SharedLeases(1), lease=LEASE):
            eventually(lambda: due in partitions(connection))


GUEST = """
CREATE ROLE guest;
GRANT ALL ON SCHEMA public TO guest;
GRANT ALL ON ALL TABLES IN SCHEMA public TO guest;
SET ROLE guest
"""


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_a_user_who_may_not_change_partitions_is_told_once_and_then_ever_more_rarely(store, connection, caplog):
    keeper = LeaseKeeper(store, [SharedLeases(1)], options(LEASE), multiprocessing.Pipe()[0])
    with plain_afterwards(connection), connection.cursor() as cursor:
        [*store.at(store.now() - timedelta(days=100)).partition_history(None)]
        cursor.execute(GUEST)
        try:
            for _ in range(3):
                keeper._maintain_partitions()
            keeper._partition_at = 0.0  # an hour later
            keeper._maintain_partitions()
        finally:
            cursor.execute("RESET ROLE; DROP OWNED BY guest; DROP ROLE guest")
    first, second = [int(pause) for pause in re.findall(r"must be owner .* Next try in (\d+) s", caplog.text)]
    assert first == 3_600
    assert 1.4 * first < second < 2.6 * first


def test_partitions_are_maintained_in_a_wait_of_their_own_after_all_else(store, monkeypatch):
    """One that is not answered is given up for what it is, and takes nothing of the time of the others."""
    seen = []
    keeper = LeaseKeeper(store, [SharedLeases(1)], options(LEASE), multiprocessing.Pipe()[0])

    def maintain(self, retention):
        seen.extend(wait.what for wait in keeper._silence._waits if wait.since != math.inf)

    monkeypatch.setattr(type(store), "maintain_partitions", maintain)
    keeper._work()
    assert seen == ["the maintenance of partitions"]
    assert keeper._sweep_at > 0
