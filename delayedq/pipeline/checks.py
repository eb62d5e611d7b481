"""System checks of the pipeline.

- delayedq.W005  Spark has to start here, and PySpark or Java is missing (needs `check --deploy`: a machine that only
  serves pages or takes part in the development needs neither)
- delayedq.W006  history is pruned before it is old enough for the archive
"""

from __future__ import annotations

from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from django.core.checks import Warning, register  # noqa: A004
from django.core.exceptions import ImproperlyConfigured

from delayedq.conf import get_settings
from delayedq.exceptions import JavaMissing
from delayedq.spark.java import require_java

if TYPE_CHECKING:
    from django.core.checks import CheckMessage


@register(deploy=True)
def check_spark(**_: Any) -> list[CheckMessage]:
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
