"""Answer the core about the archive: messages by id or key, found by `delayedq.history.find`, and its open batch."""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db import router
from django.db.models import Q
from django.utils.translation import gettext as _

from delayedq.conf import get_settings
from delayedq.core.errors import last_error
from delayedq.core.lifecycle import FinalOutcome
from delayedq.exceptions import LakeUnusable
from delayedq.extras import is_about_an_extra, told
from delayedq.models import FinishedMessage
from delayedq.operations.archived import Found, Trouble
from delayedq.pipeline.lake.paths import absolute
from delayedq.pipeline.scheduled import LEFT_OVER, troubles_of_steps
from delayedq.store import default_store, store_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from delayedq.pipeline.models import ArchiveBatch

#: One that a process still works on after this long does not end by itself.
HANGING = timedelta(days=1)
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
    lake = absolute(set_) if (set_ := get_settings().LAKE) else None
    left_over, elsewhere = [*_left_over(batches, now)], [*_elsewhere(lake)]
    of_steps = troubles_of_steps(alias, now, is_archive_told=bool(left_over or elsewhere))
    return [*left_over, *_lost_rows(batches), *_found_by_check(lake), *elsewhere, *of_steps]


def _left_over(batches: Sequence[ArchiveBatch], now: datetime) -> Iterator[Trouble]:
    """A batch that an archive has begun, and that none continues, or that never ends."""
    for batch in batches:
        if not batch.is_open:
            continue
        about = {
            "name": batch.name,
            "since": f"{batch.planned_at:%Y-%m-%d %H:%M}",
            "state": batch.state,
            "lake": batch.lake,
        }
        if batch.leased_until is None or batch.leased_until <= now:
            said = _(
                "The archive batch %(name)s is open since %(since)s (%(state)s), and nobody works on it: its rows stay"
                " in the history. The lake is %(lake)s."
            )
            yield Trouble("open archive batch", said % about, batch.planned_at, "manage.py run_pipeline archive")
        elif batch.planned_at < now - HANGING:
            said = _(
                "The archive batch %(name)s is open since %(since)s (%(state)s), and a process works on it, which may"
                " hang: its rows stay in the history. The lake is %(lake)s."
            )
            cure = _("See what that process and Spark wait for; if it hangs, end it and run `run_pipeline archive`.")
            yield Trouble("open archive batch", said % about, batch.planned_at, cure)


def _lost_rows(batches: Sequence[ArchiveBatch]) -> Iterator[Trouble]:
    """Rows of damaged files that were given up when the table no longer had them."""
    for batch in batches:
        kept = batch.checksums if isinstance(batch.checksums, dict) else {}
        if lost := kept.get("lost"):
            said = _("%(rows)s rows of the archive batch %(name)s are in neither the table nor the lake.")
            cure = _("Their files were damaged or missing. Restore the lake, or these files of it, from a backup.")
            yield Trouble("lost rows", said % {"rows": lost, "name": batch.name}, batch.deleted_at, cure)


def _found_by_check(lake: str | None) -> Iterator[Trouble]:
    """What the last `check` has found in the lake that is set; if none is, in those that have history."""
    from delayedq.pipeline.models import ArchiveBatch, LakeCheck

    used = [lake] if lake else ArchiveBatch.objects.values("lake")
    for check in LakeCheck.objects.filter(faults__gt=0, lake__in=used).order_by("checked_at")[:MOST]:
        about = {"lake": check.lake, "faults": check.faults, "first": check.first}
        said = _("The last check of the lake %(lake)s found %(faults)s faults: %(first)s") % about
        cure = f"manage.py run_pipeline check --lake {shlex.quote(check.lake)}"
        yield Trouble("lake faults", said, check.checked_at, cure)


def _elsewhere(lake: str | None) -> Iterator[Trouble]:
    """History that is in another lake than the one that is set, which has no batch, or had not when it was checked."""
    from delayedq.pipeline.models import ArchiveBatch, LakeCheck

    if lake is None:
        return
    moved = ArchiveBatch.objects.filter(state="deleted", row_count__gt=0)
    seen = LakeCheck.objects.filter(lake=lake).values_list("last", flat=True).first() or 0
    elsewhere = moved.exclude(lake=lake).filter(number__gt=seen)
    there = list(elsewhere.order_by("lake").values_list("lake", flat=True).distinct()[:MOST])
    if there and not moved.filter(lake=lake).exists():
        about = {"lakes": ", ".join(there), "lake": lake}
        said = _("History is in the lake %(lakes)s, and DELAYEDQ['LAKE'] is %(lake)s: it is not found there.") % about
        cure = _("Set DELAYEDQ['LAKE'] to where the lake is now. If it is there, run `run_pipeline check`.")
        yield Trouble("moved lake", said, None, cure)


def as_ended(row: dict[str, Any]) -> FinishedMessage:
    """A row of the lake as a row of the history table, which it is not.

    The line and the fingerprint of the last error are not in the lake: they follow from `errors`.
    """
    columns = {name: value for name, value in row.items() if name not in _OF_THE_LAKE}
    derived = last_error(row["errors"])._asdict() if row["state"] == FinalOutcome.FAILED else {}
    return FinishedMessage(**columns, **derived, outcome=row["state"])
