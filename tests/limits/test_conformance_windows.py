"""Rates in windows by the clock, and retries that do not count."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from delayedq import limits
from delayedq.limits import setting
from delayedq.limits.requests import Rules
from delayedq.limits.rules import Limit, Rate, channel_of
from tests.limits.channels import asked, claims, offer, shared
from tests.store.given import NOW, at, retry, settle

MINUTE = timedelta(minutes=1)


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setattr(setting, "_scopes", lambda: iter(["mail"]))


def in_windows(count):
    return Rules(channel=Limit(rate=Rate(count, MINUTE, window=True)))


def test_in_each_window_so_many_start_whenever(store):
    """NOW is half a minute after the last one began."""
    offer(store, *["a"] * 9)
    rules = in_windows(3)
    answer = asked(store, rules=rules)

    assert len(answer.claimed) == 3
    assert answer.due_in == pytest.approx(30)
    assert claims(store, rules=rules, now=at(29.9)) == []
    assert len(claims(store, 1, rules=rules, now=at(30))) == 1
    assert len(claims(store, rules=rules, now=at(89))) == 2
    assert len(claims(store, rules=rules, now=at(90))) == 3


def test_a_window_that_channels_share_holds_for_all_of_them(store):
    offer(store, *["a"] * 5, *["b"] * 5)
    rules = shared(Limit(rate=Rate(4, MINUTE, window=True)))

    assert Counter(channel_of(one.metadata) for one in claims(store, rules=rules)) == {"a": 2, "b": 2}
    assert asked(store, rules=rules).due_in == pytest.approx(30)
    assert len(claims(store, rules=rules, now=at(30))) == 4


def test_a_window_that_is_changed_holds_at_once_and_knows_what_has_started(store, known):
    offer(store, *["a"] * 30)
    rules = in_windows(3)
    claims(store, rules=rules)
    wider = Rate(5, MINUTE, window=True)
    limits.set("mail", channel="a", rate=wider, store=store.at(NOW))
    assert len(claims(store, rules=rules)) == 2
    limits.set("mail", channel="a", rate=Rate(2, MINUTE, window=True), store=store.at(NOW))
    assert claims(store, rules=rules) == []
    limits.set("mail", channel="a", rate=Rate(1, timedelta(seconds=1)), store=store.at(at(1)))

    assert len(claims(store, rules=rules, now=at(2))) == 1


@pytest.mark.parametrize("scoped", [False, True])
def test_retries_take_no_token_if_they_do_not_count(store, scoped):
    limit = Limit(rate=Rate(2, MINUTE, window=True, retries=False))
    rules = shared(limit) if scoped else Rules(channel=limit)
    offer(store, *["a"] * 9)
    (first,) = claims(store, 1, rules=rules)
    settle(store, retry(first))
    again = claims(store, rules=rules)

    assert sorted(one.attempt for one in again) == [1, 2] or len(again) == 1
    rest = claims(store, rules=rules)
    assert [one.attempt for one in [*again, *rest]].count(1) == 1
