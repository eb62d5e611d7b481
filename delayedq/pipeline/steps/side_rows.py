"""What goes into the lake beside the messages of a batch, before these are deleted from the table.

Flows are copied, and stay in the database as long as `RETENTION` says; recorded steps go with their messages.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from django.db.models import OuterRef

from delayedq.core.flows import number_of, numbers
from delayedq.core.masking import MASKED
from delayedq.models import FinishedMessage, Flow, FlowStep, RecordedStep
from delayedq.pipeline.lake.side_table import Flows, RecordedSteps

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from datetime import datetime

    from django.db.models import QuerySet

    from delayedq.store.base import Store

#: Rows that are held, and become one file of a table, at once.
PAGE = 10_000
#: Flows, whose steps are held with them.
FLOWS = 1_000

_OF_A_FLOW = ("id", "name", "policy", "created_at", "deadline_at", "stopped_at", "ended_at")


class SideRows:
    """The flows and the recorded steps of one database, on their way into one lake.

    masked: the tasks whose results are masked in the lake.
    """

    def __init__(self, store: Store, lake: str, source: str, masked: Collection[str] = ()) -> None:
        self._alias = store.alias
        self._lake = lake
        self._source = source
        self._masked = frozenset(masked)

    def copy(self, batch: int, cutoff: datetime, since: datetime | None = None) -> None:
        """Copy what has ended before the cutoff and is not in the lake; read all of it back. Raises LakeUnusable.

        since: flows that ended before have been copied (None: no moment is known). Their rows stay in the database.
        """
        flows = Flow.objects.using(self._alias).filter(ended_at__lt=cutoff)
        if since is not None:
            flows = flows.filter(ended_at__gte=since)
        for page in _pages(flows.values("outcome", *_OF_A_FLOW), FLOWS):
            Flows(self._lake).add(self._source, batch, self._flow_rows(page))
        ended = FinishedMessage.objects.using(self._alias).filter(id=OuterRef("message_id"), finished_at__lt=cutoff)
        steps = RecordedStep.objects.using(self._alias).annotate(kind=ended.values("kind")[:1])
        for page in _pages(steps.filter(kind__isnull=False).values("id", *RecordedSteps.columns), PAGE):
            RecordedSteps(self._lake).add(self._source, batch, [self._step_row(row) for row in page])

    def restore(self, ids: Sequence[int]) -> None:
        """Within the transaction that puts these messages back: their recorded steps, unless they were masked."""
        found = RecordedSteps(self._lake).rows(self._source, ids)
        names = [name for name in RecordedSteps.columns if name != "kind"]
        found.sort(key=lambda row: row["recorded_at"])
        steps = [RecordedStep(**{name: row[name] for name in names}) for row in found if row["result"] != MASKED]
        RecordedStep.objects.using(self._alias).bulk_create(steps, ignore_conflicts=True)

    def _flow_rows(self, flows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        steps = defaultdict(list)
        for row in (
            FlowStep.objects.using(self._alias).filter(flow_id__in=[flow["id"] for flow in flows]).order_by("id")
        ):
            steps[row.flow_id].append(_of_a_step(row))
        return [
            {name: flow[name] for name in _OF_A_FLOW}
            | {"state": flow["outcome"], "steps": json.dumps(steps[flow["id"]], ensure_ascii=False)}
            for flow in flows
        ]

    def _step_row(self, row: dict[str, Any]) -> dict[str, Any]:
        masked = {"result": MASKED} if row["kind"] in self._masked else {}
        return {name: row[name] for name in RecordedSteps.columns} | masked


def _of_a_step(row: FlowStep) -> dict[str, Any]:
    moments = {"released_at": row.released_at, "ended_at": row.ended_at}
    return {
        "number": number_of(row.pk),
        "name": row.name,
        "state": row.state,
        "after": numbers(row.after),
        "when": row.runs_when,
        "kind": row.kind,
        "is_group": row.is_group,
        "size": row.size,
        **{name: None if moment is None else moment.isoformat() for name, moment in moments.items()},
    }


def _pages(rows: QuerySet[Any, dict[str, Any]], limit: int) -> Iterator[list[dict[str, Any]]]:
    """By primary key."""
    rows = rows.order_by("id")
    page = list(rows[:limit])
    while page:
        yield page
        page = list(rows.filter(id__gt=page[-1]["id"])[:limit])
