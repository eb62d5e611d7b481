"""Schedules in the database, by code: created, changed, disabled, run and deleted in the caller's transaction."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from django.db import IntegrityError

from delayedq import schedules
from delayedq.cron.beat import Beats
from delayedq.cron.definitions import Definition
from delayedq.exceptions import InvalidSchedule
from delayedq.models import CronSchedule, CronTick, Message
from delayedq.tasks import registered
from tests.app.tasks import mark
from tests.cron.given import beat_at, cancelled, nominal, placed, run_due
from tests.store.given import together, undone

NOW = datetime(2026, 3, 7, 15, 20, tzinfo=UTC)
HOURLY = {"cron": "0 * * * *", "timezone": "UTC", "args": ["x"]}


@pytest.fixture
def now(store, monkeypatch):
    """A clock that a test sets."""
    moment = [NOW]
    monkeypatch.setattr(type(store), "now", lambda self: moment[0])
    return moment


def hour(number):
    return NOW.replace(hour=number, minute=0)


def beat(store):
    Beats(store, {}).beat()


def test_a_schedule_is_created_with_its_next_tick(store, now):
    assert schedules.create("report", mark, **HOURLY) == hour(16)

    assert placed() == [hour(16)]
    now[0] = hour(16)
    beat(store)
    assert placed() == [hour(16), hour(17)]
    assert run_due(store, now[0]) == [hour(16)]


def test_it_is_there_when_the_callers_transaction_commits_and_never_was_if_it_rolls_back(store, now, alias):
    with undone(alias):
        schedules.create("report", mark, **HOURLY)
    assert (CronSchedule.objects.count(), CronTick.objects.count(), Message.objects.count()) == (0, 0, 0)

    schedules.create("report", mark, **HOURLY)
    for change in (
        lambda: schedules.update("report", cron="30 * * * *"),
        lambda: schedules.disable("report"),
        lambda: schedules.delete("report"),
        lambda: schedules.run_now("report"),
    ):
        with undone(alias):
            change()
        assert placed() == [hour(16)]
    assert schedules.get("report") == {"task": "tests.app.tasks.mark", **HOURLY}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"cron": "61 * * * *"}, r"Schedule 'report'\['cron'\]"),
        ({"cron": "0 * * * *", "misfire": "twice"}, r"\['misfire'\]: It is one of 'once', 'skip', 'all', not 'twice'"),
        ({"cron": "0 * * * *", "prority": 1}, "'prority' is unknown; .* Did you mean 'priority'?"),
        ({"every": 60}, r"\['every'\]"),
        ({}, "either 'cron' or 'every'"),
    ],
)
def test_what_is_wrong_is_refused_as_in_the_settings_and_nothing_is_stored(store, options, problem):
    with pytest.raises(InvalidSchedule, match=problem):
        schedules.create("report", mark, args=["x"], **options)
    assert not CronSchedule.objects.exists()


def test_a_name_is_taken_once(store, now, settings):
    settings.DELAYEDQ = {"CRON": {"coded": {"task": mark.module_path, **HOURLY}}}
    schedules.create("report", mark, **HOURLY)
    for name in ("report", "coded"):
        with pytest.raises(InvalidSchedule, match=f"There is a schedule '{name}' already"):
            schedules.create(name, mark, **HOURLY)


def test_of_two_who_create_it_at_once_one_is_refused(store):
    def create():
        try:
            schedules.create("report", mark, **HOURLY)
        except InvalidSchedule:
            return False
        return True

    assert sorted(together(create, create, create)) == [False, False, True]
    assert CronTick.objects.count() == 1


def test_a_change_takes_back_the_future_ticks_and_starts_from_now(store, now):
    schedules.create("report", mark, **HOURLY)
    assert schedules.update("report", cron="30 * * * *") == hour(15) + timedelta(minutes=30)

    assert placed() == [hour(15) + timedelta(minutes=30)]
    assert cancelled() == {hour(16): "Its schedule has changed."}
    assert schedules.get("report")["timezone"] == "UTC"


def test_every_replaces_cron_and_none_removes_a_key(store, now):
    schedules.create("report", mark, priority=5, **HOURLY)
    schedules.update("report", every=timedelta(minutes=30), priority=None)

    assert schedules.get("report") == {"task": mark.module_path, "every": timedelta(minutes=30), "args": ["x"]}


def test_a_change_that_is_wrong_changes_nothing(store, now):
    schedules.create("report", mark, **HOURLY)
    with pytest.raises(InvalidSchedule):
        schedules.update("report", timezone="Mars/Phobos")
    assert schedules.get("report")["timezone"] == "UTC"


def test_disabled_it_ticks_no_more_until_it_is_enabled(store, now):
    schedules.create("report", mark, **HOURLY)
    assert (schedules.disable("report"), schedules.disable("report")) == (True, False)
    now[0] = hour(20)
    beat(store)
    assert placed() == []
    assert (schedules.enable("report"), schedules.enable("report")) == (True, False)
    assert placed() == [hour(21)]


def test_created_disabled_it_waits_to_be_enabled(store, now):
    assert schedules.create("report", mark, enabled=False, **HOURLY) is None
    assert placed() == []
    schedules.update("report", priority=3)
    assert placed() == []
    schedules.enable("report")
    assert placed() == [hour(16)]
    assert Message.objects.get().priority == 3


def test_enabled_is_a_key_of_update_too(store, now):
    schedules.create("report", mark, **HOURLY)
    assert schedules.update("report", enabled=False, priority=3) is None
    assert placed() == []
    now[0] = hour(20)
    beat(store)
    assert placed() == []
    assert schedules.update("report", enabled=True) == hour(21)
    assert placed() == [hour(21)]
    assert schedules.get("report") == {"task": mark.module_path, "priority": 3, **HOURLY}


@pytest.mark.parametrize("enabled", [0, "no", None])
def test_enabled_is_true_or_false(store, now, enabled):
    with pytest.raises(InvalidSchedule, match="It is True or False"):
        schedules.create("report", mark, enabled=enabled, **HOURLY)
    schedules.create("report", mark, **HOURLY)
    if enabled is not None:
        with pytest.raises(InvalidSchedule, match="It is True or False"):
            schedules.update("report", enabled=enabled)


def test_one_whose_task_has_other_defaults_since_a_deploy_ticks_on(store, now, monkeypatch):
    """It has another fingerprint then; workers of both versions would take each other's ticks back, or place none."""
    schedules.create("report", mark, misfire="all", **HOURLY)
    monkeypatch.setitem(registered, mark.module_path, mark.using(priority=7))
    for number in (16, 17, 18):
        now[0] = hour(number)
        beat(store)
    assert placed() == [hour(16), hour(17), hour(18), hour(19)]
    assert cancelled() == {}


