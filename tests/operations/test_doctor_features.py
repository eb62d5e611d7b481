"""What the doctor says of schedules and archives."""

from __future__ import annotations

from datetime import timedelta

import pytest

from delayedq.cron.beat import Deployed
from delayedq.cron.definitions import definitions
from delayedq.models import CronSchedule, CronTick
from delayedq.operations.doctor import diagnose
from delayedq.operations.rules import Rule
from delayedq.operations.verdict import verdict
from delayedq.pipeline.models import ArchiveBatch, LakeCheck, StepRun
from delayedq.pipeline.scheduled import key_of
from tests.app import tasks
from tests.pipeline.given import finished
from tests.store.given import message

pytestmark = pytest.mark.usefixtures("no_statistics_of_other_tests")
NIGHTLY = {"task": tasks.nothing.module_path, "cron": "0 3 * * *"}


def deployed(store, settings, cron):
    """A worker with these settings has a beat."""
    settings.DELAYEDQ = {"CRON": cron}
    Deployed(store, definitions()).heartbeat(store.now())


def test_schedules_that_differ_between_workers_are_named(store, settings):
    deployed(store, settings, {"same": NIGHTLY, "moved": NIGHTLY})
    assert diagnose(store) == []

    deployed(store, settings, {"same": NIGHTLY, "moved": NIGHTLY | {"cron": "0 4 * * *"}, "new": NIGHTLY})
    (found,) = diagnose(store)

    assert found.condition == "schedules differ"
    assert found.sentence.endswith("moved, new.")


@pytest.mark.parametrize(
    ("hours", "leased", "found"), [(7, -1, True), (7, None, True), (7, 1, False), (1, None, False), (25, 1, True)]
)
def test_an_archive_batch_that_nobody_works_on_or_that_does_not_end_is_told(store, hours, leased, found):
    now = store.now()
    until = None if leased is None else now + timedelta(hours=leased)
    ArchiveBatch.objects.using(store.alias).create(
        name="b1", number=1, lake="/lake", cutoff=now, planned_at=now - timedelta(hours=hours), leased_until=until
    )

    assert [one.condition for one in diagnose(store)] == ["open archive batch"] * found


def test_a_lake_that_is_set_and_can_not_be_read(store, settings, tmp_path):
    (tmp_path / "notes.txt").write_text("of somebody else")
    settings.DELAYEDQ = {"LAKE": str(tmp_path)}
    (found,) = diagnose(store)

    assert (found.condition, found.sentence.startswith("The lake can't be read: ")) == ("lake", True)
    assert "LAKE" in found.cure


def scheduled(*arguments, **more):
    """An archive each day at 03:00 UTC."""
    schedule = {"task": "delayedq.pipeline.tasks.schedule_step", "kwargs": {"arguments": list(arguments)}}
    return {"CRON": {"nightly": schedule | {"cron": "0 3 * * *", "timezone": "UTC"} | more}}


@pytest.mark.parametrize(
    ("days", "moved", "arguments", "more", "found"),
    [
        (11, None, ["archive"], {}, True),
        (11, 4, ["archive"], {}, True),
        (11, 1, ["archive"], {}, False),  # it does its work
        (8, None, ["archive"], {}, False),  # one tick may be late
        (11, None, ["compact"], {}, False),
        (11, None, ["archive", "--older-than", "30d"], {}, False),
        (11, None, ["archive"], {"enabled": False}, False),
    ],
)
def test_a_scheduled_archive_that_moves_nothing_is_told(store, settings, days, moved, arguments, more, found):
    settings.DELAYEDQ = scheduled(*arguments, **more)
    now = store.now()
    finished(1, now - timedelta(days=days)).save(using=store.alias)
    if moved is not None:
        batch_of(store, state="deleted", deleted_at=now - timedelta(days=moved))

    troubles = [one for one in diagnose(store) if one.condition == "archive behind"]

    assert len(troubles) == found
    assert all("nightly" in one.sentence for one in troubles)


