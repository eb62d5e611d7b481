"""Keep from pruning what is still needed after RETENTION: the messages of flows that have not ended, and more.

An app that moves history registers here from when on it does not need it any more. Its query becomes a part of the
statement that deletes: nothing can change between asking and deleting.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from django.db import router
from django.db.models import Exists, OuterRef, Q, Subquery, Value
from django.db.models.functions import Coalesce

from delayedq.core.bounds import EARLIEST
from delayedq.core.flows import FlowState
from delayedq.core.metadata import FLOW
from delayedq.store.flows import members_sql

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
    sql = members_sql.UNNEEDED if _are_flows_open(alias) else ""
    parameters: dict[str, Any] = {}
    for query in _needed(alias):
        subselect, values = query.query.get_compiler(using=alias).as_sql()
        names = [f"needed_{number}" for number in range(len(parameters), len(parameters) + len(values))]
        named = subselect.replace("%%", "%%%%") % tuple(f"%({name})s" for name in names)
        sql += condition.format(needed=named)
        parameters |= dict(zip(names, values, strict=True))
    return sql, parameters


def _are_flows_open(alias: str) -> bool:
    from delayedq.models import Flow  # it is registered before the models are loaded

    return Flow.objects.using(alias).filter(ended_at=None).exists()


def of_open_flows(alias: str) -> Q:
    """The condition of the rows of `FinishedMessage` that are those of flows which have not ended."""
    return _of_flows(alias, Q(ended_at=None))


def of_flows_to_retry(alias: str) -> Q:
    """The same for flows that have not succeeded, now or in the end: they may still read results."""
    return _of_flows(alias, ~Q(outcome=FlowState.SUCCEEDED))


def _of_flows(alias: str, condition: Q) -> Q:
    from delayedq.models import Flow, FlowMember, FlowStep

    flows = Flow.objects.using(alias).filter(condition).values("id")
    steps = FlowStep.objects.using(alias).filter(flow_id__in=flows).values("id")
    members = FlowMember.objects.using(alias).filter(message_id=OuterRef("id"), step_id__in=steps)
    return Q(metadata__contains=f'"{FLOW}":') & Q(Exists(members))


def unneeded_condition(alias: str) -> Q | None:
    """The same as a condition on `FinishedMessage`, for what operators delete; None if nothing is registered."""
    conditions = [Q(finished_at__gte=Coalesce(Subquery(query), Value(EARLIEST))) for query in _needed(alias)]
    return reduce(and_, conditions) if conditions else None


def _needed(alias: str) -> Iterator[QuerySet[Any, datetime]]:
    """The queries whose tables are in this database."""
    for query in (needed() for needed in _NEEDED):
        if router.allow_migrate_model(alias, query.model):
            yield query
