"""`queue.cron` with the consumer of a real queue: the scenarios K1 to K14, offered, polled and acknowledged."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from functools import partial
from zoneinfo import ZoneInfo

import pytest

from delayedq import DelayedQueue
from delayedq.cron.service import CronMessage
from delayedq.cron.ticks import daily_hash, tick_key
from delayedq.exceptions import InvalidSchedule
from delayedq.models import CronTick
from delayedq.queue import TEXT
from tests.cron.given import HASH, NEW_YORK, OTHER, messages
from tests.store.given import together
from tests.worker.conftest import eventually

LEASE = timedelta(seconds=60)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


@pytest.fixture
def queue(alias, clock):
    return DelayedQueue("contacts", TEXT, lease=LEASE, clock=clock)


def consume(queue):
    """Poll and acknowledge all that is due; the payloads in their order."""
    batch = queue.try_poll_many(1_000)
    assert set(batch.acknowledge()) <= {"acknowledged"}
    return batch.payload


def poll_key(queue):
    with queue.try_poll() as envelope:
        return envelope.key


def prefixes(queue):
    """Of the ticks that wait, in the order in which they are due."""
    return [payload.partition(":")[0] for payload in queue.browse()]


def placed(*moments):
    """Until a schedule's thread has placed exactly these."""
    eventually(lambda: sorted(CronTick.objects.values_list("nominal_at", flat=True)) == sorted(moments))


# Ticks


def test_k1_a_tick_is_polled_from_its_time_on(queue, clock):
    queue.cron.install_tick(HASH, "p", [CronMessage("a", clock.after(10)), CronMessage("b", clock.after(20))])

    assert queue.count() == 2
    clock.advance(9.999)
    assert queue.try_poll() is None
    clock.advance(0.001)
    envelope = queue.try_poll()
    assert (envelope.payload, envelope.scheduled_at, envelope.delivery_type) == ("a", clock.now, "first_delivery")
    assert queue.try_poll() is None
    clock.advance(10)
    assert consume(queue) == ["b"]


def test_k2_a_new_hash_takes_the_ticks_of_the_old_one_away_and_no_others(queue, clock):
    queue.offer_or_update("p/mine", "mine", clock.after(5))
    queue.cron.install_tick(HASH, "p", messages(clock, 10, 20, payload="old"))
    queue.cron.install_tick(HASH, "q", messages(clock, 10, payload="other prefix"))
    queue.cron.install_tick(OTHER, "p", messages(clock, 15, payload="new"))

    clock.advance(60)
    assert consume(queue) == ["mine", "other prefix", "new"]


def test_k2_another_queue_keeps_its_ticks_of_the_same_prefix(queue, clock):
    other = DelayedQueue("others", TEXT, clock=clock)
    for one in (queue, other):
        one.cron.install_tick(HASH, "p", messages(clock, 10, payload=one.name))
    queue.cron.install_tick(OTHER, "p", [])

    assert (list(queue.browse()), list(other.browse())) == ([], ["others"])


def test_k3_no_ticks_of_the_same_hash_keep_those_that_are_there(queue, clock):
    queue.cron.install_tick(HASH, "p", messages(clock, 10))
    queue.cron.install_tick(HASH, "p", [])

    clock.advance(10)
    assert consume(queue) == ["tick"]


def test_k4_uninstalling_takes_exactly_the_ticks_of_its_prefix_and_hash(queue, clock):
    queue.cron.install_tick(HASH, "p", messages(clock, 10, payload="mine"))
    queue.cron.install_tick(HASH, "q", messages(clock, 10, payload="other prefix"))
    queue.cron.install_tick(OTHER, "r", messages(clock, 10, payload="other hash"))

    queue.cron.uninstall_tick(OTHER, "p")
    queue.cron.uninstall_tick(HASH, "r")
    assert queue.count() == 3
    queue.cron.uninstall_tick(HASH, "p")
    assert list(queue.browse()) == ["other prefix", "other hash"]


@pytest.mark.parametrize("prefix", ["daily_report", "%", "daily/report", "Daily", "daily "])
def test_k5_a_prefix_means_itself_and_no_pattern(queue, clock, prefix):
    others = ["dailyXreport", "x", "daily", "daily/report/more", "DAILY", "daily_report_2"]
    for name in [*others, prefix]:
        queue.cron.install_tick(HASH, name, messages(clock, 10, payload=f"{name}:"))

    queue.cron.uninstall_tick(HASH, prefix)
    assert prefixes(queue) == others
    queue.cron.install_tick(OTHER, prefix, messages(clock, 20, payload="again:"))
    queue.cron.install_tick(HASH, prefix, [])
    assert prefixes(queue) == others


