"""Places of attempts that run on although their message was cancelled, stopped, unscheduled, dropped or replaced."""

from __future__ import annotations

from datetime import timedelta

import pytest

from delayedq.limits import places_held
from delayedq.limits.channels import Channels
from delayedq.limits.rules import Limit, OnFull, Size
from delayedq.models import ChannelMessage, ChannelNotice, Message
from delayedq.store import operator_store
from delayedq.store.operator import Revival, Seen
from delayedq.store.protocol import GiveBack
from tests.limits.channels import asked, claims, finish, left_behind, offer, one_by_one, shared
from tests.store.given import KIND, LEASE, NOW, at

QUEUE = "mail"


def stop(store, one, now):
    seen = Seen._make(getattr(Message.objects.get(pk=one.id), name) for name in Seen._fields)
    assert operator_store(store.alias).at(now).stop([seen]) == {one.id}


def unschedule(store, one, now):
    assert store.at(now).unschedule(KIND, one.key)


def drop(store, one, now, **recorded):
    Message.objects.filter(pk=one.id).update(kind=QUEUE)  # as those of bare queues are
    assert store.at(now).drop(QUEUE, one.key, **recorded) == 1


def drop_all(store, one, now, **recorded):
    others = Message.objects.exclude(pk=one.id)
    others.update(queue="elsewhere")
    Message.objects.filter(pk=one.id).update(kind=QUEUE)
    assert store.at(now).drop(QUEUE, **recorded) == 1
    others.update(queue=QUEUE)


def erase(store, one, now):
    drop(store, one, now, recorded=False)


def erase_all(store, one, now):
    drop_all(store, one, now, recorded=False)


VERBS = [stop, unschedule, drop, drop_all, erase, erase_all]


@pytest.fixture(params=VERBS, ids=lambda verb: verb.__name__)
def end(request):
    return request.param


def running(store, rules=one_by_one()):  # noqa: B008
    """The only message that runs of a channel in which another one waits."""
    offer(store, "a", key="first")
    offer(store, "a")
    (first,) = claims(store, rules=rules, worker="dead:1:x")
    assert first.key == "first"
    return first


def test_its_place_stays_taken_until_its_attempt_has_ended(store, end):
    first = running(store)
    end(store, first, at(1))

    assert claims(store, rules=one_by_one(), now=at(2)) == []
    assert claims(store, rules=one_by_one(), now=at(59)) == []
    assert finish(store, first, now=at(59)).lost == {first.id}
    (second,) = claims(store, rules=one_by_one(), now=at(59))
    finish(store, second, now=at(59))
    claims(store, rules=one_by_one(), now=at(59))
    assert left_behind() == (0, 0, 0)


def test_without_an_end_it_is_free_when_the_lease_would_have_run_out(store, end):
    first = running(store)
    store.at(at(30)).renew([(first.id, first.token)], LEASE)
    end(store, first, at(31))

    assert asked(store, rules=one_by_one(), now=at(61)).due_in == pytest.approx(29, abs=0.1)
    assert claims(store, rules=one_by_one(), now=at(89)) == []
    (second,) = claims(store, rules=one_by_one(), now=at(90.1))
    finish(store, second, now=at(91))
    claims(store, rules=one_by_one(), now=at(92))
    assert left_behind() == (0, 0, 0)


def test_a_keeper_extends_the_place_of_what_runs_on(store, end):
    first = running(store)
    end(store, first, at(1))
    assert store.at(at(50)).renew([(first.id, first.token)], LEASE).lost == {(first.id, first.token)}

    assert claims(store, rules=one_by_one(), now=at(109)) == []
    assert len(claims(store, rules=one_by_one(), now=at(110.1))) == 1


def test_a_place_that_was_given_away_is_not_extended(store, end):
    first = running(store)
    end(store, first, at(1))
    (second,) = claims(store, rules=one_by_one(), now=at(61))
    store.at(at(62)).renew([(first.id, first.token)], LEASE)
    finish(store, second, now=at(63))
    claims(store, rules=one_by_one(), now=at(64))
    assert left_behind() == (0, 0, 0)


