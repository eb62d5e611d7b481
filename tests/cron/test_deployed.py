"""Two versions of the settings side by side, workers with other settings, and what has no definition any more."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from delayedq import signals
from delayedq.cron import beat as beating
from delayedq.cron.beat import PRESENCE, Beats
from delayedq.cron.definitions import read
from delayedq.models import CronSchedule, CronSettings, FinishedMessage, Message
from tests.cron.given import (
    HOURLY,
    MINUTELY,
    NOW,
    at,
    beat_after_removal,
    beat_at,
    cancelled,
    disable,
    enable,
    nominal,
    placed,
    ran,
    run_due,
)
from tests.store.given import undone

ALL = {**MINUTELY, "misfire": "all"}
CHANGED = {**ALL, "args": ["other"]}
GRACE = timedelta(minutes=10)


def process(store, **schedules):
    """A worker process with these settings, which beats as often as a test wants."""
    return Beats(store, {name: read(name, given) for name, given in schedules.items()})


def minutes(first, last):
    return [at(minutes=minute) for minute in range(first, last)]


def work(store, until, *processes, since=NOW):
    """Beats about once a minute, with what is due run in between."""
    now = since
    while now <= until:
        for number, one in enumerate(processes):
            one.beat(now + timedelta(seconds=7 * number))
        run_due(store, now)
        now += timedelta(seconds=50)


def test_a_worker_with_other_settings_takes_nothing_away(store):
    """An empty CRON beside one that ticks: 17 of its ticks were lost in 4 seconds, and 292 cancelled."""
    work(store, at(minutes=30), process(store, own=ALL), process(store), process(store, other=ALL))

    assert cancelled() == {}
    assert ran() == sorted([*minutes(0, 30), *minutes(0, 30)])


def test_two_versions_side_by_side_for_an_hour_lose_nothing_that_either_has(store):
    old = process(store, same=ALL, changed=ALL, removed=ALL)
    work(store, at(), old)
    new = process(store, same=ALL, changed=CHANGED, added=ALL)
    work(store, at(hours=1), old, new, since=at(seconds=20))

    for name, first in (("same", 0), ("changed", 0), ("removed", 0), ("added", 1)):
        assert set(run_of(name)) >= set(minutes(first, 60)), name
    assert len(ran()) == len(run_of("same")) * 3 + len(run_of("added"))


def run_of(name):
    return sorted(nominal(row) for row in FinishedMessage.objects.succeeded() if row.key.startswith(f"{name}/"))


def test_the_newer_definition_is_in_effect_and_the_older_one_leaves_it_alone(store, caplog):
    old, new = process(store, own=ALL), process(store, own=CHANGED)
    old.beat(NOW)
    new.beat(NOW + timedelta(seconds=10))
    first = len(cancelled())
    with caplog.at_level(logging.ERROR, "delayedq"):
        for seconds in range(20, 600, 20):
            (old if seconds % 40 else new).beat(NOW + timedelta(seconds=seconds))

    assert len(cancelled()) == first, "they do not take each other's ticks back again and again"
    assert CronSchedule.objects.get().config_hash == read("own", CHANGED).config_hash
    assert caplog.text.count("workers with newer settings define it otherwise") == 1


def beats(one, first, last):
    """About once a minute, and at these two moments."""
    while first < last:
        one.beat(first)
        first += timedelta(seconds=55)
    one.beat(last)


def test_a_version_that_is_deployed_again_decides_after_the_grace_period(store):
    old, new = process(store, own=ALL), process(store, own=CHANGED)
    old.beat(NOW)
    new.beat(at())
    beats(old, at(seconds=30), at(minutes=9, seconds=59))
    assert CronSchedule.objects.get().config_hash == read("own", CHANGED).config_hash
    old.beat(at(minutes=10, seconds=1))
    assert CronSchedule.objects.get().config_hash == read("own", ALL).config_hash


def test_at_a_rollback_no_tick_is_lost_between_the_two_definitions(store):
    """The ticks that the newer version has placed end before the older one sees that it is gone."""
    often = {**ALL, "cron": "* * * * * */5"}
    old, new = process(store, own=often), process(store, own={**often, "args": ["other"]})
    old.beat(NOW)
    beats(new, at(), at(minutes=2))
    now = at(minutes=2, seconds=10)
    while now < at(minutes=20):
        old.beat(now)
        run_due(store, now)
        now += timedelta(seconds=50)

    assert CronSchedule.objects.get().config_hash == read("own", often).config_hash
    assert ran() == [at(seconds=5 * number) for number in range(-5, len(ran()) - 5)]


def test_a_change_after_an_outage_says_what_nobody_placed(store, caplog):
    beat_at(store, own=HOURLY)
    beat_at(store, at(hours=5, minutes=20), own={**HOURLY, "args": ["other"]})

    assert "Its schedule was changed while no worker was there" in caplog.text


def test_a_schedule_is_retired_when_nobody_has_it_for_the_grace_period(store, caplog):
    process(store, own=ALL, other=HOURLY).beat(NOW)
    rest = process(store, other=HOURLY)
    beats(rest, NOW, NOW + GRACE - timedelta(seconds=1))
    assert placed("own")
    with caplog.at_level(logging.INFO, "delayedq"):
        rest.beat(NOW + GRACE + timedelta(seconds=1))
    rest.beat(NOW + GRACE + timedelta(seconds=2))

    assert placed("own") == [at(minutes=9)], "which became due just now"
    assert CronSchedule.objects.get(name="own").retired_at is not None
    assert "Schedule 'own' was retired; 0 of its ticks were taken back" in caplog.text
    assert CronSettings.objects.exclude(digest=PRESENCE).count() == 1


def test_how_many_ticks_a_retired_schedule_lost_is_told(store, caplog):
    process(store, own={**HOURLY, "cron": "0 12 * * *"}).beat(NOW)
    rest = process(store)
    with caplog.at_level(logging.INFO, "delayedq"):
        beats(rest, NOW, NOW + timedelta(seconds=601))

    assert "Schedule 'own' was retired; 1 of its ticks were taken back" in caplog.text


def test_after_an_outage_of_all_a_worker_without_the_schedule_that_starts_first_retires_nothing(store):
    process(store, own={**HOURLY, "misfire": "all"}).beat(NOW)
    back = at(hours=5, minutes=20)
    process(store).beat(back)
    process(store, own={**HOURLY, "misfire": "all"}).beat(back + timedelta(seconds=5))

    assert run_due(store, back + timedelta(seconds=5)) == [at(hour) for hour in range(6)]


@pytest.mark.parametrize("first", [0, 1], ids=["the older is back first", "the newer is back first"])
def test_after_a_database_outage_the_older_version_takes_nothing_from_the_newer(store, first):
    """None of them could have a beat for longer than the grace period, so neither saw that the other is gone."""
    old, new = process(store, changed=ALL, removed=ALL), process(store, changed=CHANGED, added=ALL)
    old.beat(NOW)
    new.beat(NOW + timedelta(seconds=5))
    back = at(hours=1)
    for number, one in enumerate([(old, new), (new, old)][first]):
        one.beat(back + timedelta(seconds=20 * number))

    assert CronSchedule.objects.get(name="changed").config_hash == read("changed", CHANGED).config_hash
    run_due(store, back + timedelta(seconds=20))
    for name in ("changed", "removed", "added"):
        assert run_of(name) == minutes(0, 61), name


def test_processes_that_live_for_less_than_the_grace_period_retire_too(store):
    """As with --max-tasks: what one of them has seen, the next one knows."""
    process(store, own=ALL, other=HOURLY).beat(NOW)
    for minute in range(12):
        process(store, other=HOURLY).beat(at(minutes=minute))

    assert CronSchedule.objects.get(name="own").retired_at is not None


def test_many_schedules_are_retired_together(store, connection):
    process(store, **{f"own {number}": HOURLY for number in range(200)}).beat(NOW)
    rest = process(store)
    beats(rest, NOW, NOW + GRACE - timedelta(seconds=1))
    sent = []

    def counted(execute, sql, *about):
        sent.append(sql)
        return execute(sql, *about)

    with connection.execute_wrapper(counted):
        rest.beat(NOW + GRACE + timedelta(seconds=1))
    assert len([sql for sql in sent if "cronsettings" in sql]) < 10
    assert CronSchedule.objects.filter(retired_at=None).count() == 0


def test_one_that_was_enabled_by_a_process_with_other_settings_ticks_on(store):
    """A web server that is deployed later than the workers: theirs stays installed."""
    new = process(store, own=CHANGED)
    beats(new, NOW, at(minutes=2))
    disable(store, "own", at(minutes=2))
    enable(store, read("own", ALL), at(minutes=2, seconds=10))
    beats(new, at(minutes=2, seconds=20), at(minutes=5))

    assert placed("own")[-1] > at(minutes=5)
    assert all("other" in message.payload for message in Message.objects.all())


def test_one_that_changed_while_it_was_disabled_is_installed_when_it_is_enabled(store):
    process(store, own=ALL).beat(NOW)
    disable(store, "own", NOW)
    new = process(store, own=CHANGED)
    new.beat(at())
    new.beat(at(seconds=1))
    enable(store, read("own", ALL), at(seconds=10))
    beats(new, at(seconds=20), at(minutes=5))

    assert CronSchedule.objects.get().config_hash == read("own", CHANGED).config_hash
    assert placed("own")[-1] > at(minutes=5)


def test_ticks_that_were_run_before_their_time_are_not_placed_again(store):
    """An operator put one forward, and it has begun: the rows of such ticks stay when the others are taken back."""
    for change in (True, False):
        beat_at(store, own=ALL)
        Message.objects.filter(scheduled_at=at(minutes=5)).update(scheduled_at=NOW)
        run_due(store, NOW)
        if change:
            beat_at(store, NOW, own={**HOURLY, "cron": "0 12 * * *"})
        else:
            beat_after_removal(store, NOW + timedelta(seconds=5))
        beat_at(store, at(minutes=2), own=ALL, **{f"new {bool(change)}": HOURLY})
        beat_at(store, at(minutes=7), own=ALL, **{f"new {bool(change)}": HOURLY})
        assert at(minutes=8) in placed("own")


def test_one_that_comes_back_while_it_is_being_retired_stays(store, monkeypatch):
    own, rest = process(store, own=ALL), process(store)
    own.beat(NOW)
    beats(rest, NOW, NOW + GRACE - timedelta(seconds=1))
    back = NOW + GRACE + timedelta(seconds=5)
    stop = beating.stop

    def late(*args, **options):
        own.beat(back)
        return stop(*args, **options)

    monkeypatch.setattr(beating, "stop", late)
    rest.beat(back)

    assert CronSchedule.objects.get(name="own").retired_at is None
    assert placed("own")


def test_a_change_is_told_with_the_number_of_ticks_that_it_took_back(store, caplog):
    beat_at(store, own=ALL)
    with caplog.at_level(logging.INFO, "delayedq"):
        beat_at(store, own=CHANGED)

    assert "Schedule 'own' was changed; 10 of its ticks were taken back" in caplog.text


@pytest.mark.parametrize("name", ["own", "other"])
def test_what_the_settings_of_the_newest_disable_is_disabled_for_all(store, name):
    old = process(store, own=ALL, other=ALL)
    old.beat(NOW)
    process(store, **{"own": ALL, "other": ALL, name: {**ALL, "enabled": False}}).beat(NOW)
    old.beat(NOW + timedelta(seconds=5))

    assert placed(name) == []
    assert len(placed()) == 10


# Signals


@pytest.fixture
def received():
    """What the signals of cron tell, in order."""
    told = []

    def receiver(sender, signal, **about):
        told.append((NAMES[signal], sender, {key: value for key, value in about.items() if key != "message_id"}))

    for signal in NAMES:
        signal.connect(receiver)
    yield told
    for signal in NAMES:
        signal.disconnect(receiver)


NAMES = {signals.tick_placed: "placed", signals.tick_missed: "missed", signals.schedule_changed: "changed"}


def test_signals_tell_of_ticks_and_changes_after_commit(store, alias, received):
    hourly = {**HOURLY, "misfire": "skip"}
    with undone(alias):
        beat_at(store, own=hourly)
    assert received == []

    beat_at(store, own=hourly)
    beat_at(store, at(hours=5, minutes=20), own=hourly)
    assert received == [
        ("changed", "own", {"change": "installed", "taken_back": 0}),
        ("placed", "own", {"nominal_at": at()}),
        ("missed", "own", told_missed(at(1), at(5), "No worker was there to place it")),
        ("missed", "own", told_missed(at(), at(), "It was missed")),
        ("placed", "own", {"nominal_at": at(6)}),
    ]


def test_of_missed_ticks_the_one_that_runs_is_not_told(store, received):
    beat_at(store, own=HOURLY)
    del received[:]
    beat_at(store, at(hours=5, minutes=20), own=HOURLY)

    assert received[0] == (
        "missed",
        "own",
        {"nominal_at": at(1), "until": at(4), "reason": "No worker was there to place it (misfire: once)."},
    )


def told_missed(first, last, reason):
    return {"nominal_at": first, "until": last, "reason": f"{reason} (misfire: skip)."}
