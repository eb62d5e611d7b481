"""Keep from pruning what is still needed after RETENTION: what features need, and what apps have registered.

An app that moves history registers here from when on it does not need it any more. Its query becomes a part of the
statement that deletes: nothing can change between asking and deleting.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from django.db import router
from django.db.models import Q, Subquery, Value
from django.db.models.functions import Coalesce

from delayedq.core.bounds import EARLIEST
from delayedq.store.feature import FEATURES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from django.db.models import QuerySet

    #: At most one row: history that finished before this moment is still needed. No row: none is.
    Needed = Callable[[], QuerySet[Any, datetime]]

_NEEDED: list[Needed] = []


def keep_history(needed: Needed) -> None:
    """Let pruning keep what finished before the moment that a query gives, as long as it gives one.

    `needed` returns a QuerySet of one DateTimeField and at most one row. Its table is read by every pruning of the
    databases that hold it. Call it in `AppConfig.ready`; to register a function again changes nothing.

    Example:
        keep_history(lambda: Batch.objects.filter(is_open=True).values_list("cutoff", flat=True))
    """
    if needed not in _NEEDED:
        _NEEDED.append(needed)


def unneeded(alias: str, condition: str) -> tuple[str, dict[str, Any]]:
    """What pruning adds to the WHERE of its statement, and the parameters of that.

    condition: that of one query in the SQL of the database, with `{needed}` for the subselect.
    """
    sql = "".join(feature.unneeded(alias) for feature in FEATURES)
    parameters: dict[str, Any] = {}
    for query in _needed(alias):
        subselect, values = query.query.get_compiler(using=alias).as_sql()
        names = [f"needed_{number}" for number in range(len(parameters), len(parameters) + len(values))]
        named = subselect.replace("%%", "%%%%") % tuple(f"%({name})s" for name in names)
        sql += condition.format(needed=named)
        parameters |= dict(zip(names, values, strict=True))
    return sql, parameters


def needed_by_features(alias: str) -> list[Q]:
    """The rows of `FinishedMessage` that features need, whoever deletes."""
    found = (feature.needed_history(alias) for feature in FEATURES)
    return [one for one in found if one is not None]


def unneeded_condition(alias: str) -> Q | None:
    """The same as a condition on `FinishedMessage`, for what operators delete; None if nothing is registered."""
    conditions = [Q(finished_at__gte=Coalesce(Subquery(query), Value(EARLIEST))) for query in _needed(alias)]
    return reduce(and_, conditions) if conditions else None


def _needed(alias: str) -> Iterator[QuerySet[Any, datetime]]:
    """The queries whose tables are in this database."""
    for query in (needed() for needed in _NEEDED):
        if router.allow_migrate_model(alias, query.model):
            yield query