@pytest.mark.parametrize("hash_", [HASH, OTHER], ids=["the same definition", "another one"])
def test_k6_a_tick_that_is_held_or_comes_back_outlives_every_reinstallation(queue, clock, hash_):
    for second, payload in enumerate(["abandoned", "rejected", "held"], start=1):
        early = CronMessage(payload, clock.after(700 + second), clock.after(second))  # its nominal time is to come
        queue.cron.install_tick(HASH, "p", [early])
    clock.advance(1)
    queue.try_poll()
    clock.advance(1)
    queue.try_poll().reject(timedelta(seconds=100))
    clock.advance(LEASE.total_seconds())
    held = queue.try_poll_many(2).envelopes[1]

    queue.cron.install_tick(hash_, "p", messages(clock, 500, payload="next"))
    queue.cron.uninstall_tick(hash_, "p")
    assert held.acknowledge() == "acknowledged"
    clock.advance(1_000)
    batch = queue.try_poll_many(9)
    assert (batch.payload, batch.delivery_type) == (["abandoned", "rejected"], "redelivery")


# Schedules


@pytest.mark.parametrize(
    ("now", "hour"), [(time(10, 37, 42, 123_000), 11), (time(11), 12), (time(10, 59, 59, 999_999), 11)]
)
def test_k7_a_period_ticks_at_its_next_multiple_and_never_at_once(queue, clock, now, hour):
    clock.now = datetime.combine(clock.now.date(), now, UTC)
    following = datetime(2026, 1, 1, hour, tzinfo=UTC)
    with queue.cron.install_periodic_tick("hourly", HOUR, lambda at: f"{at:%H:%M}"):
        placed(following)

    assert queue.try_poll() is None
    clock.now = following
    assert consume(queue) == [f"{hour}:00"]


@pytest.mark.parametrize(("period", "seconds"), [(HOUR, 900.0), (timedelta(seconds=2), 1.0)])
def test_k7_a_round_comes_every_quarter_of_a_period_and_at_most_every_second(queue, period, seconds):
    with queue.cron.install_periodic_tick("p", period, str) as installed:
        assert installed._interval == seconds


def test_k8_a_tick_carries_the_hash_that_upstream_would_give_it(queue, clock):
    with queue.cron.install_periodic_tick("hourly", HOUR, str):
        eventually(lambda: queue.count() == 1)
    clock.now = datetime(2026, 1, 1, 11, tzinfo=UTC)
    assert poll_key(queue) == "hourly/4916474562628112070d240d515ba44d/20260101-110000.000000000"

    utc, daily = ZoneInfo("UTC"), partial(CronMessage, "daily")
    with queue.cron.install_daily_schedule("daily", utc, [time(18), time(12)], daily):
        eventually(lambda: queue.count() == 2)
    clock.now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert poll_key(queue) == "daily/ac4a97d66f972bdaad77be2731bb7c2a/20260101-120000.000000000"


def test_k8_the_same_hours_in_another_order_are_no_new_definition(queue, clock):
    for hours in ([time(12), time(18)], [time(18), time(12)]):
        with queue.cron.install_daily_schedule("d", NEW_YORK, hours, partial(CronMessage, "tick")):
            eventually(lambda: queue.count() == 2)
    assert {tick.config_hash for tick in CronTick.objects.all()} == {daily_hash("America/New_York", hours)}
    assert queue.history().count() == 0, "none was taken back"


@pytest.mark.parametrize(
    ("now", "hours_ahead", "expected"),
    [
        ((1, 12), 7, [(1, 18)]),
        ((1, 20), 24, [(2, 12), (2, 18)]),
        ((1, 20), 0, [(2, 12)]),
    ],
    ids=["those within the advance", "those of tomorrow", "at least one"],
)
def test_k9_a_daily_schedule_places_what_its_advance_reaches(queue, clock, now, hours_ahead, expected):
    clock.now = datetime(2026, 1, *now, tzinfo=UTC)
    with queue.cron.install_daily_schedule(
        "daily",
        ZoneInfo("UTC"),
        [time(18), time(12)],
        lambda at: CronMessage(f"{at:%d %H}", at),
        schedule_in_advance=timedelta(hours=hours_ahead),
    ):
        placed(*[datetime(2026, 1, day, hour, tzinfo=UTC) for day, hour in expected])
    assert list(queue.browse()) == [f"{day:02} {hour}" for day, hour in expected]


def test_k9_a_daily_schedule_has_hours(queue):
    with pytest.raises(InvalidSchedule, match="at least one hour"):
        queue.cron.install_daily_schedule("daily", NEW_YORK, [], partial(CronMessage, "tick"))


@pytest.mark.parametrize(
    ("day", "hours", "delivered"),
    [
        (datetime(2026, 11, 1, tzinfo=UTC), [time(1, 30)], [time(5, 30)]),
        (datetime(2026, 3, 8, tzinfo=UTC), [time(2, 30), time(3, 15)], [time(7), time(7, 15)]),
    ],
    ids=["repeated hour", "gap"],
)
def test_k10_each_hour_comes_once_on_days_when_clocks_are_changed(queue, clock, day, hours, delivered):
    """Consumers and schedulers go on all day, and the definition is installed again every 20 minutes."""
    taken = []
    for minutes in range(4 * 60, 12 * 60, 20):
        clock.now = day + timedelta(minutes=minutes)
        with queue.cron.install_daily_schedule("d", NEW_YORK, hours, partial(CronMessage, "tick")):
            eventually(CronTick.objects.filter(nominal_at__gt=clock.now).exists)
        batch = queue.try_poll_many(9)
        taken += [envelope.scheduled_at for envelope in batch]
        batch.acknowledge()

    assert taken == [datetime.combine(day, moment, UTC) for moment in delivered]