def test_an_archive_that_somebody_has_disabled_is_not_behind(store, settings):
    settings.DELAYEDQ = scheduled("archive")
    now = store.now()
    finished(1, now - timedelta(days=11)).save(using=store.alias)
    CronSchedule.objects.using(store.alias).create(name="nightly", covered_until=now, disabled_at=now)
    assert [one for one in diagnose(store) if one.condition == "archive behind"] == []


def in_database(store, *arguments):
    """The schedule `nightly` of the database."""
    from delayedq import schedules

    given = scheduled(*arguments)["CRON"]["nightly"]
    return schedules.create("nightly", **given)


def test_an_archive_that_is_scheduled_in_the_database_and_moves_nothing_is_told(store):
    in_database(store, "archive")
    finished(1, store.now() - timedelta(days=11)).save(using=store.alias)

    assert [one.condition for one in diagnose(store) if one.condition.endswith("behind")] == ["archive behind"]


def test_what_is_behind_is_told_beside_what_else_is_wrong(store):
    in_database(store, "archive")
    now = store.now()
    finished(1, now - timedelta(days=11)).save(using=store.alias)
    batch_of(store, state="deleted", deleted_at=now - timedelta(days=20), checksums={"lost": 7})
    assert {one.condition for one in diagnose(store)} >= {"lost rows", "archive behind"}
    batch_of(store, state="written", planned_at=now - timedelta(days=9), is_open=True, number=2, name="b2")
    told = [one.condition for one in diagnose(store)]
    assert "open archive batch" in told
    assert "archive behind" not in told  # it is why


@pytest.mark.parametrize("arguments", [["compact"], ["report", "--output", "weekly"], ["archive"]], ids=str)
@pytest.mark.parametrize("place", ["settings", "database"])
@pytest.mark.parametrize(
    ("ticks", "last", "disabled", "found"),
    [
        ([3, 2, 1], None, False, True),  # it never ran
        ([3, 2, 1], 4, False, True),
        ([3, 2, 1], 2.5, False, True),
        ([3, 2, 1], 1.5, False, False),  # one tick may be late
        ([2, 0.1], None, False, False),  # the second one has some hours
        ([1], None, False, False),
        ([], 90, False, False),  # no tick was placed meanwhile: it was disabled
        ([3, 2, 1], None, True, False),
    ],
)
def test_a_scheduled_step_that_nobody_runs_is_told(store, settings, arguments, place, ticks, last, disabled, found):
    now = store.now()
    if place == "settings":
        settings.DELAYEDQ = scheduled(*arguments)
        CronSchedule.objects.using(store.alias).create(name="nightly", covered_until=now)
    else:
        in_database(store, *arguments)
    row = CronSchedule.objects.using(store.alias).get()
    CronTick.objects.using(store.alias).filter(schedule=row).delete()
    for days in ticks:
        CronTick.objects.using(store.alias).create(schedule=row, nominal_at=now - timedelta(days=days))
    if last is not None:
        at = now - timedelta(days=last)
        StepRun.objects.create(step=key_of(arguments), message_id=7, began_at=at, ended_at=at, succeeded=True)
    if disabled:
        CronSchedule.objects.using(store.alias).update(disabled_at=now)

    troubles = [one for one in diagnose(store) if one.condition.endswith("behind")]

    assert [one.condition for one in troubles] == ["step behind"] * found
    assert all(arguments[0] in one.sentence and "nightly" in one.sentence for one in troubles)


