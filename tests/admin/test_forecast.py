from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from delayedq import Call, limits
from delayedq.admin.dashboard import heat_map
from delayedq.admin.heat import LEVELS, level
from delayedq.core.serialization import dumps, loads
from delayedq.cron.beat import beat
from delayedq.cron.definitions import definitions, read_stored
from delayedq.models import CronSchedule, Message
from delayedq.operations import counting
from delayedq.operations.figures import MINUTE, Ahead, Minute, forecast, stampedes, stampedes_in
from delayedq.operations.wording import exact
from tests.admin.given import MESSAGES, confirm, text_of
from tests.admin.test_dashboard import live
from tests.app import tasks
from tests.store.given import claim_one

NOW = datetime(2026, 5, 20, 9, 37, 30, tzinfo=UTC)
HOUR = NOW.replace(minute=0, second=0)
FORECAST = "/admin/delayedq/dashboard/forecast/"
QUARTERLY = {"task": "tests.app.tasks.mark", "cron": "*/15 * * * *", "timezone": "UTC", "args": ["tick"]}


@pytest.fixture
def cron(settings):
    def define(**schedules):
        settings.DELAYEDQ = {"CRON": schedules}

    define()
    return define


def wait(*dues):
    Message.objects.bulk_create(live(number, NOW, due) for number, due in enumerate(dues, start=1))


