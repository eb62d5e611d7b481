"""Operators change one limit at the same moment: none takes back what another has done, and none gets an error."""

from __future__ import annotations

from functools import partial

import pytest

from delayedq import limits
from delayedq.limits import setting
from delayedq.limits.setting import definitions
from tests.store.given import together


@pytest.mark.parametrize("round_", range(5))
def test_a_weight_that_is_set_as_the_channel_is_paused_is_kept(store, monkeypatch, round_):
    monkeypatch.setattr(setting, "_scopes", lambda: iter(["mail"]))
    for number in range(5):
        where = {"channel": f"{round_} {number}", "store": store}
        together(lambda: limits.set("mail", weight=3, **where), lambda: limits.pause("mail", **where))  # noqa: B023

    assert [definition["weight"] for definition in definitions(store).values()] == [3.0] * 5


@pytest.mark.parametrize("round_", range(5))
def test_many_set_a_limit_that_nobody_has_set_before(store, monkeypatch, round_):
    monkeypatch.setattr(setting, "_scopes", lambda: iter(["mail"]))
    where = {"channel": f"{round_}", "store": store}
    together(*[partial(limits.set, "mail", weight=3, **where)] * 3, *[partial(limits.pause, "mail", **where)] * 3)

    assert [definition["weight"] for definition in definitions(store).values()] == [3.0]
    together(*[partial(limits.resume, "mail", **where)] * 3, *[partial(limits.clear, "mail", **where)] * 3)
    assert definitions(store) == {}
