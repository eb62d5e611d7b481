"""`queue.cron`: the scenarios K1 to K14 of the seed's cron service, on every store."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, time, timedelta
from functools import partial
from zoneinfo import ZoneInfo

import pytest

from delayedq.cron import placing
from delayedq.cron.service import CronMessage, CronService
from delayedq.cron.ticks import daily_hash, periodic_hash, tick_key
from delayedq.models import CronTick, Message
from delayedq.store.protocol import ClaimRequest, Lane
from tests.cron.given import HASH, KIND, NEW_YORK, OTHER, live, make_offer, messages
from tests.store.given import LEASE, retry, settle, succeed, together
from tests.worker.conftest import eventually


def claim(store, clock, limit=100):
    return store.at(clock.now).claim(ClaimRequest([Lane(KIND, 0)], limit, LEASE, "first"))


def consume(store, clock):
    claims = claim(store, clock)
    settle(store, *map(succeed, claims), now=clock.now)
    return [claimed.payload for claimed in claims]


def test_k1_installed_ticks_are_there_and_due_at_their_time(store, cron, clock):
    cron.install_tick(HASH, "p", [CronMessage("a", clock.after(10)), CronMessage("b", clock.after(20))])

    keys = set(Message.objects.values_list("key", flat=True))
    assert keys == {tick_key("p", HASH, clock.after(10)), tick_key("p", HASH, clock.after(20))}
    assert consume(store, clock) == []
    clock.advance(10)
    assert consume(store, clock) == ["a"]
    clock.advance(10)
    assert consume(store, clock) == ["b"]


def test_a_tick_of_the_past_is_due_now(store, cron, clock):
    cron.install_tick(HASH, "p", messages(clock, -10))

    assert consume(store, clock) == ["tick"]


def test_k2_a_new_hash_takes_back_the_old_ones_of_its_prefix_only(cron, clock):
    cron.install_tick(HASH, "p", messages(clock, 10, 20))
    cron.install_tick(HASH, "q", messages(clock, 10))
    cron.install_tick(OTHER, "p", messages(clock, 15, payload="new"))

    assert live() == [("q", "one", "tick"), ("p", "two", "new")]


def test_k3_an_empty_list_of_the_same_hash_keeps_them(cron, clock):
    cron.install_tick(HASH, "p", messages(clock, 10))
    cron.install_tick(HASH, "p", [])

    assert live() == [("p", "one", "tick")]


def test_an_empty_list_of_another_hash_takes_them_back(cron, clock):
    cron.install_tick(HASH, "p", messages(clock, 10))
    cron.install_tick(OTHER, "p", [])

    assert live() == []


def test_k4_uninstalling_takes_back_exactly_prefix_and_hash(cron, clock, store):
    cron.install_tick(HASH, "p", messages(clock, 10))
    cron.install_tick(HASH, "q", messages(clock, 10))
    cron.uninstall_tick(OTHER, "p")
    assert len(live()) == 2
    cron.uninstall_tick(HASH, "p")
    assert live() == [("q", "one", "tick")]


def test_k4_another_hash_of_the_same_prefix_stays(store, cron, clock):
    cron.install_tick(OTHER, "p", messages(clock, 5, payload="other"))
    clock.advance(5)
    cron.install_tick(HASH, "p", messages(clock, 10))
    cron.uninstall_tick(HASH, "p")

    assert live() == [("p", "two", "other")]


@pytest.mark.parametrize("prefix", ["daily_report", "%", "a%", "daily/report", "Daily", "daily ", "dáily", "d\\_"])
def test_k5_a_prefix_is_matched_exactly(cron, clock, prefix):
    others = ["daily-report", "dailyXreport", "x", "ab", "daily", "daily/report/more", "DAILY", "daily  ", "d_"]
    for other in others:
        cron.install_tick(HASH, other, messages(clock, 10, payload=other))
    cron.install_tick(HASH, prefix, messages(clock, 10, payload="mine"))
    cron.install_tick(OTHER, prefix, [])
    cron.uninstall_tick(HASH, prefix)

    assert sorted(payload for _, _, payload in live()) == sorted(others)


def test_k6_a_tick_in_flight_or_awaiting_redelivery_stays(store, cron, clock):
    cron.install_tick(HASH, "p", messages(clock, 1, 2, 3, 1000))
    clock.advance(1)
    (failed,) = claim(store, clock)
    settle(store, retry(failed, delay=500.0), now=clock.now)
    clock.advance(1)
    (flying,) = claim(store, clock)
    cron.install_tick(OTHER, "p", [])
    cron.uninstall_tick(HASH, "p")

    assert Message.objects.count() == 3 - 1, "the one in 1 s and the one in 998 s are taken back"
    settle(store, succeed(flying), now=clock.now)
    clock.advance(500)
    assert consume(store, clock) == ["tick"]


def test_k6_a_tick_whose_consumer_died_is_delivered_again(store, cron, clock):
    cron.install_tick(HASH, "p", messages(clock, 1))
    clock.advance(1)
    claim(store, clock)
    clock.advance(LEASE.total_seconds())
    cron.install_tick(OTHER, "p", messages(clock, 5))

    assert consume(store, clock) == ["tick"]


def test_k7_a_period_ticks_at_its_next_multiple(cron, clock):
    for now, expected in ((time(10, 37, 42, 123_000), 11), (time(11), 12)):
        clock.now = datetime.combine(clock.now.date(), now, UTC)
        with cron.install_periodic_tick("hourly", timedelta(hours=1), lambda at: at.isoformat()):
            payload = f"2026-01-01T{expected}:00:00+00:00"
            eventually(Message.objects.filter(payload=payload).exists)
    assert {hash_ for _, hash_, _ in live()} == {periodic_hash(timedelta(hours=1))}


def test_a_daily_schedule_places_what_comes_within_its_advance(cron, clock):
    hours = [time(18), time(12)]
    with cron.install_daily_schedule(
        "daily",
        ZoneInfo("UTC"),
        hours,
        lambda at: CronMessage(f"{at:%d %H}", at),
        schedule_in_advance=timedelta(days=1),
    ):
        eventually(lambda: Message.objects.count() == 2)
    assert live() == [("daily", daily_hash("UTC", hours), payload) for payload in ("01 12", "01 18")]


@pytest.mark.parametrize(
    ("day", "local", "instant"),
    [
        (datetime(2026, 3, 8, tzinfo=UTC), time(2, 30), time(7)),
        (datetime(2026, 11, 1, tzinfo=UTC), time(1, 30), time(5, 30)),
    ],
    ids=["in the gap", "in the repeated hour"],
)
def test_k10_a_daily_schedule_runs_once_when_the_clock_is_changed(store, cron, clock, day, local, instant):
    delivered = []
    for minutes in range(0, 18 * 60, 20):
        clock.now = day + timedelta(minutes=minutes)
        with cron.install_daily_schedule("d", NEW_YORK, [local], partial(CronMessage, "tick")):
            eventually(CronTick.objects.filter(nominal_at__gt=clock.now).exists)
        claims = claim(store, clock)
        settle(store, *map(succeed, claims), now=clock.now)
        delivered += [claimed.scheduled_at for claimed in claims]

    assert delivered == [datetime.combine(day, instant, UTC)]


def test_k11_a_round_that_fails_is_logged_and_the_next_one_works(cron, clock, caplog):
    rounds = []

    def generate(now):
        rounds.append(now)
        if len(rounds) == 1:
            raise RuntimeError("no messages today")
        return messages(clock, 10)

    with cron.install(HASH, "p", timedelta(milliseconds=20), generate):
        eventually(lambda: live() == [("p", "one", "tick")])
    assert "no messages today" in caplog.text


def test_k11_closing_stops_the_loop(cron, clock):
    rounds = []
    seen = threading.Event()

    def generate(now):
        rounds.append(now)
        seen.set()
        return []

    installed = cron.install(HASH, "p", timedelta(milliseconds=10), generate)
    assert seen.wait(10)
    installed.close()
    installed.close()
    count = len(rounds)
    assert not any(thread.name == "delayedq-cron-p" for thread in threading.enumerate())
    assert len(rounds) == count


def test_k12_schedulers_with_skewed_clocks_and_ticks_acked_at_once_run_each_once(store, clock):
    consumed = []
    start = clock.now
    for second in range(0, 600, 15):
        for skew in (0, -120, 30):
            skewed = CronService(store, KIND, make_offer, lambda s=second, k=skew: start + timedelta(seconds=s + k))
            first = (second + skew) // 60 + 1
            ticks = [CronMessage(f"{n}", start + timedelta(minutes=n)) for n in range(first, first + 3)]
            skewed.install_tick(HASH, "p", ticks)
        clock.now = start + timedelta(seconds=second)
        consumed += consume(store, clock)

    assert len(consumed) == len(set(consumed))
    assert {f"{n}" for n in range(1, 10)} <= set(consumed)


def test_k12_schedulers_that_install_at_once_make_one_message_per_tick(store, cron, clock):
    together(*[partial(cron.install_tick, HASH, "p", messages(clock, 10, 20, 30)) for _ in range(6)])

    assert live() == [("p", "one", "tick")] * 3


def test_k13_two_ticks_within_a_second_are_two(cron, clock):
    cron.install_tick(HASH, "p", messages(clock, 0.25, 0.75))

    assert len(live()) == 2


def test_k13_delivery_is_at_the_actual_time_and_the_key_at_the_nominal_one(store, cron, clock):
    cron.install_tick(HASH, "p", [CronMessage("early", clock.after(100), clock.after(70))])

    message = Message.objects.get()
    assert (message.key, message.scheduled_at) == (tick_key("p", HASH, clock.after(100)), clock.after(70))
    clock.advance(70)
    assert consume(store, clock) == ["early"]
    cron.install_tick(HASH, "p", [CronMessage("early", clock.after(30), clock.after(0))])
    assert live() == []


def test_k14_after_a_pause_the_tick_that_was_placed_runs_once(store, cron, clock):
    with cron.install_periodic_tick("p", timedelta(hours=1), str):
        eventually(lambda: Message.objects.count() == 1)
    clock.advance(5 * 3600)
    with cron.install_periodic_tick("p", timedelta(hours=1), str):
        eventually(lambda: Message.objects.count() == 2)

    assert len(consume(store, clock)) == 1


def test_ticks_stay_as_they_were_placed(cron, clock):
    cron.install_tick(HASH, "p", messages(clock, 10, payload="first"))
    cron.install_tick(HASH, "p", messages(clock, 10, payload="second"))

    assert live() == [("p", "one", "first")]


def test_ticks_that_have_not_begun_can_be_updated(store, cron, clock):
    cron.install_tick(HASH, "p", messages(clock, 1, 10, payload="first"))
    clock.advance(1)
    (flying,) = claim(store, clock)
    again = [CronMessage("second", clock.after(0)), CronMessage("second", clock.after(9), clock.after(8))]
    cron.install_tick(HASH, "p", again, can_update=True)

    payloads = dict(Message.objects.values_list("payload", "scheduled_at"))
    assert payloads == {"first": clock.after(0), "second": clock.after(8)}
    settle(store, succeed(flying), now=clock.now)
    cron.install_tick(HASH, "p", again, can_update=True)
    assert Message.objects.count() == 1, "a tick that has run does not come back with an update"


def test_a_tick_that_was_pruned_does_not_come_back(store, cron, clock, monkeypatch):
    monkeypatch.setattr(placing, "KEPT", 3)
    cron.install_tick(HASH, "p", messages(clock, *range(1, 11)))
    clock.advance(20)
    assert len(consume(store, clock)) == 10
    cron.install_tick(HASH, "p", [])
    assert CronTick.objects.count() == 3

    cron.install_tick(HASH, "p", messages(clock, *range(-19, -9)))
    assert live() == []


def test_ticks_join_the_callers_transaction(store, cron, clock, alias):
    from tests.store.given import undone

    with undone(alias):
        cron.install_tick(HASH, "p", messages(clock, 10))
    assert (live(), CronTick.objects.count()) == ([], 0)
