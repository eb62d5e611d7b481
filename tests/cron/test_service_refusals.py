"""`queue.cron` refuses what makes no tick: prefixes, hashes, times, intervals and hours that can not be."""

from __future__ import annotations

from datetime import UTC, time, timedelta

import pytest

from delayedq.cron.service import CronMessage
from delayedq.exceptions import InvalidKey, InvalidMessage, InvalidSchedule, InvalidTime
from tests.cron.given import HASH, NEW_YORK, live, messages


@pytest.mark.parametrize("prefix", ["", "  ", None, 7, "x" * 250], ids=repr)
def test_a_prefix_must_be_a_text_that_fits(cron, clock, prefix):
    with pytest.raises((InvalidSchedule, InvalidKey)):
        cron.install_tick(HASH, prefix, messages(clock, 10))
    assert live() == []


@pytest.mark.parametrize("hash_", ["", "  ", None, "a/b", "x" * 65], ids=repr)
def test_a_hash_must_be_a_text_that_fits(cron, clock, hash_):
    with pytest.raises(InvalidSchedule):
        cron.install_tick(hash_, "p", messages(clock, 10))


def test_a_prefix_that_leaves_no_room_for_the_key_is_refused_and_nothing_stored(cron, clock):
    with pytest.raises(InvalidMessage, match="200 characters"):
        cron.install_tick(HASH, "x" * 190, messages(clock, 10))
    assert live() == []


def test_naive_times_are_refused(cron, clock):
    with pytest.raises(InvalidTime):
        cron.install_tick(HASH, "p", [CronMessage("x", clock.now.replace(tzinfo=None))])


@pytest.mark.parametrize("interval", [timedelta(), timedelta(seconds=-1), 5, None], ids=repr)
def test_intervals_must_be_over_zero(cron, interval):
    with pytest.raises(InvalidSchedule):
        cron.install(HASH, "p", interval, lambda now: [])
    with pytest.raises(InvalidSchedule):
        cron.install_periodic_tick("p", interval, str)
    with pytest.raises(InvalidSchedule):
        cron.install_daily_schedule("p", NEW_YORK, [time(1)], CronMessage, schedule_interval=interval)


@pytest.mark.parametrize("hours", [[], [25], ["12:00"], [time(12, tzinfo=UTC)], [None]], ids=repr)
def test_hours_must_be_times_of_a_day(cron, hours):
    with pytest.raises(InvalidSchedule):
        cron.install_daily_schedule("p", NEW_YORK, hours, CronMessage)
