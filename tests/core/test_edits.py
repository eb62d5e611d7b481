"""Where changes put messages."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from delayedq.core.bounds import EARLIEST
from delayedq.core.edits import LATEST, LanePosition, Prioritize, Reroute, Reschedule, RunNow, Shift, Spread

NOW = datetime(2026, 3, 8, 6, 59, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)
PLACE = LanePosition(NOW + HOUR, "mail", 0)


def changed(change, place=PLACE, rank=0, draw=0.5):
    return change(place, NOW, rank, draw)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (RunNow(), PLACE._replace(scheduled_at=NOW)),
        (Reschedule(NOW + 5 * HOUR), PLACE._replace(scheduled_at=NOW + 5 * HOUR)),
        (Reschedule(datetime(1, 1, 1, tzinfo=UTC)), PLACE._replace(scheduled_at=EARLIEST)),
        (Shift(2 * HOUR), PLACE._replace(scheduled_at=NOW + 3 * HOUR)),
        (Shift(-2 * HOUR), PLACE._replace(scheduled_at=NOW - HOUR)),
        (Shift(timedelta.max), PLACE._replace(scheduled_at=LATEST)),
        (Shift(timedelta.min), PLACE._replace(scheduled_at=EARLIEST)),
        (Prioritize(-100), PLACE._replace(priority=-100)),
        (Reroute("slow"), PLACE._replace(queue="slow")),
    ],
)
def test_each_change_changes_its_own_part_of_the_place(change, expected):
    assert changed(change) == expected


def test_what_is_due_already_keeps_its_place_when_it_shall_run_now():
    due = PLACE._replace(scheduled_at=NOW - HOUR)
    assert changed(RunNow(), due) == due


@pytest.mark.parametrize("priority", [-101, 101])
def test_a_priority_has_limits(priority):
    with pytest.raises(ValueError, match="from -100 to 100"):
        Prioritize(priority)


@pytest.mark.parametrize("count", [1, 2, 7, 100, 1_000])
def test_messages_are_spread_evenly_however_many_there_are(count):
    spread = Spread(NOW, HOUR)
    times = sorted(spread.at(rank, 0.9) for rank in range(count))
    gaps = [later - earlier for earlier, later in pairwise([*times, times[0] + HOUR])]
    assert times[0] >= NOW
    assert times[-1] < NOW + HOUR
    assert max(gaps) <= 2 * HOUR / count


def test_jitter_moves_a_message_by_its_share_of_the_period_and_never_out_of_it():
    exact, loose = Spread(NOW, HOUR), Spread(NOW, HOUR, jitter=0.1)
    rng = random.Random(7)
    for rank in range(500):
        moved = (loose.at(rank, rng.random()) - exact.at(rank, 0)) % HOUR
        assert moved <= HOUR / 10 + timedelta(microseconds=2)
        assert NOW <= loose.at(rank, rng.random()) < NOW + HOUR


def test_a_spread_over_nothing_puts_all_at_its_start():
    assert {Spread(NOW, timedelta(0), jitter=1).at(rank, 0.3) for rank in range(9)} == {NOW}
