"""The weight of a channel, and its share of what channels share: also set live, and far behind in turn."""

from __future__ import annotations

from collections import Counter

import pytest

from delayedq import limits
from delayedq.exceptions import InvalidLimit
from delayedq.limits import setting
from delayedq.limits.channels import Channels
from delayedq.limits.requests import ChannelQuery, Events, Rules
from delayedq.limits.room import MOST_VISITED
from delayedq.limits.rules import Limit, channel_of
from delayedq.models import Channel, LimitState
from tests.limits.channels import asked, claims, finish, offer, one_by_one, shared
from tests.store.given import NOW, at

WEIGHTED = Rules(channel=Limit(weight={"heavy": 2}))


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setattr(setting, "_scopes", lambda: iter(["mail", "tests.remind"]))


def names(claimed):
    return Counter(channel_of(one.metadata) for one in claimed)


def worked(store, rules, number, *, seconds=1.0, most=1, start=0):
    """What channels a worker serves that runs `most` at a time, each for so many seconds."""
    done = Counter()
    for moment in range(start, start + number):
        for one in claims(store, most, rules=rules, now=at(moment)):
            finish(store, one, now=at(moment), seconds=seconds)
            done[channel_of(one.metadata)] += 1
    return done


# Weight


def test_a_channel_with_twice_the_weight_gets_twice_the_work(store):
    offer(store, *["heavy"] * 40, *["light"] * 40)

    done = worked(store, WEIGHTED, 30)
    assert abs(done["heavy"] - 20) <= 1


def test_so_it_does_in_one_claim(store):
    offer(store, *["heavy"] * 40, *["light"] * 40)

    assert names(claims(store, 30, rules=WEIGHTED)) == {"heavy": 20, "light": 10}


def test_weight_counts_seconds_and_not_messages(store):
    offer(store, *["heavy"] * 60, *["light"] * 60)
    spent = Counter()
    for moment in range(60):
        for one in claims(store, 1, rules=WEIGHTED, now=at(moment)):
            channel = channel_of(one.metadata)
            seconds = 4.0 if channel == "heavy" else 1.0
            finish(store, one, now=at(moment), seconds=seconds)
            spent[channel] += seconds
    assert spent["heavy"] / spent["light"] == pytest.approx(2, rel=0.15)


def test_within_one_claim_a_channel_of_slow_messages_gets_fewer_of_them(store):
    offer(store, *["slow"] * 60, *["quick"] * 60)
    for moment in range(4):
        for one in claims(store, 2, now=at(moment)):
            finish(store, one, now=at(moment), seconds=4.0 if channel_of(one.metadata) == "slow" else 1.0)

    claimed = names(claims(store, 50, now=at(9)))
    assert claimed["quick"] > 3 * claimed["slow"]


def test_a_weight_that_is_set_acts_at_once_on_what_waits(store, known):
    offer(store, *["a"] * 60, *["b"] * 60)
    assert names(claims(store, 20)) == {"a": 10, "b": 10}
    limits.set("tests.remind", channel="a", weight=3, store=store.at(NOW))

    assert names(claims(store, 40)) == {"a": 30, "b": 10}
    assert limits.clear("tests.remind", channel="a", store=store.at(NOW))
    assert abs(names(claims(store, 20))["a"] - 10) <= 1


def test_a_weight_alone_leaves_the_rest_of_a_limit_as_it_is(store, known):
    limits.set("mail", channel="a", concurrency=3, store=store)

    assert limits.set("mail", channel="a", weight=2, store=store) == Limit(concurrency=3, weight=2)
    assert limits.set("mail", channel="a", concurrency=4, store=store) == Limit(concurrency=4, weight=2)


def test_its_row_says_the_weight_that_a_claim_found(store):
    offer(store, *["heavy"] * 4, *["light"] * 4)
    claims(store, 2, rules=WEIGHTED)

    assert dict(Channel.objects.values_list("name", "weight")) == {"heavy": 2.0, "light": 1.0}


# Share


def with_share(share, room, **terms):
    return shared(Limit(concurrency=room), channel=Limit(share=share, **terms))


def test_each_channel_gets_its_share_before_others_get_more(store):
    offer(store, *["large"] * 9)
    rules = with_share(2, 4)
    first = claims(store, rules=rules)
    offer(store, *["small"] * 9)
    for one in first:
        finish(store, one, seconds=0.001)

    assert (names(first), names(claims(store, rules=rules))) == ({"large": 4}, {"large": 2, "small": 2})


def test_a_share_that_is_not_used_is_lent_to_others(store):
    offer(store, *["large"] * 9, "small")

    assert names(claims(store, rules=with_share(2, 4))) == {"large": 3, "small": 1}