@pytest.mark.parametrize(
    ("run", "is_live", "more", "found"),
    [
        ({"succeeded": False}, False, {}, True),
        ({"succeeded": False}, True, {}, False),  # it will be tried again
        ({"succeeded": False, "ended_at": None}, False, {}, True),  # it was killed
        ({"succeeded": True}, False, {}, False),
        ({"succeeded": False}, False, {"enabled": False}, False),
    ],
)
def test_a_scheduled_step_that_has_failed_is_told(store, settings, run, is_live, more, found):
    settings.DELAYEDQ = scheduled("archive", **more)
    now = store.now()
    StepRun.objects.create(**{"step": "archive", "message_id": 7, "began_at": now, "ended_at": now} | run)
    if is_live:
        again = store.offer(message("any key", kind="tests.app.tasks.echo", scheduled_at=now + timedelta(hours=1)))
        StepRun.objects.update(message_id=again.id)  # whatever task ran it

    troubles = [one for one in diagnose(store) if one.condition == "failed step"]

    assert len(troubles) == found
    assert all("archive" in one.sentence and "nightly" in one.sentence for one in troubles)


def test_a_report_that_has_failed_is_told_though_another_one_has_succeeded_since(store, settings):
    daily, weekly = (["report", "--output", one] for one in ("daily", "weekly"))
    nightly = scheduled(*daily)["CRON"]["nightly"]
    settings.DELAYEDQ = {"CRON": {"nightly": nightly, "weekly": nightly | {"kwargs": {"arguments": weekly}}}}
    now = store.now()
    for arguments, succeeded, hours in ((weekly, False, 2), (daily, True, 1)):
        at = now - timedelta(hours=hours)
        StepRun.objects.create(step=key_of(arguments), message_id=hours, began_at=at, ended_at=at, succeeded=succeeded)

    [told] = [one for one in diagnose(store) if one.condition == "failed step"]

    assert "which the schedule weekly starts" in told.sentence


@pytest.mark.parametrize(("outcome", "found"), [("succeeded", 0), ("failed", 1)])
def test_of_a_run_whose_end_was_not_recorded_its_message_tells(store, settings, outcome, found):
    settings.DELAYEDQ = scheduled("archive")
    now = store.now()
    finished(7, now, outcome=outcome).save(using=store.alias)
    StepRun.objects.create(step="archive", message_id=7, began_at=now, succeeded=False)
    assert len([one for one in diagnose(store) if one.condition == "failed step"]) == found


def batch_of(store, **given):
    now = store.now()
    about = {"name": "b1", "number": 1, "lake": "/lake", "cutoff": now, "planned_at": now, "is_open": None}
    return ArchiveBatch.objects.using(store.alias).create(**about | given)


def test_rows_that_an_archive_has_lost_are_told_by_the_doctor_and_the_verdict(store):
    batch_of(store, state="deleted", deleted_at=store.now(), checksums={"lost": 7})

    (found,) = diagnose(store)
    (finding,) = verdict(store)

    assert found.condition == finding.subject == "lost rows"
    assert found.sentence == finding.sentence == "7 rows of the archive batch b1 are in neither the table nor the lake."
    assert finding.rule is Rule.ARCHIVE


def test_what_the_last_check_of_a_lake_found_is_told_until_one_finds_nothing(store, settings):
    settings.DELAYEDQ = {"LAKE": "/lake"}
    check = LakeCheck.objects.using(store.alias).create(
        lake="/lake", checked_at=store.now(), faults=2, first="part.parquet is missing, with 3 rows"
    )
    (found,) = (one for one in diagnose(store) if one.condition != "lake")  # which is that deltalake is not installed
    assert (found.condition, "part.parquet is missing" in found.sentence) == ("lake faults", True)
    assert [one.subject for one in verdict(store)] == ["lake faults"]

    check.faults = 0
    check.save(using=store.alias)
    assert ({one.condition for one in diagnose(store)} - {"lake"}, verdict(store)) == (set(), [])


@pytest.mark.parametrize(("lake", "found"), [("/other", ["moved lake"]), ("/lake", []), (None, [])])
def test_history_in_another_lake_than_the_one_that_is_set(store, settings, lake, found):
    settings.DELAYEDQ = {"LAKE": lake}
    batch_of(store, state="deleted", deleted_at=store.now(), row_count=5)

    assert [one.subject for one in verdict(store)] == found
