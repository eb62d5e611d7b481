"""What a dead worker held is released although somebody's transaction has locked it: when that is free."""

from __future__ import annotations

import json
import multiprocessing
from datetime import timedelta

import pytest
from django.db import OperationalError, connections, transaction

from delayedq.models import Message, Now
from delayedq.store.claim_tokens import new_token
from delayedq.store.protocol import ClaimRequest, Released
from delayedq.worker import keeper as lease_keeper
from delayedq.worker import releases as releases_module
from delayedq.worker.keeper import LeaseKeeper
from delayedq.worker.releases import Releases
from delayedq.worker.shared_leases import SharedLeases, SharedPairs, SharedReleases
from tests.store.given import LANE, elsewhere, message, undone
from tests.worker.conftest import eventually
from tests.worker.keepers import LONG, keeping, options

BESIDE_SQLITE = pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
REASON = "Its loop was silent."


def lock(claimed):
    """Within the caller's transaction."""
    return Message.objects.select_for_update().get(id=claimed.id)


def rows():
    return dict(Message.objects.values_list("id", "attempt").filter(lease_token=None))


def release_all_of(store, leases, shared=None, lease=LONG, *, all_of_it=False, reason=""):
    """The Releases of a keeper that was told of a death; its first try has been made."""
    releases = Releases(store, lease, shared or SharedReleases(8, 8))
    assert elsewhere(releases.release_all_of, leases, all_of_it=all_of_it, reason=reason)
    return releases


def go_on(releases):
    """As if all pauses were over."""
    releases._retry_at = releases._search_at = 0.0
    releases.go_on()


@BESIDE_SQLITE
def test_what_is_locked_is_renewed_past_its_lease_and_released_when_it_is_free(store, alias, claim):
    leases, lease = SharedLeases(8), timedelta(seconds=2)
    ((claimed, _),) = claim(leases, 1, lease, key="a")
    with keeping(store, leases, lease=lease) as kept:
        with transaction.atomic(using=alias):
            lock(claimed)
            kept.release_exited(0)
            assert leases.entries() == []
            eventually(lambda: elsewhere(Message.objects.filter(leased_until__lte=Now()).exists))
            assert elsewhere(store.claim, ClaimRequest([LANE], 9, lease, "another")) == []
        eventually(lambda: rows() == {claimed.id: 0})


@BESIDE_SQLITE
def test_when_all_workers_have_ended_the_keeper_waits_for_what_is_locked(store, alias, claim):
    leases = SharedLeases(8)
    ((claimed, _),) = claim(leases)
    with keeping(store, leases) as kept:
        with transaction.atomic(using=alias):
            lock(claimed)
            kept.pipe.send(None)
            eventually(lambda: leases.entries() == [])
            assert kept.thread.is_alive()
        kept.thread.join(30)
        assert not kept.thread.is_alive()
    assert rows() == {claimed.id: 0}


@BESIDE_SQLITE
def test_the_next_keeper_releases_what_was_locked_when_the_last_one_was_killed(store, alias, claim):
    leases, shared = SharedLeases(8), SharedReleases(8, 8)
    ((locked, _), (free, _)) = claim(leases, 2)
    with undone(alias):
        lock(locked)
        release_all_of(store, leases, shared)
    assert rows() == {free.id: 0}

    following = Releases(store, LONG, shared)
    assert following.held() == {(locked.id, locked.token)}
    go_on(following)
    assert rows() == {free.id: 0, locked.id: 0}
    assert following.held() == set()
    assert following.is_over(late=True)


def test_idle_workers_are_woken_for_what_was_released_and_for_nothing_else(store, claim, monkeypatch):
    leases, notified = SharedLeases(8), []
    claim(leases, 1, key="a")
    monkeypatch.setattr(type(store), "notify", lambda self: notified.append(self.alias))
    release_all_of(store, leases)
    assert notified == [store.alias]
    release_all_of(store, leases)
    assert notified == [store.alias], "it was not held any more"


def test_what_others_ended_meanwhile_is_not_held_any_more(store, claim):
    leases, shared = SharedLeases(8), SharedReleases(8, 8)
    ((claimed, _),) = claim(leases, 1, key="a")
    shared.unreleased.add([(claimed.id, claimed.token)])
    store.unschedule(claimed.kind, "a")
    keeper = LeaseKeeper(store, [leases], options(LONG), multiprocessing.Pipe()[0], shared_releases=shared)
    keeper._renew()
    assert len(shared.unreleased) == 0


@BESIDE_SQLITE
def test_the_attempt_of_a_process_that_hung_is_charged_with_its_reason_when_its_row_is_free(store, alias, claim):
    leases = SharedLeases(8)
    ((claimed, slot),) = claim(leases)
    leases.start(slot)
    with undone(alias):
        lock(claimed)
        releases = release_all_of(store, leases, reason=REASON)
        assert releases.held() == {(claimed.id, claimed.token)}
    go_on(releases)
    assert rows() == {claimed.id: 1}
    (record,) = json.loads(Message.objects.get().errors)
    assert (record["message"], record["worker"]) == (REASON, "worker")
    assert releases.held() == set()


@BESIDE_SQLITE
def test_what_a_silent_loop_had_not_started_is_released_when_it_is_free(store, alias, claim, monkeypatch):
    monkeypatch.setattr(lease_keeper, "SILENCE", -1.0)
    leases = SharedLeases(8)
    ((claimed, _),) = claim(leases, lease=timedelta(microseconds=1))
    far_end = multiprocessing.Pipe()[0]
    keeper = LeaseKeeper(store, [leases], options(timedelta(microseconds=1)), far_end)
    with undone(alias):
        lock(claimed)
        elsewhere(keeper._recall)
    assert rows() == {}
    go_on(keeper._releases)
    assert rows() == {claimed.id: 0}


