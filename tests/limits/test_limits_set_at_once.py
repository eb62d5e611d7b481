"""Two operators change one limit at the same moment: neither takes back what the other has done."""

from __future__ import annotations

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
