"""Limits: concurrency and rate of a channel and of what several channels share, all of them or none, also set live."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from functools import partial

import pytest

from delayedq import limits
from delayedq.exceptions import InvalidLimit
from delayedq.limits import setting
from delayedq.limits.channels import Channels
from delayedq.limits.requests import ForeignRules, Rules
from delayedq.limits.rules import Limit, Rate, channel_of
from delayedq.models import LimitState
from delayedq.operations.pauses import pause
from tests.limits.channels import asked, at_a_rate, claims, finish, in_channel, offer, one_by_one, shared
from tests.store.given import LEASE, NOW, at, together

SECOND = timedelta(seconds=1)


def names(claimed):
    return Counter(channel_of(one.metadata) for one in claimed)


# Concurrency


def test_no_more_than_its_concurrency_are_held_of_a_channel(store):
    offer(store, *["a"] * 5, "b")

    assert names(claims(store, rules=one_by_one(2))) == {"a": 2, "b": 1}
    assert claims(store, rules=one_by_one(2)) == []


def test_an_ended_attempt_makes_room_for_one(store):
    offer(store, *["a"] * 5)
    first, _ = claims(store, rules=one_by_one(2))
    finish(store, first)

    assert len(claims(store, rules=one_by_one(2))) == 1


def test_a_lease_that_ran_out_makes_room_and_a_late_end_makes_no_second(store):
    offer(store, *["a"] * 3)
    (first,) = claims(store, rules=one_by_one(), worker="dead:1:x")
    (second,) = claims(store, rules=one_by_one(), now=at(61))
    finish(store, first, now=at(62))

    assert claims(store, rules=one_by_one(), now=at(63)) == []
    finish(store, second, now=at(64))
    assert len(claims(store, rules=one_by_one(), now=at(65))) == 1


def test_what_a_dead_worker_had_not_started_makes_room_at_once(store):
    offer(store, *["a"] * 3)
    (first,) = claims(store, rules=one_by_one())
    assert claims(store, rules=one_by_one()) == []
    released = store.at(NOW).release([(first.id, first.token)])

    assert not released.lost | released.busy
    (again,) = claims(store, rules=one_by_one())
    assert (again.id, again.attempt) == (first.id, 1)


def test_when_the_attempt_of_an_unscheduled_message_ends_there_is_room(store):
    offer(store, "a", key="first")
    offer(store, *["a"] * 2)
    (first,) = claims(store, rules=one_by_one())
    assert store.at(NOW).unschedule(first.kind, "first")
    assert claims(store, rules=one_by_one()) == []
    assert finish(store, first).lost == {first.id}

    assert len(claims(store, rules=one_by_one())) == 1


def test_a_renewed_lease_keeps_its_place(store):
    offer(store, *["a"] * 3)
    (first,) = claims(store, rules=one_by_one())
    store.at(at(50)).renew([(first.id, first.token)], timedelta(seconds=60))

    assert claims(store, rules=one_by_one(), now=at(90)) == []
    assert len(claims(store, rules=one_by_one(), now=at(171))) == 1


def test_a_released_message_frees_its_place_within_a_lease(store):
    offer(store, "a", "a")
    (first,) = claims(store, rules=one_by_one())
    store.at(at(1)).release([(first.id, first.token)])

    assert len(claims(store, rules=one_by_one(), now=at(61))) == 1


def test_claims_at_the_same_time_hold_no_more_than_one_would(store):
    offer(store, *["a"] * 20, *["b"] * 20)
    taken = together(*[partial(claims, store, 5, rules=one_by_one(3)) for _ in range(8)])

    assert all(number <= 3 for number in names([one for each in taken for one in each]).values())
    rest = claims(store, rules=one_by_one(3))
    assert names([*rest, *(one for each in taken for one in each)]) == {"a": 3, "b": 3}


@pytest.mark.parametrize("channel", [None, Limit(concurrency=2)])
def test_what_channels_share_holds_for_them_together(store, channel):
    offer(store, *["a"] * 5, *["b"] * 5)
    rules = shared(Limit(concurrency=3), channel=channel)
    taken = claims(store, rules=rules)

    assert len(taken) == 3
    assert claims(store, rules=rules) == []
    finish(store, taken[0])
    assert len(claims(store, rules=rules)) == 1


def test_two_tasks_share_a_limit_by_its_name(store):
    offer(store, *["a"] * 5, kind="tests.one")
    offer(store, *["a"] * 5, kind="tests.other")
    rules = shared(Limit(concurrency=3), "the-api")

    assert len(claims(store, rules=rules)) == 3
    assert claims(store, rules=rules) == []


def served(*queues):
    rules = shared(Limit(concurrency=1), "the-api")
    return lambda queue, _: rules if queue in queues else ForeignRules(*rules)


def test_what_others_run_in_a_shared_limit_counts_also_if_their_queue_is_not_served_here(store):
    for queue in ("mail", "sms"):
        store.at(NOW).offer_many([in_channel("", queue=queue)])
    (one,) = Channels.of(store.at(NOW)).claim(served("mail"), 10, LEASE, "mails").claimed

    assert Channels.of(store.at(NOW)).claim(served("sms"), 10, LEASE, "texts").claimed == []
    finish(store, one)
    assert len(Channels.of(store.at(NOW)).claim(served("sms"), 10, LEASE, "texts").claimed) == 1


def test_what_runs_in_a_shared_limit_counts_also_while_its_queue_is_paused(store):
    for queue in ("mail", "sms"):
        store.at(NOW).offer_many([in_channel("", queue=queue)])
    rules = served("mail", "sms")
    (one,) = Channels.of(store.at(NOW)).claim(rules, 10, LEASE, "first").claimed
    pause(one.queue, store=store)

    assert Channels.of(store.at(NOW)).claim(rules, 10, LEASE, "first").claimed == []


def test_a_worker_that_does_not_know_a_task_counts_what_others_run_of_it_in_a_queue(store):
    known = shared(Limit(concurrency=1))
    for kind in ("shop.new", "shop.old"):
        store.at(NOW).offer_many([in_channel("", kind=kind)])
    new = Channels.of(store.at(NOW)).claim(lambda _, kind: known if kind == "shop.new" else None, 10, LEASE, "new")
    old = Channels.of(store.at(NOW)).claim(lambda _, kind: known if kind == "shop.old" else None, 10, LEASE, "old")

    assert (len(new.claimed), len(old.claimed)) == (1, 0)


def test_blocked_channels_are_not_looked_at_again(store, connection):
    from django.test.utils import CaptureQueriesContext

    def cost(channels):
        offer(store, *[f"{channels} {number}" for number in range(channels) for _ in range(2)])
        claims(store, channels, rules=one_by_one())
        offer(store, f"free {channels}")
        with CaptureQueriesContext(connection) as captured:
            assert len(claims(store, 1, rules=one_by_one())) == 1
        return len(captured)

    assert cost(5) == cost(200)


# Rate


def test_no_more_start_than_the_rate_allows_and_the_next_at_its_instant(store):
    offer(store, *["a"] * 9)
    rules = at_a_rate(2, seconds=1.0)
    answer = asked(store, rules=rules)

    assert len(answer.claimed) == 2
    assert answer.due_in == pytest.approx(0.5)
    assert claims(store, rules=rules, now=at(0.499)) == []
    assert len(claims(store, rules=rules, now=at(0.5))) == 1
    assert len(claims(store, rules=rules, now=at(9))) == 2


def test_a_burst_of_one_spaces_them_evenly(store):
    offer(store, *["a"] * 4)
    rules = at_a_rate(20, burst=1)

    starts = [moment for moment in range(200) if claims(store, rules=rules, now=at(moment / 1000))]
    assert starts == [0, 50, 100, 150]


def test_an_early_due_time_does_not_beat_the_rate(store):
    offer(store, *["a"] * 3)
    rules = at_a_rate(1)
    claims(store, rules=rules)
    offer(store, "a", scheduled_at=at(-9999))

    assert claims(store, rules=rules, now=at(0.9)) == []


def test_a_shared_rate_holds_for_all_and_tells_its_release_instant(store):
    offer(store, *["a"] * 5, *["b"] * 5)
    rules = shared(Limit(rate=Rate(4, SECOND)))

    assert names(claims(store, rules=rules)) == {"a": 2, "b": 2}
    assert asked(store, rules=rules).due_in == pytest.approx(0.25)
    assert len(claims(store, rules=rules, now=at(0.25))) == 1


def test_a_message_holds_no_place_while_it_waits_for_another_limit(store):
    offer(store, *["a"] * 5, kind="tests.limited")
    offer(store, *["b"] * 5, kind="tests.free")
    api = ("the-api", Limit(concurrency=1))
    rate = ("slow", Limit(rate=Rate(1, timedelta(minutes=1))))

    def rules(queue, kind):
        return Rules((api, rate) if kind == "tests.limited" else (api,))

    def claim(now):
        return Channels.of(store.at(now)).claim(rules, 9, timedelta(seconds=60), "first").claimed

    kinds = []
    for second in range(6):
        (one,) = claim(at(second))
        kinds.append(one.kind)
        finish(store, one, now=at(second))
    assert Counter(kinds)["tests.limited"] <= 1
    assert Counter(kinds)["tests.free"] >= 5


# Set live


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setattr(setting, "_scopes", lambda: iter(["mail", "tests.remind", "the-api"]))


def test_a_limit_that_is_set_takes_the_place_of_the_defined_one_at_once(store, known):
    offer(store, *["a"] * 9)
    rules = shared(Limit(concurrency=1))
    claims(store, rules=rules)
    limits.set("mail", concurrency=4, store=store)

    assert len(claims(store, rules=rules)) == 3
    assert limits.live(store) == {("mail", ""): Limit(concurrency=4)}
    assert limits.clear("mail", store=store)
    assert claims(store, rules=rules) == []
    assert not limits.clear("mail", store=store)


def test_a_limit_of_one_channel_is_set_and_cleared(store, known):
    offer(store, *["a"] * 5, *["b"] * 5)
    claims(store, rules=one_by_one())
    limits.set("mail", channel="a", concurrency=3, store=store.at(NOW))

    assert names(claims(store, rules=one_by_one())) == {"a": 2}
    assert limits.clear("mail", channel="a", store=store.at(NOW))
    assert claims(store, rules=one_by_one()) == []


@pytest.mark.parametrize("terms", [{"weight": 3}, {"share": 5}])
def test_a_weight_or_a_share_of_one_channel_leaves_its_limit_as_the_code_has_it(store, known, terms):
    own = Rules(channel=Limit(concurrency=3, rate=Rate(2, SECOND)))
    offer(store, *["a"] * 9)
    limits.set("mail", channel="a", store=store, **terms)

    assert len(claims(store, rules=own)) == 2
    assert len(claims(store, rules=own, now=at(1))) == 1
    assert claims(store, rules=own, now=at(2)) == []


def test_a_weight_of_a_paused_channel_leaves_what_was_set_before_the_pause(store, known):
    offer(store, *["a"] * 9)
    limits.set("mail", channel="a", concurrency=2, store=store.at(NOW))
    limits.pause("mail", channel="a", store=store.at(NOW))
    assert claims(store, rules=one_by_one()) == []
    limits.set("mail", channel="a", weight=3, store=store.at(NOW))

    assert len(claims(store, rules=one_by_one())) == 2


@pytest.mark.parametrize("turned", [(("mail", "tests.remind")), (("tests.remind", "mail"))], ids=["queue", "task"])
def test_a_pause_of_a_queue_or_task_holds_beside_a_weight_of_the_other(store, known, turned):
    paused, weighed = turned
    offer(store, *["a"] * 9)
    limits.pause(paused, channel="a", store=store.at(NOW))
    limits.set(weighed, channel="a", weight=3, store=store.at(NOW))
    assert claims(store, rules=one_by_one()) == []

    limits.resume(paused, channel="a", store=store.at(NOW))
    limits.set("mail", channel="a", concurrency=2, store=store.at(NOW))
    limits.set("tests.remind", channel="a", weight=5, store=store.at(NOW))
    assert len(claims(store, rules=one_by_one())) == 2


def test_a_changed_rate_holds_at_once_also_for_what_waits(store, known):
    offer(store, *["a"] * 9)
    rules = at_a_rate(1, seconds=3600)
    claims(store, rules=rules)
    limits.set("mail", channel="a", rate=Rate(1, SECOND), store=store.at(at(1)))

    assert len(claims(store, rules=rules, now=at(1))) == 1
    assert claims(store, rules=rules, now=at(1.5)) == []


def test_it_takes_part_in_the_transaction_of_the_caller(store, alias, known):
    from tests.store.given import undone

    with undone(alias):
        limits.set("mail", concurrency=1, store=store)
    assert limits.live(store) == {}
    assert not LimitState.objects.filter(definition__isnull=False).exists()


def test_what_has_no_channels_is_refused(store, known):
    with pytest.raises(InvalidLimit, match="'other' has no channels"):
        limits.set("other", concurrency=1, store=store)
    with pytest.raises(InvalidLimit, match="concurrency of a Limit is a whole number"):
        limits.set("mail", concurrency=0, store=store)


def test_many_claims_after_one_another_never_start_more_than_the_bucket_gives(store):
    offer(store, *["a"] * 60)
    rules = at_a_rate(7, seconds=1.0, burst=3)
    started = []
    for step in range(100):
        moment = step * 0.037
        started += [moment] * len(claims(store, 2, rules=rules, now=at(moment)))
    for first in range(len(started)):
        for last in range(first, len(started)):
            assert last - first + 1 <= 3 + 7 * (started[last] - started[first]) + 1e-6
    assert len(started) >= 3 + 7 * 3.6 - 2