def test_what_an_outage_kept_from_being_released_is_released_afterwards(store, claim, monkeypatch):
    """The worker of a silent loop is told once not to start it."""
    monkeypatch.setattr(lease_keeper, "SILENCE", -1.0)
    leases = SharedLeases(8)
    ((claimed, _),) = claim(leases, lease=timedelta(microseconds=1))
    far_end = multiprocessing.Pipe()[0]
    keeper = LeaseKeeper(store, [leases], options(timedelta(microseconds=1)), far_end)

    def fail(_):
        raise OperationalError("it is away")

    with monkeypatch.context() as outage:
        outage.setattr(type(store), "_release", lambda _, held: fail(held))
        with pytest.raises(OperationalError):
            keeper._recall()
    assert rows() == {}
    go_on(keeper._releases)
    assert rows() == {claimed.id: 0}
    connections[store.alias].close()


def test_a_claim_that_commits_after_the_next_keeper_has_begun_is_released(store):
    leases, shared, token = SharedLeases(8), SharedReleases(8, 8), new_token()
    leases.remember_claim(token)
    release_all_of(store, leases, shared)
    store.offer(message(scheduled_at=None))
    store.claim(ClaimRequest([LANE], 1, LONG, "worker", token))

    following = Releases(store, LONG, shared)
    assert not following.is_over(late=True)
    go_on(following)
    assert set(rows().values()) == {0}


def test_a_claim_is_searched_for_until_its_lease_is_over(store):
    leases, shared = SharedLeases(8), SharedReleases(8, 8)
    leases.remember_claim(new_token())
    releases = release_all_of(store, leases, shared, timedelta(0))
    assert len(shared.claims) == 1
    go_on(releases)
    assert releases.is_over(late=True)


def test_deaths_in_a_row_do_not_put_the_search_off(store, monkeypatch):
    moment, leases = 100.0, SharedLeases(8)
    monkeypatch.setattr(releases_module.time, "monotonic", lambda: moment)
    releases = Releases(store, LONG, SharedReleases(8, 8))
    for token in (11, 22, 33):
        leases.remember_claim(token)
        assert releases.release_all_of(leases, all_of_it=False, reason="")
        leases.clear()
        moment += 0.5
    assert releases.due_in() < 0


@BESIDE_SQLITE
def test_when_what_a_search_finds_can_not_be_remembered_it_searches_again_and_does_not_spin(store, alias, monkeypatch):
    leases, token = SharedLeases(8), new_token()
    leases.remember_claim(token)
    releases = release_all_of(store, leases, lease=timedelta(0))
    store.offer(message(scheduled_at=None))
    (late,) = store.claim(ClaimRequest([LANE], 1, LONG, "worker", token))
    with undone(alias), monkeypatch.context() as full:
        full.setattr(SharedPairs, "has_room_for", lambda *_: False)
        lock(late)
        elsewhere(go_on, releases)
        assert 0 < releases.due_in() <= 2
        assert rows() == {}
    go_on(releases)
    assert rows() == {late.id: 0}
    assert releases.is_over(late=True)


def test_what_a_claim_leased_whose_answer_was_lost_is_released(store):
    leases, token = SharedLeases(8), new_token()
    store.offer(message(scheduled_at=None))
    store.claim(ClaimRequest([LANE], 1, LONG, "worker", token))
    leases.remember_claim(token)
    with keeping(store, leases, lease=timedelta(seconds=2)):
        leases.give_up_claim(token)
        eventually(lambda: set(rows().values()) == {0})


def test_a_death_while_no_claim_was_under_way_reads_no_table(store, claim):
    leases, token = SharedLeases(8), new_token()
    leases.remember_claim(token)
    claim(leases)
    leases.forget_claim(token)
    releases = Releases(store, LONG, SharedReleases(8, 8))
    released = []
    store_release = type(store).release
    with pytest.MonkeyPatch.context() as watching:
        watching.setattr(Releases, "_leased_by", lambda _, tokens: set() if not list(tokens) else pytest.fail("read"))
        watching.setattr(type(store), "release", lambda *args: released.append(store_release(*args)) or released[-1])
        assert releases.release_all_of(leases, all_of_it=False, reason="")
    assert released == [Released()]
    assert releases.is_over(late=True)


@BESIDE_SQLITE
def test_when_too_much_is_locked_to_be_remembered_the_shared_leases_are_kept(store, alias, claim):
    leases, shared = SharedLeases(8), SharedReleases(1, 8)
    (a, _), (b, _), (c, _) = claim(leases, 3)
    releases = Releases(store, LONG, shared)
    with undone(alias):
        lock(a)
        assert not elsewhere(releases.release_all_of, leases, all_of_it=False, reason="")
    assert rows() == {b.id: 0, c.id: 0}
    assert releases.release_all_of(leases, all_of_it=False, reason="")
    assert rows() == {a.id: 0, b.id: 0, c.id: 0}


def test_pairs_outlive_the_process_that_wrote_them():
    pairs = SharedPairs(3)

    def write():
        pairs.add([(1, 10), (2, 20), (2, 21)])
        pairs.discard([(2, 20), (9, 9)])

    writer = multiprocessing.get_context("fork").Process(target=write)
    writer.start()
    writer.join()
    assert set(pairs) == {(1, 10), (2, 21)}
    assert pairs.has_room_for([(1, 10), (3, 30)])
    assert not pairs.has_room_for([(3, 30), (4, 40)])
    pairs.add([(1, 10), (3, 30)])
    assert set(pairs) == {(1, 10), (2, 21), (3, 30)}
