"""`ARCHIVE_SENSITIVE`: what the lake holds of sensitive tasks, and that it is not sent again."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command

from delayedq.core.masking import MASKED
from delayedq.exceptions import InvalidMessage
from delayedq.models import FinishedMessage, Message
from delayedq.operations.archived import send_again
from delayedq.pipeline.commands.archive import Archiving
from delayedq.pipeline.models import ArchiveState
from tests.app.tasks import echo, pay
from tests.pipeline.given import DAY, NOW, finished

ONE_DATABASE = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)


@pytest.fixture
def two():
    """A message of a sensitive task, and one of another; both failed."""
    for id_, task in ((1, pay), (2, echo)):
        finished(id_, NOW - DAY, outcome="failed", kind=task.module_path, result='"r"').save()


def test_what_is_sensitive_is_masked_in_the_lake_and_the_rest_is_plain(archiving, lake, settings, two):
    settings.DELAYEDQ = {"ARCHIVE_SENSITIVE": "masked"}

    [done] = archiving().run(NOW)

    assert done.deleted == 2
    rows = {row.id: row for row in lake.history().collect()}
    assert (rows[1].payload, rows[1].result) == (MASKED, MASKED)
    assert (rows[2].payload, rows[2].result) == ('{"args":[2]}', '"r"')


@ONE_DATABASE
def test_without_the_setting_nothing_is_masked(archiving, lake, two):
    list(archiving().run(NOW))
    assert {row.payload for row in lake.history().collect()} == {'{"args":[1]}', '{"args":[2]}'}


@ONE_DATABASE
@pytest.mark.parametrize("column", ["payload", "result"])
def test_a_text_like_the_mask_is_compared_as_any_other(archiving, lake, two, column):
    FinishedMessage.objects.update(**{column: MASKED})

    def change(batch):
        if batch.state == ArchiveState.VERIFIED and batch.number == 1:
            FinishedMessage.objects.filter(id=2).update(**{column: '"changed"'})

    first, second = archiving(tell=change).run(NOW)

    assert (first.deleted, first.some, second.replaced) == (1, (2,), 1)
    assert {row.id: row[column] for row in lake.history().collect()} == {1: MASKED, 2: '"changed"'}


@ONE_DATABASE
def test_what_was_verified_as_masked_is_deleted_after_the_setting_has_changed(archiving, lake, settings, two):
    settings.DELAYEDQ = {"ARCHIVE_SENSITIVE": "masked"}

    def change(batch):
        if batch.state == ArchiveState.VERIFIED:
            settings.DELAYEDQ = {"ARCHIVE_SENSITIVE": "plain"}

    [done] = archiving(tell=change).run(NOW)

    assert (done.deleted, done.changed) == (2, 0)


@ONE_DATABASE
def test_what_was_masked_is_not_sent_again(spark, store, address, tmp_path, settings, two):
    settings.DELAYEDQ = {"ARCHIVE_SENSITIVE": "masked"}
    path = str(tmp_path / "lake")
    list(Archiving(spark, store, address, path, here=address).run(NOW))
    replay = ("run_pipeline", "replay", "--lake", path, "--since", str((NOW - DAY).date()), "--send")

    with pytest.raises(CommandError, match=r"tests.app.tasks.pay were masked when they were archived"):
        call_command(*replay)
    assert not Message.objects.exists()
    call_command(*replay, "--task", echo.module_path)
    assert Message.objects.get().kind == echo.module_path


def test_a_masked_message_is_not_sent_again_by_hand(store):
    with pytest.raises(InvalidMessage, match="were masked when it was archived"):
        send_again(store, FinishedMessage(id=7, kind=pay.module_path, payload=MASKED))
    assert not Message.objects.exists()
