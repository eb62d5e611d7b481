"""What a worker remembers of the queues it serves."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace

import pytest

from delayedq.limits.claims import TAKEN
from delayedq.limits.requests import AS_BEFORE
from delayedq.store.protocol import LaneHead
from delayedq.worker import lanes as lanes_module
from delayedq.worker.lanes import REMEMBERED, SLACK, Lanes
from tests.app import tasks
from tests.worker.attempts import NOW, claimed

HOUR = 3600.0


def lanes(*heads):
    """What a scan just now found: (queue, priority), or with seconds until it is due."""
    known = Lanes()
    scanned(known, *heads)
    return known


def scanned(known, *heads):
    known.scanned(
        [LaneHead(queue, priority, NOW, *due or (-1.0,)) for queue, priority, *due in heads], time.monotonic()
    )


def names(planned):
    return [f"{lane.queue}{lane.priority}" for lane in planned]


def got(queue="a", priority=0, seconds=0.0):
    return claimed(tasks.remind, queue=queue, priority=priority, scheduled_at=NOW + timedelta(seconds=seconds))


def test_nothing_is_planned_before_somebody_looked():
    assert Lanes().plan() == []
    assert Lanes().due_in() is None


def test_higher_priorities_are_planned_first():
    assert names(lanes(("a", -5), ("b", 100), ("c", 0)).plan()) == ["b100", "c0", "a-5"]


def test_equal_priorities_take_turns_in_being_first():
    known = lanes(("a", 0), ("b", 0), ("c", 0), ("low", -1))
    plans = [names(known.plan()) for _ in range(100)]
    assert {plan[0] for plan in plans} == {"a0", "b0", "c0"}
    assert all(plan[-1] == "low-1" and len(plan) == 4 for plan in plans)


def test_turns_come_round_whatever_else_is_planned():
    known = lanes(("a", 0), ("high", 9), ("b", 0), ("low", -9))
    seconds = [names(known.plan())[1] for _ in range(200)]
    assert seconds.count("a0") >= 50
    assert seconds.count("b0") >= 50


def test_what_is_not_due_is_not_planned_but_expected():
    known = lanes(("a", 0, HOUR), ("b", 0, 2 * HOUR))
    assert known.plan() == []
    assert HOUR - 60 < known.due_in() <= HOUR


def test_what_is_overdue_is_expected_now():
    assert lanes(("a", 0, -5.0), ("b", 0, HOUR)).due_in() <= 0


# Floors


def watermarks(known):
    return {f"{lane.queue}{lane.priority}": lane.watermark for lane in known.plan()}


def test_a_watermark_begins_where_the_scan_saw_the_first_message():
    assert watermarks(lanes(("a", 0))) == {"a0": NOW}


def test_a_watermark_advances_to_what_was_claimed_but_for_late_commits():
    known = lanes(("a", 0), ("b", 0))
    known.advance(known.plan(), [got(seconds=1), got(seconds=7)], 2)
    assert watermarks(known) == {"a0": NOW + timedelta(seconds=7) - SLACK, "b0": NOW}


def test_while_there_is_more_a_watermark_follows_close_behind():
    known = lanes(("a", 0), ("b", 0))
    for seconds in (1.0, 1.1):
        known.advance(known.plan(), [got("b", seconds=seconds), got(seconds=seconds)], 2)
    assert watermarks(known) == {"a0": NOW + timedelta(seconds=1), "b0": NOW + timedelta(seconds=1.1) - SLACK}


def test_where_all_was_taken_a_watermark_leaves_time_for_late_commits():
    known = lanes(("a", 0))
    for seconds in (1.0, 1.1):
        known.advance(known.plan(), [got(seconds=seconds)], 2)
        known.hint()
    assert watermarks(known) == {"a0": NOW + timedelta(seconds=1.1) - SLACK}


def test_what_is_offered_now_is_not_under_the_watermark_of_a_lane_that_held_only_later_messages():
    known = Lanes()
    known.scanned([LaneHead("a", 0, NOW + timedelta(hours=1), HOUR)], time.monotonic())
    known.hint()
    (lane,) = known.plan()
    assert lane.watermark is None or lane.watermark <= NOW


def test_a_watermark_never_goes_back_by_a_claim():
    known = lanes(("a", 0))
    known.advance(known.plan(), [got(seconds=7)], 1)
    known.advance(known.plan(), [got(seconds=-100)], 1)
    assert watermarks(known) == {"a0": NOW + timedelta(seconds=7) - SLACK}


def test_a_scan_lowers_a_watermark_to_what_it_found():
    known = lanes(("a", 0))
    known.advance(known.plan(), [got(seconds=7)], 1)
    scanned(known, ("a", 0))
    assert watermarks(known) == {"a0": NOW}


@pytest.mark.parametrize("instant", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)], ids=str)
def test_the_ends_of_time_are_times_like_others(instant):
    known = Lanes()
    known.scanned([LaneHead("a", 0, instant, -1.0)], time.monotonic())
    planned = known.plan()
    known.advance(planned, [claimed(tasks.remind, queue="a", scheduled_at=instant)], 1)
    assert names(known.plan()) == ["a0"]


# Exhausted lanes


def test_lanes_that_gave_all_they_were_asked_for_stay_planned():
    known = lanes(("a", 0), ("b", 0))
    assert not known.advance(known.plan(), [got(), got()], 2)
    assert len(known.plan()) == 2


def test_exhausted_lanes_are_not_planned_until_somebody_scans():
    known = lanes(("a", 0), ("b", 0))
    assert known.advance(known.plan(), [got()], 2)
    assert known.plan() == []
    assert known.due_in() is None

    scanned(known, ("b", 0), ("c", 0))
    assert sorted(names(known.plan())) == ["b0", "c0"]


def test_an_exhausted_lane_is_planned_again_after_a_hint():
    known = lanes(("a", 0))
    known.advance(known.plan(), [], 1)
    known.hint()
    assert names(known.plan()) == ["a0"]
    assert known.due_in() <= 0


def test_only_what_was_planned_is_exhausted():
    known = lanes(("a", 0), ("later", 0, HOUR))
    known.advance(known.plan(), [], 1)
    assert known.due_in() > HOUR - 60


def test_a_lane_that_vanished_between_plan_and_claim_does_no_harm():
    known = lanes(("a", 0))
    planned = known.plan()
    scanned(known, ("b", 0))
    known.advance(planned, [got()], 2)
    assert names(known.plan()) == ["b0"]


def test_during_a_long_scan_exhausted_lanes_are_planned_again_by_themselves(monkeypatch):
    monkeypatch.setattr(lanes_module, "UNHEARD", 0.0)
    known = lanes(("a", 0))
    assert known.advance(known.plan(), [], 1)
    assert known.plan() == []
    known.scan_begins()
    assert names(known.plan()) == ["a0"]
    known.advance(known.plan(), [], 1)
    assert names(known.plan()) == ["a0"]
    known.scan_has_ended()
    known.advance(known.plan(), [], 1)
    assert known.plan() == []


def test_claims_during_a_long_scan_are_not_in_vain():
    """So what the scan finds is claimed at once."""
    known = lanes(("a", 0))
    planned = known.plan()
    known.scan_begins()
    for _ in range(9):
        known.advance(planned, [], 1)
    known.scan_has_ended()
    scanned(known, ("a", 0))
    assert known.due_in() <= 0


def test_scans_are_counted():
    known = lanes(("a", 0))
    scanned(known)
    assert known.scans == 2
    assert known.plan() == []


def test_what_was_hinted_at_in_vain_was_not_locked():
    """Each offer for later wakes the worker; what is due then must not wait for it."""
    known = lanes(("a", 0, HOUR))
    for _ in range(5):
        known.hint()
        known.advance(known.plan(), [], 1)
        scanned(known, ("a", 0, HOUR))
    scanned(known, ("a", 0))
    assert known.due_in() <= 0


def test_an_empty_lane_is_remembered_for_the_next_hint():
    known = lanes(("a", 0))
    known.advance(known.plan(), [got(seconds=7)], 1)
    scanned(known)
    assert known.due_in() is None
    assert known.hint()
    assert watermarks(known) == {"a0": NOW + timedelta(seconds=7) - SLACK}


def test_without_any_lane_a_hint_waits_for_a_scan():
    assert not Lanes().hint()


def test_few_empty_lanes_are_remembered_and_the_latest_rather_than_others():
    known = Lanes()
    for number in range(3 * REMEMBERED):
        scanned(known, ("new", number))
    scanned(known)
    known.hint()
    assert sorted(lane.priority for lane in known.plan()) == list(range(2 * REMEMBERED, 3 * REMEMBERED))
    scanned(known, ("back", 0))
    assert names(known.plan()) == ["back0"]


def test_a_lane_whose_first_message_is_locked_is_tried_less_and_less_often(monkeypatch):
    monkeypatch.setattr(lanes_module, "time", SimpleNamespace(monotonic=lambda: 0.0))  # which stands still
    known, locked = Lanes(), [LaneHead("a", 0, NOW, -1.0)]
    known.scanned(locked, 0.0)
    pauses = []
    for _ in range(12):
        known.hint()
        known.advance(known.plan(), [], 1)
        known.scanned(locked, 0.0)
        pauses.append(known.due_in())
    assert pauses[0] <= 0
    assert all(earlier < later for earlier, later in pairwise(pauses[:6]))
    assert 0.9 < pauses[-1] <= 1.0
    known.hint()
    known.advance(known.plan(), [got()], 1)
    known.scanned(locked, 0.0)
    assert known.due_in() <= 0


@pytest.mark.parametrize(("due_in", "expected"), [(None, True), (0.0, False), (TAKEN, False), (0.25, True)])
def test_a_claim_from_channels_that_met_another_one_does_not_know_that_nothing_is_due(due_in, expected):
    known = Lanes()
    known.expect_channels(due_in)
    assert known.nothing_is_due() is expected


def test_channels_that_continue_leave_the_others_due_as_they_were():
    known = lanes()
    known.expect_channels(3600.0)
    before = known.due_in()
    known.expect_channels(AS_BEFORE)
    assert not known.channels_are_due()
    assert before - 60 < known.due_in() <= before


# Many lanes


@pytest.fixture
def ten(monkeypatch):
    """Ten lanes that are due, of which a claim names four, or two after one that took all from one lane."""
    monkeypatch.setattr(lanes_module, "MOST_NAMED", 4)
    monkeypatch.setattr(lanes_module, "FEWEST_NAMED", 2)
    return lanes(*ALL_TEN)


ALL_TEN = [(letter, 0) for letter in "abcdefghij"]
NAMES = [f"{letter}0" for letter, _ in ALL_TEN]


def test_of_many_lanes_some_are_named_and_each_has_its_turn(ten):
    plans = [names(ten.plan()) for _ in range(6)]
    assert [len(plan) for plan in plans] == [4, 4, 2] * 2
    for each in (plans[:3], plans[3:]):
        assert sorted(name for plan in each for name in plan) == NAMES


def test_where_channels_are_claimed_from_no_lane_has_had_its_turn(ten, monkeypatch):
    ten.expect_channels(0.0)
    named = []
    for chance in [0.0, 0.9] * 3:
        monkeypatch.setattr(lanes_module.random, "random", lambda chance=chance: chance)
        planned, channels = ten.choose()
        assert channels is (chance == 0.0)
        named += names(planned)
    assert sorted(named) == NAMES


def test_after_a_claim_that_got_all_twice_as_many_are_named_as_it_came_from(ten):
    for got_from, named in [("a", 2), ("ab", 4), ("abc", 4), ("", 4)]:
        scanned(ten, *ALL_TEN)
        ten.advance(ten.plan(), [got(letter) for letter in got_from], len(got_from) or 1)
        scanned(ten, *ALL_TEN)
        assert len(ten.plan()) == named


def test_lower_priorities_are_named_beside_all_that_are_higher_or_not_at_all(ten):
    scanned(ten, *ALL_TEN[:3], *((letter, -5) for letter in "klmno"))
    for _ in range(9):
        plan = names(ten.plan())
        assert sorted(plan[:3]) == NAMES[:3]
        assert len(plan) == 4
    scanned(ten, *ALL_TEN[:6], *((letter, -5) for letter in "klmno"))
    for _ in range(9):
        assert {lane.priority for lane in ten.plan()} == {0}


def test_what_becomes_due_between_two_turns_goes_first(ten, monkeypatch):
    moment = time.monotonic()
    scanned(ten, *ALL_TEN, ("high", 9, HOUR))
    assert len(ten.plan()) == 4
    monkeypatch.setattr(lanes_module, "time", SimpleNamespace(monotonic=lambda: moment + 2 * HOUR))
    assert names(ten.plan())[0] == "high9"


def test_what_is_no_longer_due_when_its_turn_comes_is_not_named(ten):
    named = ten.plan()
    ten.yield_to_others("a", 0, 0.0)
    named += ten.plan() + ten.plan()
    assert sorted(names(named)) in (NAMES, NAMES[1:])
    assert "a0" not in names(ten.plan() + ten.plan() + ten.plan())


@pytest.mark.parametrize("event", ["hint", "scan_begins"])
def test_where_nobody_knows_what_is_due_all_lanes_are_named_until_somebody_has_looked(ten, monkeypatch, event):
    """Else lanes of high priority that are empty, and many, would hide the others."""
    monkeypatch.setattr(lanes_module, "UNHEARD", 0.0)
    assert len(ten.plan()) == 4
    getattr(ten, event)()
    for _ in range(2):
        assert sorted(names(ten.plan())) == NAMES
    ten.scan_has_ended()
    ten.scanned_ahead([LaneHead(*name, NOW, -1.0) for name in ALL_TEN], time.monotonic())
    assert len(ten.plan()) == 4
    getattr(ten, event)()
    scanned(ten, *ALL_TEN)
    assert len(ten.plan()) == 4


def test_only_the_lanes_that_were_found_empty_are_looked_at(ten):
    first, second = ten.plan(), ten.plan()
    assert ten.advance(first, [], 1)
    assert ten.advance(second, [], 1)
    empty = ten.to_peek()
    assert sorted(empty) == sorted(first + second)
    assert ten.to_peek() == []
    others = names(ten.plan())
    assert len(others) == 2

    ten.peeked(empty, [LaneHead(empty[0].queue, 0, NOW, -1.0)], time.monotonic())
    assert sorted(names(ten.plan())) == sorted([*others, *names(empty[:1])])


def test_a_scan_has_looked_at_what_was_found_empty_too(ten):
    assert ten.advance(ten.plan(), [], 1)
    scanned(ten, *ALL_TEN)
    assert ten.to_peek() == []


def test_few_lanes_are_all_looked_at():
    """Another worker may have given back what it took from one of them."""
    known = lanes(("a", 0), ("later", 0, HOUR))
    assert known.advance(known.plan(), [], 1)
    assert sorted(names(known.to_peek())) == ["a0", "later0"]


def test_what_was_given_back_is_expected(ten, monkeypatch):
    moment = time.monotonic()
    while plan := ten.plan():
        ten.advance(plan, [], 1)
    ten.expect("a", 0, HOUR)
    ten.expect("a", 0, 2 * HOUR)
    ten.expect("gone", 0, 0.0)
    assert HOUR - 60 < ten.due_in() <= HOUR

    scanned(ten, *ALL_TEN[1:], ("high", 9, 2 * HOUR))
    assert len(ten.plan()) == 4
    ten.expect("high", 9, HOUR)
    monkeypatch.setattr(lanes_module, "time", SimpleNamespace(monotonic=lambda: moment + 1.5 * HOUR))
    assert names(ten.plan())[0] == "high9"


def test_no_lane_is_named_twice_when_all_whose_turn_it_is_yield(ten, monkeypatch):
    monkeypatch.setattr(lanes_module.random, "shuffle", lambda _: None)
    assert names(ten.plan()) == NAMES[:4]
    for letter in "efgh":
        ten.yield_to_others(letter, 0, 0.0)
    assert names(ten.plan()) == NAMES[:4]
    assert names(ten.plan()) == ["i0", "j0"]
