"""A lake and its books without Spark: batches of history that are published and deleted, as the archive leaves them."""

from __future__ import annotations

from delayedq.models import FinishedMessage
from delayedq.pipeline.books import next_number, source_of
from delayedq.pipeline.models import ArchiveBatch, ArchiveState
from tests.pipeline.given import DAY, NOW
from tests.pipeline.lake.files import publish
from tests.router import ChosenDatabase


def as_archived(message):
    """A row of the history as the lake has it."""
    columns = {field.attname: getattr(message, field.attname) for field in FinishedMessage._meta.concrete_fields}
    outcome = columns.pop("outcome")
    del columns["error"], columns["fingerprint"]  # they follow from `errors`
    own = {"state": outcome, "schema_version": 2, "day": message.finished_at.date()}
    return columns | own


def archive(table, messages, **changes):
    """Publish these rows of the history and delete them; `changes` are those of the books."""
    number, rows = next_number(), [as_archived(message) for message in messages]
    assert publish(table, number, rows, source_of(ChosenDatabase.alias))
    book(table, number, **{"row_count": len(rows)} | changes)
    FinishedMessage.objects.filter(id__in=[message.pk for message in messages]).delete()
    return number


def book(table, number, **changes):
    done = {"state": ArchiveState.DELETED, "is_open": None, "deleted_at": NOW}
    ArchiveBatch.objects.create(
        name=f"batch-{number}", number=number, lake=table.path, cutoff=NOW + DAY, planned_at=NOW, **done | changes
    )