def test_a_task_whose_messages_are_in_another_database_is_refused(store, now, monkeypatch):
    monkeypatch.setattr(Definition, "store", SimpleNamespace(alias="elsewhere"))
    with pytest.raises(InvalidSchedule, match="are in the database 'elsewhere'"):
        schedules.create("report", mark, **HOURLY)


def test_a_schedule_that_fails_keeps_no_other_one_from_ticking(store, now, monkeypatch, caplog):
    """Also if the database refuses what it would write, which is no outage."""
    for name in ("bad", "good"):
        schedules.create(name, mark, **HOURLY)
    tick = Definition.tick

    def refused(self, *args, **options):
        if self.name == "bad":
            raise IntegrityError("refused")
        return tick(self, *args, **options)

    monkeypatch.setattr(Definition, "tick", refused)
    now[0] = hour(16)
    beat(store)
    assert (placed("good"), placed("bad")) == ([hour(16), hour(17)], [hour(16)])
    assert "The ticks of schedule 'bad' could not be placed" in caplog.text


def test_deleted_it_is_gone_with_its_ticks_and_its_name_is_free(store, now):
    schedules.create("report", mark, **HOURLY)
    assert (schedules.delete("report"), schedules.delete("report")) == (True, False)
    assert (placed(), CronTick.objects.count()) == ([], 0)
    assert cancelled() == {hour(16): "Its schedule was deleted."}
    schedules.create("report", mark, **HOURLY)
    assert placed() == [hour(16)]


