"""System checks of the pipeline.

- delayedq.W005  Spark has to start here, and PySpark or Java is missing (needs `check --deploy`: a machine that only
  serves pages or takes part in the development needs neither)
- delayedq.W006  history is pruned before it is old enough for the archive
- delayedq.W009  a batch of the archive is open for over a day, and pruning keeps what ended before its cutoff (needs
  `check --database`)
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from django.core.checks import Tags, Warning, register  # noqa: A004
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, router

from delayedq.conf import get_settings
from delayedq.exceptions import JavaMissing
from delayedq.pipeline.spark.java import require_java
from delayedq.store import store_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.core.checks import CheckMessage


@register(deploy=True)
def check_spark(**_: Any) -> list[CheckMessage]:
    """Can Spark start here, if it has to? (W005)"""
    if find_spec("pyspark") is None:
        return [Warning("PySpark is missing.", hint="pip install 'delayedq[spark]'.", id="delayedq.W005")]
    with suppress(ImproperlyConfigured):  # check_settings tells
        if get_settings().SPARK_REMOTE is None:
            try:
                require_java()
            except JavaMissing as error:
                return [Warning(str(error), id="delayedq.W005")]
    return []


@register
def check_archive(**_: Any) -> list[CheckMessage]:
    """Does history live long enough to be archived? (W006)"""
    with suppress(ImproperlyConfigured):
        settings = get_settings()
        if settings.LAKE and settings.RETENTION is not None and settings.RETENTION <= settings.ARCHIVE_AFTER:
            return [
                Warning(
                    "RETENTION is not longer than ARCHIVE_AFTER: history is pruned before it is archived.",
                    hint="Make RETENTION longer, or None.",
                    id="delayedq.W006",
                )
            ]
    return []


#: An archive takes minutes.
_LONG = timedelta(days=1)


@register(Tags.database)
def check_open_batch(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Is an archive stuck? (W009)"""
    from delayedq.pipeline.models import ArchiveBatch

    alias = router.db_for_read(ArchiveBatch)
    if alias not in (databases or ()):
        return []
    with suppress(DatabaseError, ImproperlyConfigured):  # not migrated yet, or what check_store tells
        for batch in ArchiveBatch.objects.filter(is_open=True, planned_at__lt=store_for(alias).now() - _LONG):
            return [
                Warning(
                    f"Batch {batch.name} of the archive is open since {batch.planned_at:%Y-%m-%d %H:%M} UTC.",
                    hint="`run_pipeline archive` finishes it, `run_pipeline archive --abandon` gives it up.",
                    id="delayedq.W009",
                )
            ]
    return []
