"""What the core asks of the archive: messages by id or key, found by `delayedq.history.find`, and its open batch."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.db import router
from django.db.models import Q
from django.utils.translation import gettext as _

from delayedq.conf import get_settings
from delayedq.core.fingerprints import last_error
from delayedq.core.lifecycle import FinalOutcome
from delayedq.exceptions import LakeUnusable
from delayedq.extras import is_about_an_extra, told
from delayedq.models import FinishedMessage
from delayedq.operations.archived import Found, Trouble
from delayedq.store import default_store, store_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from delayedq.pipeline.models import ArchiveBatch

#: An archive takes minutes, and one that was killed is continued by the next.
LEFT_OVER = timedelta(hours=6)
#: Of each kind, so many are told.
MOST = 5
#: What the lake knows of a row, and the history table does not.
_OF_THE_LAKE = {"state", "schema_version", "source", "batch", "day"}


def find_in_lake(alias: str, id_: int | None, key: str | None) -> Found:
    """Messages of the lake, if there is one, and it is of this database. Raises LakeUnusable."""
    if not _has_lake(alias):
        return Found([])
    with _libraries():
        from delayedq.pipeline.history import find  # what it needs is an extra
    found = find(id=id_, key=key)
    return Found([as_ended(row) for row in found.rows], found.complete)


def look(alias: str) -> None:
    """Open the table of the lake, if there should be one. Raises LakeUnusable."""
    if not _has_lake(alias):
        return
    with _libraries():
        from delayedq.pipeline import books  # what it needs is an extra
        from delayedq.pipeline.lake.table import LakeTable
    table = LakeTable(str(get_settings().LAKE))
    if books.is_there(table):
        table.snapshot()


def _has_lake(alias: str) -> bool:
    return get_settings().LAKE is not None and alias == default_store().alias


@contextmanager
def _libraries() -> Iterator[None]:
    """Raises LakeUnusable if what the block imports is missing, or too old."""
    try:
        yield
    except ImportError as error:
        if not is_about_an_extra(error):
            raise
        raise LakeUnusable(told(error, "lake")) from None


def open_since(alias: str) -> datetime | None:
    """Since when a batch of this database has been open; None if none is. Raises django.db.Error."""
    from delayedq.pipeline.models import ArchiveBatch  # apps are loaded by now

    if router.db_for_read(ArchiveBatch) != alias:
        return None
    return ArchiveBatch.objects.filter(is_open__in=[True]).values_list("planned_at", flat=True).first()


def troubles(alias: str) -> list[Trouble]:
    """What is wrong by the books alone: no lake is opened. Raises django.db.Error."""
    from delayedq.pipeline.models import ArchiveBatch  # apps are loaded by now

    if router.db_for_read(ArchiveBatch) != alias:
        return []
    now = store_for(alias).now()
    old = Q(is_open__in=[True], planned_at__lt=now - LEFT_OVER)
    batches = list(ArchiveBatch.objects.filter(old | Q(checksums__lost__gt=0)).order_by("number")[: 2 * MOST])
    return [*_left_over(batches, now), *_lost_rows(batches), *_found_by_check(), *_elsewhere()]


def _left_over(batches: Sequence[ArchiveBatch], now: datetime) -> Iterator[Trouble]:
    """A batch that an archive has begun, and that none continues."""
    for batch in batches:
        if batch.is_open and (batch.leased_until is None or batch.leased_until <= now):
            about = {
                "name": batch.name,
                "since": f"{batch.planned_at:%Y-%m-%d %H:%M}",
                "state": batch.state,
                "lake": batch.lake,
            }
            said = _(
                "The archive batch %(name)s is open since %(since)s (%(state)s), and nobody works on it: its rows stay"
                " in the history. The lake is %(lake)s."
            )
            yield Trouble("open archive batch", said % about, batch.planned_at, "manage.py run_pipeline archive")


def _lost_rows(batches: Sequence[ArchiveBatch]) -> Iterator[Trouble]:
    """Rows of damaged files that were given up when the table no longer had them."""
    for batch in batches:
        if lost := (batch.checksums or {}).get("lost"):
            said = _("%(rows)s rows of the archive batch %(name)s are in neither the table nor the lake.")
            cure = _("Their files were damaged. Restore the lake, or these files of it, from a backup.")
            yield Trouble("lost rows", said % {"rows": lost, "name": batch.name}, batch.deleted_at, cure)


def _found_by_check() -> Iterator[Trouble]:
    """What the last `check` of each lake has found."""
    from delayedq.pipeline.models import LakeCheck

    for check in LakeCheck.objects.filter(faults__gt=0).order_by("checked_at")[:MOST]:
        about = {"lake": check.lake, "faults": check.faults, "first": check.first}
        said = _("The last check of the lake %(lake)s found %(faults)s faults: %(first)s") % about
        yield Trouble("lake faults", said, check.checked_at, "manage.py run_pipeline check")


def _elsewhere() -> Iterator[Trouble]:
    """History that is in another lake than the one that is set."""
    from delayedq.pipeline.models import ArchiveBatch

    if (lake := get_settings().LAKE) is None:
        return
    path = lake if "://" in lake else str(Path(lake).absolute())
    moved = ArchiveBatch.objects.filter(state="deleted", row_count__gt=0)
    there = list(moved.exclude(lake=path).order_by("lake").values_list("lake", flat=True).distinct()[:MOST])
    if there and not moved.filter(lake=path).exists():
        about = {"lakes": ", ".join(there), "lake": path}
        said = _("History is in the lake %(lakes)s, and DELAYEDQ['LAKE'] is %(lake)s: it is not found there.") % about
        yield Trouble("moved lake", said, None, _("Set DELAYEDQ['LAKE'] to where the lake is now."))


def as_ended(row: dict[str, Any]) -> FinishedMessage:
    """A row of the lake as a row of the history table, which it is not.

    The line and the fingerprint of the last error are not in the lake: they follow from `errors`.
    """
    columns = {name: value for name, value in row.items() if name not in _OF_THE_LAKE}
    derived = last_error(row["errors"])._asdict() if row["state"] == FinalOutcome.FAILED else {}
    return FinishedMessage(**columns, **derived, outcome=row["state"])
