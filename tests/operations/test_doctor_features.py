"""What the doctor says of schedules and archives."""

from __future__ import annotations

from datetime import timedelta

import pytest

from delayedq.cron.definitions import definitions
from delayedq.cron.deployed import Deployed
from delayedq.operations.doctor import diagnose
from delayedq.pipeline.models import ArchiveBatch
from tests.app import tasks

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
    ("hours", "leased", "found"), [(7, -1, True), (7, None, True), (7, 1, False), (1, None, False)]
)
def test_an_archive_batch_that_nobody_works_on_is_left_over(store, hours, leased, found):
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