def test_a_free_place_goes_first_to_a_channel_below_its_share_however_much_work_it_had(store, known):
    """Also where 600 channels are before it in turn, and a claim visits 512."""
    offer(store, *["paying"] * 50)
    worked(store, shared(Limit(concurrency=9)), 20, seconds=500.0)
    offer(store, *(f"free {number}" for number in range(600)), now=at(30))
    rules = shared(Limit(concurrency=5))
    running = claims(store, rules=rules, now=at(30))
    assert names(running)["paying"] == 0
    limits.set("tests.remind", channel="paying", share=2, store=store.at(at(31)))
    for one in running[:3]:
        finish(store, one, now=at(31))

    claimed = names(claims(store, rules=rules, now=at(32)))
    assert claimed["paying"] == 2
    assert claimed.total() == 3


def test_a_claim_visits_a_bounded_number_of_channels_however_many_have_a_share_that_was_set_live(store, known):
    names_ = [f"c{n}" for n in range(MOST_VISITED + 200)]
    offer(store, *names_)
    claims(store, 1)
    LimitState.objects.bulk_create(
        [LimitState(scope="mail", channel=name, definition='{"share": 1}', share=1) for name in names_]
    )
    with store.database.atomic():
        (group,) = Channels.of(store.at(NOW)).hear(NOW, Events(())).groups
    asked = ChannelQuery(group, 5, 5, others=[*Channel.objects.values_list("id", flat=True)])
    looks = Channels.of(store.at(NOW)).look(asked, NOW)

    assert MOST_VISITED <= len(looks) <= MOST_VISITED + 5
    others = Channel.objects.filter(is_ready=True).order_by("turn", "id").values_list("id", flat=True)
    assert {one.channel.id for one in looks} >= {*others[:MOST_VISITED]}
    assert len(claims(store, 5)) == 5


def test_a_share_goes_no_higher_than_the_concurrency_of_the_channel(store):
    offer(store, *["a"] * 9, *["b"] * 9)

    assert names(claims(store, rules=with_share(3, 9, concurrency=2))) == {"a": 2, "b": 2}


def test_a_share_and_a_weight_are_those_of_one_channel(store, known):
    for terms in ({"share": 2}, {"weight": 2}):
        with pytest.raises(InvalidLimit, match="name one of 'mail' by channel="):
            limits.set("mail", store=store, **terms)
    with pytest.raises(InvalidLimit, match="weight of a Limit is from"):
        limits.set("mail", channel="a", weight=0, store=store)
    with pytest.raises(InvalidLimit, match="share of a Limit is a whole number"):
        limits.set("mail", channel="a", share=0, store=store)
    assert not LimitState.objects.exclude(scope="").exists()


def test_a_pause_keeps_the_share_for_later(store, known):
    limits.set("mail", channel="a", share=2, weight=3, store=store)
    limits.pause("mail", channel="a", store=store)
    limits.resume("mail", channel="a", store=store)

    assert limits.live(store) == {("mail", "a"): Limit(share=2, weight=3)}
    assert LimitState.objects.get(channel="a").share == 2


def test_without_a_share_and_a_weight_all_is_as_it_was(store):
    offer(store, *["a"] * 5, *["b"] * 5)

    assert names(claims(store, rules=one_by_one(2))) == {"a": 2, "b": 2}


# Channels whose places are all taken


def in_turn():
    return Channel.objects.filter(is_ready=True).count()


def test_a_channel_that_a_claim_filled_stays_in_turn_while_others_are_before_it(store):
    offer(store, *[f"c{n}" for n in range(60)] * 3)
    first = claims(store, 2, rules=one_by_one())
    assert in_turn() == 60

    finish(store, *first)
    assert len({*names(claims(store, 58, rules=one_by_one()))} - {*names(first)}) == 58


def test_the_claim_that_meets_it_starts_nothing_in_it_and_lets_it_rest(store):
    offer(store, *[f"c{n}" for n in range(60)] * 3)
    first = claims(store, 2, rules=one_by_one())

    assert names(first + claims(store, 100, rules=one_by_one())) == {f"c{n}": 1 for n in range(60)}
    assert in_turn() == 0
    finish(store, *first)
    assert names(claims(store, 100, rules=one_by_one())) == names(first)


def test_once_a_claim_meets_full_channels_those_that_it_fills_rest_too(store):
    offer(store, *[f"c{n}" for n in range(30)] * 3)
    for claim in range(6):  # of 20 channels each, if there are as many
        claims(store, 2, rules=one_by_one())
        assert in_turn() == 30, claim

    assert len(claims(store, 2, rules=one_by_one())) == 2
    assert in_turn() == 30 - 2 - 2


def test_many_full_channels_in_turn_keep_none_waiting(store):
    offer(store, *[f"c{n}" for n in range(60)] * 2)
    while len(names(claims(store, 2, rules=one_by_one()))) == 2 and in_turn() == 60:
        pass
    offer(store, "late")

    claimed, due_in = [], 0.0
    while due_in == 0.0:  # as a worker asks
        taken, due_in = asked(store, 2, rules=one_by_one())
        claimed += taken
    assert names(claimed)["late"] == 1
    assert max(names(claimed).values()) == 1