def test_it_counts_in_what_channels_share(store, end):
    rules = shared(Limit(concurrency=1))
    offer(store, "a", key="first")
    (first,) = claims(store, rules=rules)
    end(store, first, at(1))
    offer(store, "b", now=at(1))

    assert claims(store, rules=rules, now=at(2)) == []
    finish(store, first, now=at(3))
    assert len(claims(store, rules=rules, now=at(3))) == 1


def test_what_a_dead_worker_had_not_started_frees_its_place(store, end):
    first = running(store)
    end(store, first, at(1))
    assert store.at(at(2)).release([(first.id, first.token)]).lost == {(first.id, first.token)}
    assert not ChannelMessage.objects.filter(message_id__lt=0).exists()
    assert len(claims(store, rules=one_by_one(), now=at(2))) == 1


def test_its_channel_is_told_although_it_rests_until_the_lease_would_have_run_out(store, end):
    first = running(store)
    end(store, first, at(1))
    assert claims(store, rules=one_by_one(), now=at(2)) == []
    assert asked(store, rules=one_by_one(), now=at(2)).due_in == pytest.approx(58, abs=0.1)
    store.at(at(3)).release([(first.id, first.token)])
    assert len(claims(store, rules=one_by_one(), now=at(3))) == 1


def test_who_has_no_place_to_let_go_tells_nothing(store):
    offer(store, "a")
    (first,) = claims(store, rules=one_by_one())
    finish(store, first)
    Channels.of(store.at(at(1))).claim(lambda queue, kind: one_by_one(), 9, LEASE, "first")
    before = ChannelNotice.objects.count()
    store.at(at(1)).release([(first.id, first.token)])
    assert ChannelNotice.objects.count() == before


def test_an_attempt_that_gives_its_message_back_too_late_frees_its_place(store, end):
    first = running(store)
    end(store, first, at(1))
    assert store.at(at(2)).settle([GiveBack(first, charged=True)], "first").lost == {first.id}
    assert len(claims(store, rules=one_by_one(), now=at(2))) == 1


def test_what_ran_out_makes_room_at_once(store, end):
    first = running(store)
    if end is stop:
        return  # it stops only what is held
    end(store, first, at(61))
    (second,) = claims(store, rules=one_by_one(), now=at(61))
    finish(store, second, now=at(62))
    claims(store, rules=one_by_one(), now=at(62))
    assert left_behind() == (0, 0, 0)


def test_what_waits_holds_no_place(store, end):
    first = running(store)
    if end is stop:
        return
    store.at(at(1)).settle([GiveBack(first, charged=True)], "first")
    end(store, first, at(2))
    assert not ChannelMessage.objects.filter(message_id__lt=0).exists()
    assert len(claims(store, rules=one_by_one(), now=at(2))) == 1


def test_a_stopped_message_that_is_redriven_waits_until_its_first_attempt_has_ended(store):
    first = running(store)
    stop(store, first, at(1))
    operator = operator_store(store.alias).at(at(2))
    assert operator.revive([Revival(first.id, at(2))], "cancelled") == {first.id}

    assert claims(store, rules=one_by_one(2), now=at(3))[:2] != []
    assert len(Message.objects.filter(leased_until__gt=at(3))) == 1
    finish(store, first, now=at(4))
    assert len(claims(store, rules=one_by_one(2), now=at(4))) == 1


def test_room_for_a_newer_message_is_never_made_by_what_runs(store):
    size = (Size("", 2, OnFull.DROP_OLDEST),)
    offer(store, "a", "a", sizes=size)
    (first,) = claims(store, rules=one_by_one())
    (newer,) = offer(store, "a", sizes=size)

    assert newer.outcome == "created"
    assert set(Message.objects.values_list("id", flat=True)) == {first.id, newer.id}
    assert claims(store, rules=one_by_one(), now=at(1)) == []


