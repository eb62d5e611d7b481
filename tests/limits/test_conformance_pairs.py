"""A claim of many messages gives two places at once to channels whose messages are short, and visits half as many."""

from __future__ import annotations

from collections import Counter

import pytest

from delayedq.limits.channels import Channels
from delayedq.limits.claims import IN_PAIRS
from delayedq.limits.requests import ChannelQuery, Rules, ServedGroup
from delayedq.limits.rules import Limit, channel_of
from tests.limits.channels import UNLIMITED, asked, claims, finish, offer, one_by_one
from tests.store.given import at

SHORT, LONG = 0.001, 0.01
CHANNELS = 90


def begun(store, seconds, *, most=8):
    """Channels with messages of which one has run for so many seconds."""
    offer(store, *[f"tenant {number}" for number in range(CHANNELS)] * most)
    for _ in range(2):
        finish(store, *claims(store, CHANNELS // 2), seconds=seconds)


def of_each(claimed):
    """How many channels have how many of these."""
    return Counter(Counter(channel_of(one.metadata) for one in claimed).values())


def test_a_large_claim_takes_two_of_each_channel_where_messages_are_short(store):
    begun(store, SHORT)
    answer = asked(store, IN_PAIRS, now=at(1))

    assert of_each(answer.claimed) == {2: IN_PAIRS // 2}
    assert answer.due_in == 0.0
    rest = claims(store, IN_PAIRS, now=at(1))
    assert {channel_of(one.metadata) for one in rest}.isdisjoint(channel_of(one.metadata) for one in answer.claimed)


@pytest.mark.parametrize(
    ("seconds", "limit", "rules"),
    [
        (LONG, IN_PAIRS, UNLIMITED),
        (SHORT, IN_PAIRS - 1, UNLIMITED),
        (SHORT, IN_PAIRS, one_by_one()),
        (SHORT, IN_PAIRS, Rules(channel=Limit(share=1))),
    ],
)
def test_else_it_takes_one_of_each(store, seconds, limit, rules):
    begun(store, seconds)

    assert of_each(claims(store, limit, rules=rules, now=at(1))) == {1: limit}


def test_what_is_left_in_other_channels_is_claimed_at_once_where_those_visited_have_less_than_they_may(store):
    begun(store, SHORT, most=2)
    answers = [asked(store, IN_PAIRS, now=at(1))]
    while answers[-1].due_in == 0.0:
        answers.append(asked(store, IN_PAIRS, now=at(1)))

    assert 0 < len(answers[0].claimed) < IN_PAIRS
    assert sum(len(one.claimed) for one in answers) == CHANNELS


@pytest.mark.parametrize(("seconds", "visited"), [(SHORT, 10), (LONG, 20)])
def test_it_visits_as_many_channels_as_take_its_places(store, seconds, visited):
    begun(store, seconds)
    claims(store, 1, now=at(1))
    store = store.at(at(1))
    ((group,),) = store.database.rows("SELECT id FROM delayedq_channelgroup")
    first = ChannelQuery(ServedGroup(group, "mail", "tests.remind", 0.0), 20, 20)

    with store.database.atomic():
        channels = Channels.of(store)
        channels.lock()
        every, paired = (channels.look(one, store.now()) for one in (first, first._replace(in_pairs=True)))
    assert len(every) == 20
    assert [one.channel for one in paired] == [one.channel for one in every][:visited]
