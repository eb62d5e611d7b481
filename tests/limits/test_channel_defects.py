"""Scenarios E7, E8 and E11, and defects that other queues with channels have had (D23 to D31 of SCENARIOS.md)."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections import Counter
from contextlib import closing
from select import select

import pytest

from delayedq import limits
from delayedq import store as stores
from delayedq.limits import setting
from delayedq.limits.channels import Channels
from delayedq.limits.places import Places
from delayedq.limits.rules import OnFull, Rate, Size, channel_of
from delayedq.models import ChannelMessage, FinishedMessage, Message
from delayedq.store import operator_store
from delayedq.store.operator import Revival, Seen
from tests.limits.channels import asked, at_a_rate, channels_of, claims, finish, in_channel, offer, one_by_one
from tests.store.given import LEASE, NOTHING_AMISS, NOW, at, message, retry, settle, succeed

SECOND = LEASE / 60


def row_of(claimed):
    return Message.objects.filter(pk=claimed.id).values().get()


# Ends and renewals that come too late


def test_e7_an_end_of_somebody_else_changes_neither_the_message_nor_the_room_of_its_channel(store):
    offer(store, *["acme"] * 2)
    (late,) = claims(store, rules=one_by_one())
    (held,) = claims(store, rules=one_by_one(), now=at(61), worker="second")
    before = row_of(held)

    for end in (
        succeed(late),
        retry(late),
        succeed(held._replace(token=held.token + 1)),
        succeed(late._replace(id=99)),
    ):
        assert settle(store, end, now=at(61)).lost == {end.claimed.id}
    assert (held.id, row_of(held)) == (late.id, before)
    assert claims(store, rules=one_by_one(), now=at(62)) == []
    assert ChannelMessage.objects.filter(lease_token=held.token).count() == 1

    assert finish(store, held, now=at(62)) == NOTHING_AMISS
    assert settle(store, succeed(held), now=at(62)).lost == {held.id}
    assert len(claims(store, 9, rules=one_by_one(), now=at(62))) == 1


def test_e8_in_a_channel_a_renewal_extends_never_shortens_and_fails_after_the_next_claim(store):
    offer(store, "acme")
    (held,) = claims(store, rules=one_by_one())
    assert not store.at(at(30)).renew([(held.id, held.token)], LEASE).lost
    assert not store.at(at(31)).renew([(held.id, held.token)], SECOND).lost

    assert claims(store, rules=one_by_one(), now=at(89)) == []
    (again,) = claims(store, rules=one_by_one(), now=at(91))
    assert store.at(at(91)).renew([(held.id, held.token)], LEASE).lost == {(held.id, held.token)}
    assert (again.id, again.attempt) == (held.id, 2)


# Events


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_e11_an_offer_that_finds_no_room_wakes_nobody(store):
    fresh = type(store)(store.database)
    full = in_channel("acme", sizes=(Size("", 1, OnFull.DROP),), scheduled_at=None)
    with closing(fresh.listener()) as listener:
        fresh.offer(full)
        select([listener], [], [], 5)
        assert listener.heard()

        other = type(store)(store.database)
        assert other.offer(full).outcome == "dropped"
        assert not listener.heard()


def test_e11_who_finds_nothing_is_told_the_instant_at_which_the_next_message_is_due(store):
    offer(store, "acme", scheduled_at=at(40))
    offer(store, "other", scheduled_at=at(25))
    assert asked(store) == ([], 25.0)


# Defects


def constants():
    """The texts that the modules of the store have."""
    for module in pkgutil.walk_packages(stores.__path__, "delayedq.store."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, str) and not name.startswith("__"):
                yield f"{module.name}.{name}", value


def test_d23_no_statement_has_a_number_that_postgresql_15_can_not_read():
    found = dict(constants())
    assert sum("SELECT" in text for text in found.values()) > 50
    assert [name for name, text in found.items() if re.search(r"(?<![\w'])\d+_\d", text)] == []


def test_d27_a_message_that_comes_again_says_its_channel_as_the_first_time(store):
    offer(store, "acme", metadata='{"a": 1}')
    (first,) = claims(store)
    (after_its_lease,) = claims(store, now=at(61))
    settle(store, retry(after_its_lease), now=at(61))
    (after_an_error,) = claims(store, now=at(61))

    assert first.metadata == after_its_lease.metadata == after_an_error.metadata
    assert channel_of(after_an_error.metadata) == "acme"
    assert channels_of([after_an_error]) == ["acme"]


def test_d29_a_lost_lease_does_not_jump_the_turn_of_other_channels(store):
    offer(store, *["crashing"] * 3, max_attempts=9)
    assert len(claims(store, 3)) == 3
    offer(store, *["fresh"] * 3, now=at(61))
    later = [channel_of(one.metadata) for _ in range(4) for one in claims(store, 1, now=at(61))]
    assert later[0] == "fresh"
    assert Counter(later) == {"crashing": 1, "fresh": 3}  # it had work for three messages before


def test_d29_a_lost_lease_takes_a_token_of_the_rate_like_every_start(store):
    offer(store, "acme", max_attempts=9)
    rules = at_a_rate(1, seconds=100)
    claims(store, rules=rules)
    assert claims(store, rules=rules, now=at(61)) == []
    assert len(claims(store, rules=rules, now=at(100))) == 1


def test_d29_a_message_that_loses_every_lease_ends(store):
    offer(store, "acme", max_attempts=3)
    moments = [0, 61, 122]
    attempts = [one.attempt for moment in moments for one in claims(store, rules=one_by_one(), now=at(moment))]
    assert attempts == [1, 2, 3]

    (last,) = claims(store, rules=one_by_one(), now=at(183))
    assert last.attempt > last.max_attempts  # a worker ends it without running it
    settle(store, succeed(last, started=None), now=at(183))
    assert (Message.objects.count(), FinishedMessage.objects.count(), ChannelMessage.objects.count()) == (0, 1, 0)


def test_d30_a_changed_rate_moves_the_next_release(store, monkeypatch):
    monkeypatch.setattr(setting, "_scopes", lambda: iter(["mail"]))
    offer(store, *["acme"] * 3)
    rules = at_a_rate(1, seconds=3600)
    claims(store, rules=rules)
    assert asked(store, rules=rules, now=at(1)).due_in == pytest.approx(3599)
    limits.set("mail", channel="acme", rate=Rate(1, 10 * SECOND), store=store.at(at(1)))
    assert asked(store, rules=rules, now=at(1)) == ([], pytest.approx(9))
    limits.clear("mail", channel="acme", store=store.at(at(2)))
    assert asked(store, rules=rules, now=at(2)) == ([], pytest.approx(3598, abs=2))


def test_d31_what_is_cleared_holds_no_more_whatever_still_waits(store, monkeypatch):
    monkeypatch.setattr(setting, "_scopes", lambda: iter(["mail"]))
    offer(store, *["acme"] * 9)
    limits.set("mail", channel="acme", concurrency=2, store=store.at(NOW))
    assert len(claims(store)) == 2
    limits.clear("mail", channel="acme", store=store.at(NOW))
    assert len(claims(store)) == 7
    assert limits.live(store) == {}
    assert store.at(NOW).offer(message(channel="acme")).outcome == "created"


# What was cancelled


def test_what_was_cancelled_is_not_in_the_way_of_its_channel(store):
    """However many there are, and though nobody has told the channel."""
    offer(store, *["acme"] * 300)
    last = offer(store, "acme")[0].id
    operator = operator_store(store.alias).at(NOW)
    rows = Message.objects.exclude(pk=last)
    assert len(operator.cancel([Seen._make(getattr(row, name) for name in Seen._fields) for row in rows])) == 300

    answers = [asked(store, 1, rules=one_by_one()) for _ in range(3)]
    assert [one.id for answer in answers for one in answer.claimed] == [last]
    assert answers[0].due_in == 0.0


def test_a_cancelled_message_that_is_brought_back_while_its_place_is_taken_away_has_one(store, monkeypatch):
    offer(store, "acme", key="a")
    message_ = Message.objects.get()
    operator = operator_store(store.alias).at(NOW)
    operator.cancel([Seen._make(getattr(message_, name) for name in Seen._fields)])
    drop = type(Channels.of(store)).drop_places

    def bring_back_first(self, ids):
        operator.revive([Revival(message_.pk)], "cancelled")
        drop(self, ids)

    monkeypatch.setattr(type(Channels.of(store)), "drop_places", bring_back_first)
    Places(Channels.of(store.at(NOW)), NOW).put_right([message_.pk])
    assert ChannelMessage.objects.count() == 1
    assert len(claims(store)) == 1