def busy(found):
    """The minutes that are not empty, as (minutes since the current hour began, waiting, cron)."""
    return [((minute.start - HOUR) // MINUTE, minute.waiting, minute.cron) for minute in found.minutes if minute.due]


# Waiting messages


def test_each_message_counts_in_the_minute_it_is_due(store, cron):
    wait(
        NOW + timedelta(seconds=1),
        HOUR + timedelta(minutes=40),
        HOUR + timedelta(minutes=40, seconds=59, microseconds=999_000),
        HOUR + timedelta(minutes=41),
        HOUR + timedelta(hours=24, microseconds=-1000),
        HOUR + timedelta(hours=24),
    )

    found = forecast(store, Ahead.DAY, NOW)
    assert busy(found) == [(37, 1, 0), (40, 2, 0), (41, 1, 0), (24 * 60 - 1, 1, 0)]
    assert (found.overdue, found.due, found.one_in) == (0, 5, 1.0)


def test_due_messages_are_overdue_and_running_ones_are_not(store, cron):
    wait(NOW - timedelta(hours=3), NOW - timedelta(seconds=90), NOW - timedelta(seconds=60))
    claim_one(store, now=NOW)

    assert forecast(store, Ahead.DAY, NOW).overdue == 2


def test_the_forecast_of_a_week_has_every_minute_of_it(store, cron):
    wait(HOUR + timedelta(days=6, hours=23))

    found = forecast(store, Ahead.WEEK, NOW)
    assert len(found.minutes) == 7 * 24 * 60
    assert busy(found) == [((6 * 24 + 23) * 60, 1, 0)]


def test_the_forecast_begins_with_the_current_local_hour(store, cron):
    with timezone.override("Asia/Kolkata"):
        assert forecast(store, Ahead.DAY, NOW).minutes[0].start == HOUR + timedelta(minutes=30)


def test_the_forecast_of_many_messages_is_estimated(store, cron, monkeypatch):
    monkeypatch.setattr(counting, "MOST", 1_000)
    Message.objects.bulk_create(
        (live(number * 5, NOW, NOW + timedelta(seconds=10 * number)) for number in range(1, 6_001)), batch_size=1_000
    )
    found = forecast(store, Ahead.DAY, NOW)

    assert found.one_in > 1
    assert found.due == pytest.approx(6_000, rel=0.15)


# Cron


def test_ticks_that_are_not_placed_yet_are_counted_separately(store, cron):
    cron(quarterly=QUARTERLY)

    assert busy(forecast(store, Ahead.DAY, NOW))[:3] == [(45, 0, 1), (60, 0, 1), (75, 0, 1)]
    assert forecast(store, Ahead.DAY, NOW).due == 24 * 4 - 3


def test_a_tick_that_is_placed_counts_once(store, cron):
    cron(quarterly=QUARTERLY)
    beat(store, definitions(), now=NOW)

    assert busy(forecast(store, Ahead.DAY, NOW))[:2] == [(45, 1, 0), (60, 0, 1)]


def test_a_changed_schedule_is_counted_from_now(store, cron):
    cron(quarterly=QUARTERLY)
    beat(store, definitions(), now=NOW)
    Message.objects.all().delete()
    cron(quarterly={**QUARTERLY, "cron": "*/20 * * * *"})

    assert busy(forecast(store, Ahead.DAY, NOW))[0] == (40, 0, 1)


def test_disabled_schedules_have_no_ticks_in_the_forecast(store, cron):
    cron(quarterly={**QUARTERLY, "enabled": False}, other=QUARTERLY)
    beat(store, definitions(), now=NOW)
    Message.objects.all().delete()
    CronSchedule.objects.update(disabled_at=NOW)

    assert forecast(store, Ahead.DAY, NOW).due == 0


def test_a_schedule_that_ticks_too_often_is_named(store, cron):
    cron(restless={**QUARTERLY, "cron": "* * * * * */2"}, quarterly=QUARTERLY)
    found = forecast(store, Ahead.DAY, NOW)

    assert found.uncounted == ["restless"]
    assert found.due > 20_000


# Schedules of the database


def store_schedule(store, name, **fields):
    """One that was covered until now, as if its next tick were not placed yet."""
    definition = dumps({**QUARTERLY, **fields})
    own = read_stored(name, loads(definition))
    CronSchedule.objects.create(
        name=name, definition=definition, config_hash=own.config_hash, covered_until=NOW, next_at=NOW
    )


def test_ticks_of_the_schedules_of_the_database_are_counted(store, cron):
    cron(quarterly=QUARTERLY)
    store_schedule(store, "own")
    store_schedule(store, "twice", max_runs=2)
    found = forecast(store, Ahead.DAY, NOW)
    assert busy(found)[:3] == [(45, 0, 3), (60, 0, 3), (75, 0, 2)]
    assert found.schedules_one_in == 1

    CronSchedule.objects.filter(name="own").update(disabled_at=NOW)
    CronSchedule.objects.filter(name="twice").update(definition='{"task": "elsewhere.run", "cron": "0 * * * *"}')
    assert busy(forecast(store, Ahead.DAY, NOW))[:2] == [(45, 0, 1), (60, 0, 1)]


def test_of_very_many_a_sample_is_counted_for_all(store, cron, monkeypatch, operator):
    monkeypatch.setattr("delayedq.operations.figures.MOST_SCHEDULES", 10)
    for number in range(40):
        store_schedule(store, f"own {number}")
    found = forecast(store, Ahead.DAY, NOW)
    assert found.schedules_one_in == 5
    assert busy(found)[0] == (45, 0, 40)
    assert "estimated from one in 5 of them" in text_of(operator.get(FORECAST))


# Stampedes


def minutes(*dues):
    return [Minute(HOUR + number * MINUTE, due, 0) for number, due in enumerate(dues)]


@pytest.mark.parametrize(
    ("dues", "wild"),
    [
        ([1] * 99 + [500], [500]),
        ([100] * 99 + [500], []),
        ([0] * 99 + [99], []),
        ([0] * 99 + [100], [100]),
        ([0] * 98 + [100, 300], [300, 100]),
        ([], []),
    ],
)
def test_a_stampede_is_a_minute_far_above_the_average(dues, wild):
    assert [minute.due for minute in stampedes(minutes(*dues))] == wild


# The map


def test_the_map_of_a_day_has_a_row_for_each_hour():
    whole = minutes(*[0] * (24 * 60))
    whole[75] = whole[75]._replace(waiting=7)
    heat = heat_map(Ahead.DAY, whole, [whole[75]])

    assert [len(row.cells) for row in heat.rows] == [60] * 24
    assert [row.label for row in heat.rows][:2] == ["05:00", "06:00"]
    query = "since=2026-05-20T10%3A15%3A00%2B00%3A00&until=2026-05-20T10%3A15%3A59%2B00%3A00"
    assert heat.rows[1].cells[15] == (LEVELS, "Wed 2026-05-20 06:15:00 EDT: 7 due", True, query)
    assert sum(cell.level for row in heat.rows for cell in row.cells) == LEVELS


def test_the_map_of_a_week_shows_the_busiest_minute_of_each_hour():
    whole = minutes(*[0] * (7 * 24 * 60))
    whole[61], whole[62] = whole[61]._replace(waiting=3), whole[62]._replace(waiting=12)
    heat = heat_map(Ahead.WEEK, whole, [])

    assert [row.label for row in heat.rows] == [
        f"{day} {n}" for n, day in enumerate(["Wed", "Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"], 20)
    ]
    assert heat.rows[0].cells[6][:3] == (
        LEVELS,
        "Wed 2026-05-20 06:00:00 EDT: 15 due, at most 12 in a minute",
        False,
    )


@pytest.mark.parametrize("start", [datetime(2026, 3, 8, 5, tzinfo=UTC), datetime(2026, 11, 1, 4, tzinfo=UTC)])
def test_the_map_has_every_minute_of_a_day_with_a_clock_change(start):
    whole = [Minute(start + number * MINUTE, 1, 0) for number in range(7 * 24 * 60)]

    assert sum(len(row.cells) for row in heat_map(Ahead.DAY, whole[:1440], []).rows) == 1440
    assert sum(cell.level > 0 for cell in heat_map(Ahead.WEEK, whole, []).rows[0].cells) in {23, 24}


@pytest.mark.parametrize(("due", "most", "expected"), [(0, 0, 0), (1, 1, 5), (1, 1_000_000, 1), (25, 100, 3)])
def test_small_counts_stay_visible_beside_large_ones(due, most, expected):
    assert level(due, most) == expected


def test_a_cluster_in_a_sample_is_no_stampede(store, cron, monkeypatch):
    """Of messages made in the order in which they are due, a slice of the sample has all of a minute."""
    for name, value in (("counting.MOST", 300), ("counting.FIRST_SHARE", 0.05)):
        monkeypatch.setattr(f"delayedq.operations.{name}", value)
    monkeypatch.setattr("delayedq.core.sampling.PARTS", 10)
    begin = store.now().replace(minute=0, second=0, microsecond=0) + timedelta(hours=2)
    in_order = [begin + timedelta(seconds=2 * number) for number in range(3_000)]
    together = [begin + timedelta(hours=5, minutes=minute) for minute in range(10) for _ in range(400)]
    wait(*in_order, *together)
    found = forecast(store, Ahead.DAY)
    assert found.one_in > 1
    assert any(minute.start < together[0] for minute in stampedes(found.minutes))
    assert {minute.waiting for minute in stampedes_in(store, found)} == {400}


# The page


@pytest.fixture
def stampede(alias, cron):
    due = timezone.now().replace(minute=30, second=0, microsecond=0) + timedelta(hours=2)
    wait(*[due] * 150)
    return due


def test_a_stampede_is_shown_with_a_link_to_its_messages(operator, stampede):
    page = operator.get(FORECAST)

    assert f"{exact(stampede)}: 150 messages fall due within a minute." in text_of(page)
    ((_, _, query, _),) = page.context["stampedes"]
    assert operator.get(f"{MESSAGES}?{query}").context["count"].number == 150


def test_spreading_a_stampede_takes_one_confirmation(operator, stampede):
    ((_, _, query, local),) = operator.get(FORECAST).context["stampedes"]
    asked = {"action": "spread", "everything": "on", "query": query, "start": local, "amount": "30"}
    confirmation = operator.post(f"{MESSAGES}act/", asked)

    assert f'value="{timezone.localtime(stampede):%Y-%m-%dT%H:%M:%S}"' in str(confirmation.context["form"]["start"])
    confirm(operator, confirmation, start=local, amount="30", unit="minutes", jitter="10")
    dues = Message.objects.values_list("scheduled_at", flat=True)
    assert min(dues) >= stampede
    assert max(dues) - min(dues) > timedelta(minutes=20)


def test_without_permission_to_reschedule_only_the_link_is_shown(member, stampede):
    said = text_of(member("view_dashboard").get(FORECAST))

    assert "Show them" in said
    assert "Spread" not in said


def test_a_stampede_of_ticks_recommends_an_h_in_the_expression(operator, cron):
    due = timezone.now() + timedelta(hours=2)
    daily = {**QUARTERLY, "cron": f"{due.minute} {due.hour} * * *"}
    cron(**{f"daily-{number}": daily for number in range(120)})

    assert "120 of them are ticks of schedules" in text_of(operator.get(FORECAST))


def test_an_empty_queue_has_an_empty_map(operator, cron):
    page = operator.get(f"{FORECAST}?ahead=week")

    assert page.context["ahead"] is Ahead.WEEK
    assert "Stampede" not in text_of(page)
    assert page.content.count(b"dq-outlined") == 0


def test_limits_that_hold_messages_back_are_named(store, operator):
    now = timezone.now()
    tasks.report.enqueue_many(Call((7,), at=now - MINUTE) for _ in range(20))
    limits.pause(tasks.deliver.module_path, store=store)
    tasks.deliver.enqueue_many(Call(("acme",), at=now) for _ in range(3))
    said = text_of(operator.get(FORECAST))
    assert f"{tasks.deliver.module_path} is paused: 3 messages wait or fall due." in said
    assert f"{tasks.report.module_path} (2 in 1 h): of 20 messages that wait or fall due, the last can start in" in said
