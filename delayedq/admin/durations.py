"""The durations on the dashboard: how long messages of each task, and in each queue, waited and ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.translation import gettext as _

from delayedq.admin.base import visible
from delayedq.admin.charts import count, seconds

if TYPE_CHECKING:
    from datetime import timedelta

    from delayedq.operations.durations import DurationFigures
    from delayedq.store.figures import Durations

#: Seconds of a minute.
MINUTE = 60


class Row(NamedTuple):
    """`figures`: with their names, as texts."""

    name: str
    url: str
    figures: list[tuple[str, str]]


def tables(found: DurationFigures) -> list[tuple[str, str, list[Row]]]:
    """Title, header of the first column, and rows of each; the slowest come first."""
    return [
        (title, header, [_row(name, one, found.span) for one in sorted(rows, key=_slowness, reverse=True)])
        for title, header, name, rows in (
            (_("Tasks, the slowest first"), _("Task"), "kind", found.tasks),
            (_("Queues, the slowest first"), _("Queue"), "queue", found.queues),
        )
    ]


def _slowness(one: Durations) -> float:
    return one.run_p95 or 0.0


def _row(name: str, one: Durations, span: timedelta) -> Row:
    dashboard = reverse("admin:delayedq_dashboard_changelist")
    rate = one.ended / max(span.total_seconds() / MINUTE, 1)
    return Row(
        visible(one.name),
        f"{dashboard}?{urlencode({'span': 'hour', name: one.name})}",
        [
            (_("Ended"), count(one.ended)),
            (_("Per minute"), f"{rate:,.3g}" if rate < MINUTE else count(rate)),
            (_("Failed"), count(one.failed)),
            (_("Wait, p50"), seconds(one.wait_p50)),
            (_("Wait, p95"), seconds(one.wait_p95)),
            (_("Run, p50"), seconds(one.run_p50)),
            (_("Run, p95"), seconds(one.run_p95)),
            (_("Longest run"), seconds(one.slowest)),
        ],
    )