def test_run_now_offers_its_message_also_while_it_is_disabled(store, now):
    schedules.create("report", mark, enabled=False, **HOURLY)
    scheduled = schedules.run_now("report")
    assert Message.objects.get().pk == int(scheduled.id)


def test_schedules_of_the_settings_can_be_disabled_and_run_but_not_changed(store, now, settings):
    settings.DELAYEDQ = {"CRON": {"coded": {"task": mark.module_path, **HOURLY}}}
    assert schedules.disable("coded")
    beat_at(store, NOW, coded={"task": mark.module_path, **HOURLY})
    assert placed() == []
    assert schedules.enable("coded")
    assert placed() == [hour(16)]
    schedules.run_now("coded")
    for change in (lambda: schedules.update("coded", priority=1), lambda: schedules.delete("coded")):
        with pytest.raises(InvalidSchedule, match="is changed there"):
            change()


def test_an_unknown_name_is_told_with_the_nearest_one(store, now):
    schedules.create("report", mark, **HOURLY)
    told = r"There is no schedule 'reprot'; there are report\. Did you mean 'report'\?"
    for deed in (schedules.update, schedules.disable, schedules.enable, schedules.run_now, schedules.get):
        with pytest.raises(InvalidSchedule, match=told):
            deed("reprot")


def test_a_worker_without_the_task_leaves_it_to_others_and_says_so_once(store, now, caplog):
    schedules.create("report", mark, **HOURLY)
    CronSchedule.objects.update(definition='{"task": "elsewhere.run", "cron": "0 * * * *"}')
    now[0] = hour(17)
    beats = Beats(store, {})
    beats.beat()
    beats.beat()
    assert caplog.text.count("No task is registered as 'elsewhere.run'") == 1
    assert CronSchedule.objects.get().next_at == hour(16)


# Jitter, start, end, max_runs


def test_jitter_puts_each_tick_off_by_a_share_of_it(store, now):
    for number in range(20):
        schedules.create(f"report {number}", mark, jitter=timedelta(minutes=10), **HOURLY)
    delays = [message.scheduled_at - nominal(message) for message in Message.objects.all()]
    assert all(timedelta() <= delay < timedelta(minutes=10) for delay in delays)
    assert len(set(delays)) > 15


def test_a_tick_that_jitter_puts_off_is_not_missed_meanwhile(store, now):
    schedules.create("report", mark, jitter=timedelta(minutes=10), misfire="skip", **HOURLY)
    due = Message.objects.get().scheduled_at
    now[0] = due - timedelta(seconds=1)
    beat(store)
    assert due in Message.objects.values_list("scheduled_at", flat=True)


def test_it_ticks_between_start_and_end(store, now):
    schedules.create("report", mark, misfire="all", start=hour(18), end=hour(19), **HOURLY)
    assert placed() == [hour(18)]
    for number in (18, 19, 20):
        now[0] = hour(number)
        beat(store)
    assert placed() == [hour(18), hour(19)]
    assert CronSchedule.objects.get().next_at in {None, hour(18)}


def test_it_ticks_at_most_max_runs_times(store, now):
    schedules.create("report", mark, max_runs=3, misfire="all", **HOURLY)
    for number in range(16, 24):
        now[0] = hour(number)
        beat(store)
    assert placed() == [hour(16), hour(17), hour(18)]


def test_a_one_off_ticks_once_and_not_again_when_it_is_enabled_again(store, now):
    schedules.create("once", mark, every=timedelta(days=1), anchor=hour(18), start=hour(18), max_runs=1, args=["x"])
    now[0] = hour(18)
    assert run_due(store, now[0]) == [hour(18)]
    beat(store)
    schedules.disable("once")
    schedules.enable("once")
    assert placed() == []