@pytest.mark.parametrize("recorded", [True, False])
def test_a_dropped_queue_names_only_what_runs_in_its_channels(store, connection, recorded):
    offer(store, *["a"] * 60)
    claims(store, rules=one_by_one())
    Message.objects.update(kind=QUEUE)
    most = []

    def watch(execute, sql, params, many, context):
        if "delayedq_finishedmessage" not in sql and not many:
            most.append(len(params or ()))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(watch):
        assert store.at(at(1)).drop(QUEUE, recorded=recorded) == 60
    assert max(most, default=0) < 30
    assert ChannelMessage.objects.filter(message_id__lt=0).count() == 1


def test_however_many_run_their_places_are_held_some_at_a_time(store, monkeypatch):
    monkeypatch.setattr(places_held, "AT_ONCE", 2)
    offer(store, *["a"] * 5)
    assert len(claims(store, rules=one_by_one(5))) == 5
    Message.objects.update(kind=QUEUE)
    assert store.at(at(1)).drop(QUEUE) == 5
    assert ChannelMessage.objects.filter(message_id__lt=0, held_until__gt=at(1)).count() == 5


def test_a_deleted_row_frees_its_place_at_once(store):
    first = running(store)
    Message.objects.filter(pk=first.id).delete()
    offer(store, "a", now=at(1))

    assert len(claims(store, rules=one_by_one(), now=at(1))) == 1


# Leases that are renewed after they ran out


def test_a_lease_whose_place_was_given_away_is_not_renewed(store):
    offer(store, "a", "a", "a")
    rules = one_by_one(2)
    first, second = claims(store, rules=rules, worker="dead:1:x")
    assert len(claims(store, 1, rules=rules, now=at(61))) == 1
    assert store.at(at(62)).renew([(first.id, first.token), (second.id, second.token)], LEASE).lost == {
        (first.id, first.token), (second.id, second.token)
    }  # fmt: skip
    assert len(claims(store, rules=rules, now=at(63))) == 1


def test_a_lease_that_ran_out_and_is_renewed_before_anything_else_starts_has_its_place(store):
    offer(store, "a", "a")
    (first,) = claims(store, rules=one_by_one(), worker="dead:1:x")
    assert not store.at(at(61)).renew([(first.id, first.token)], LEASE).lost

    assert claims(store, rules=one_by_one(), now=at(62)) == []


def test_a_lease_whose_place_in_a_shared_limit_was_given_away_is_not_renewed(store):
    rules = shared(Limit(concurrency=1))
    offer(store, "a")
    (first,) = claims(store, rules=rules, worker="dead:1:x")
    offer(store, "b", now=at(1))
    taken = claims(store, 1, rules=rules, now=at(61))

    assert len(taken) == 1
    assert store.at(at(62)).renew([(first.id, first.token)], LEASE).lost
    assert claims(store, rules=rules, now=at(63)) == []


def test_the_moments_are_those_of_a_lease():
    assert timedelta(seconds=60) == LEASE
    assert at(0) == NOW


def test_what_is_taken_away_between_two_reads_of_a_claim_is_counted(store, end, monkeypatch):
    """The claim has read the places, and not yet the leases of their messages."""
    rules = shared(Limit(concurrency=1))
    offer(store, "a", key="first")
    (first,) = claims(store, rules=rules)
    offer(store, "b", now=at(1))
    bound, held_among = store.at(at(2)), type(Channels.of(store)).held_among

    def taken_meanwhile(self, ids, now):
        monkeypatch.setattr(type(Channels.of(store)), "held_among", held_among)
        if Message.objects.filter(pk=first.id).exists():
            end(store, first, at(1))
        return held_among(self, ids, now)

    monkeypatch.setattr(type(Channels.of(store)), "held_among", taken_meanwhile)
    assert Channels.of(bound).claim(lambda queue, kind: rules, 9, LEASE, "second").claimed == []
    assert not Message.objects.filter(pk=first.id).exists()