# Loops


def test_k11_a_closed_schedule_places_no_more(queue, clock):
    with queue.cron.install_periodic_tick("p", MINUTE, str):
        eventually(lambda: queue.count() == 1)
    clock.advance(600)

    assert consume(queue) == ["2026-01-01 10:01:00+00:00"]
    assert queue.count() == 0


def test_k11_after_an_error_of_its_generator_or_of_the_database_a_schedule_goes_on(queue, clock, store, monkeypatch):
    failures = [LookupError("nothing to say"), ConnectionError("the server went away")]
    offer_many = type(store).offer_many

    def generate(now):
        if len(failures) == 2:
            raise failures.pop(0)
        return messages(clock, 10)

    def offer(self, *args, **options):
        if failures:
            raise failures.pop(0)
        return offer_many(self, *args, **options)

    monkeypatch.setattr(type(store), "offer_many", offer)
    with queue.cron.install(HASH, "p", timedelta(milliseconds=10), generate):
        eventually(lambda: queue.count() == 1)
    assert failures == []


def test_k12_three_schedulers_one_with_a_slow_clock_and_eager_consumers_run_each_tick_once(queue, clock):
    """Ticks are acknowledged at once, so only their tombstones keep the slow one from placing them again."""
    start, taken = clock.now, []
    for second in range(0, 600, 15):
        clock.now = start + timedelta(seconds=second)
        for skew in (0, -120, 3):
            skewed = DelayedQueue("contacts", TEXT, clock=lambda s=skew: clock.after(s))
            first = (second + skew) // 60 + 1
            coming = [CronMessage(f"{n}", start + n * MINUTE) for n in range(first, first + 3)]
            skewed.cron.install_tick(HASH, "p", coming)
        taken += consume(queue)

    assert len(taken) == len(set(taken))
    assert taken[-9:] == [f"{n}" for n in range(1, 10)]


def test_k12_schedulers_that_begin_together_place_each_tick_once(queue, clock):
    together(*[partial(queue.cron.install_tick, HASH, "p", messages(clock, 10, 20)) for _ in range(6)])

    clock.advance(60)
    assert consume(queue) == ["tick", "tick"]


def test_k13_two_ticks_of_one_second_are_two_messages(queue, clock):
    queue.cron.install_tick(HASH, "p", [CronMessage("a", clock.after(0.25)), CronMessage("b", clock.after(0.750001))])

    clock.advance(1)
    assert consume(queue) == ["a", "b"]


def test_k13_a_tick_is_known_by_its_nominal_time_and_delivered_at_the_actual_one(queue, clock):
    nominal = datetime(2026, 1, 1, 12, tzinfo=UTC)
    early = CronMessage("early", nominal, nominal - 30 * MINUTE)
    queue.cron.install_tick(HASH, "p", [early])

    clock.now = nominal - 30 * MINUTE
    envelope = queue.try_poll()
    assert (envelope.key, envelope.scheduled_at) == (f"p/{HASH}/20260101-120000.000000000", clock.now)
    envelope.acknowledge()
    queue.cron.install_tick(HASH, "p", [early])
    clock.now = nominal + HOUR
    assert queue.try_poll() is None


def test_k14_after_everybody_was_down_what_was_placed_runs_once_and_the_rest_is_passed_over(queue, clock):
    with queue.cron.install_periodic_tick("p", HOUR, lambda at: f"{at:%H}"):
        eventually(lambda: queue.count() == 1)
    clock.advance(5 * 3600)
    with queue.cron.install_periodic_tick("p", HOUR, lambda at: f"{at:%H}"):
        eventually(lambda: queue.count() == 2)

    assert consume(queue) == ["11"]
    clock.advance(3600)
    assert consume(queue) == ["16"]


# Ticks are messages


def test_a_tick_that_was_dropped_is_not_placed_again(queue, clock):
    queue.cron.install_tick(HASH, "p", messages(clock, 1))
    assert queue.drop_message(tick_key("p", HASH, clock.after(1)))
    queue.cron.install_tick(HASH, "p", messages(clock, 1), can_update=True)
    assert queue.count() == 0


def test_a_tick_that_somebody_holds_is_not_replaced(queue, clock):
    queue.cron.install_tick(HASH, "p", messages(clock, 1, payload="first"))
    clock.advance(1)
    envelope = queue.try_poll()
    queue.cron.install_tick(HASH, "p", messages(clock, 0, payload="second"), can_update=True)

    assert envelope.acknowledge() == "acknowledged"
    assert consume(queue) == []
