"""Places are dealt to the lowest turns, by weight; and first to those who are owed some."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from delayedq.limits.rules import ChannelDemand, deal


@settings(deadline=None)
@given(st.integers(0, 200), st.dictionaries(st.integers(0, 30), st.integers(0, 40)))
def test_places_are_dealt_one_by_one_and_none_is_left_that_somebody_may_take(room, most):
    dealt = deal(room, {name: ChannelDemand(bound) for name, bound in most.items()})

    assert all(0 <= dealt[name] <= most[name] for name in most)
    assert sum(dealt.values()) == min(room, sum(most.values()))
    hungry = [dealt[name] for name in most if dealt[name] < most[name]]
    assert not hungry or max(hungry) - min(hungry) <= 1
    assert not hungry or all(number <= max(hungry) + 1 or number == most[name] for name, number in dealt.items())


@settings(deadline=None)
@given(st.integers(0, 300), st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_places_are_dealt_by_weight(room, weights):
    dealt = deal(room, {rank: ChannelDemand(room, step=1 / weight) for rank, weight in enumerate(weights)})

    for rank, weight in enumerate(weights):
        assert abs(dealt[rank] - room * weight / sum(weights)) < len(weights) + 1


@settings(deadline=None)
@given(
    st.integers(0, 40),
    st.lists(st.tuples(st.integers(0, 9), st.floats(0, 100), st.integers(0, 5)), min_size=1, max_size=9),
)
def test_who_is_owed_places_gets_them_before_anybody_gets_more(room, given_):
    waiting = {rank: ChannelDemand(most, turn, owed=owed) for rank, (most, turn, owed) in enumerate(given_)}
    dealt = deal(room, waiting)

    is_short = any(dealt[rank] < min(one.owed, one.most) for rank, one in waiting.items())
    got_more = any(dealt[rank] > one.owed for rank, one in waiting.items())
    assert not (is_short and got_more)


@settings(deadline=None)
@given(st.integers(0, 200), st.dictionaries(st.integers(0, 30), st.tuples(st.integers(0, 40), st.integers(0, 3))))
def test_where_two_are_dealt_at_once_nobody_is_more_than_two_ahead_and_shares_come_first(room, given_):
    waiting = {name: ChannelDemand(most, owed=owed, at_once=2) for name, (most, owed) in given_.items()}
    dealt = deal(room, waiting)

    assert sum(dealt.values()) == min(room, sum(one.most for one in waiting.values()))
    assert all(dealt[name] <= one.most for name, one in waiting.items())
    short = [name for name, one in waiting.items() if dealt[name] < min(one.owed, one.most)]
    assert not short or all(dealt[name] <= one.owed for name, one in waiting.items() if one.owed > 0)
    hungry = [dealt[name] for name, one in waiting.items() if not one.owed and dealt[name] < one.most]
    assert not hungry or max(hungry) - min(hungry) <= 2
