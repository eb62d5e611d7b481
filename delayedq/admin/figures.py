"""Figures of the last hour, day or week as the pages show them: spans to choose, totals, and charts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from delayedq.admin.charts import Chart, Series, count
from delayedq.operations.browsing import Selection
from delayedq.operations.busy_threads import BusySpan
from delayedq.operations.counting import count_live
from delayedq.operations.figures import Ahead, Figures, Span
from delayedq.operations.wording import grouped, seconds
from delayedq.sql.states import MessageState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from delayedq.operations.counting import Count
    from delayedq.store.base import Store

SPANS = {
    Span.HOUR: gettext_lazy("Last hour"),
    Span.DAY: gettext_lazy("Last day"),
    Span.WEEK: gettext_lazy("Last week"),
}

#: Seconds after which the figures are read again while somebody looks at them.
REFRESHED = {Span.HOUR: 15, Span.DAY: 60, Span.WEEK: 60}

AHEADS = {Ahead.DAY: gettext_lazy("Next day"), Ahead.WEEK: gettext_lazy("Next week")}

#: Rates below it are shown with a digit after the point.
MOST_PRECISE = 100


class SpanChoice(NamedTuple):
    value: Span | Ahead | BusySpan
    label: str

    @property
    def name(self) -> str:
        return self.value.name


def choices(labels: Mapping[Any, Any]) -> list[SpanChoice]:
    return [SpanChoice(value, str(label)) for value, label in labels.items()]


def chosen_in[E: (Span, Ahead, BusySpan)](choices: type[E], asked: str | None, default: E) -> E:
    return next((choice for choice in choices if choice.name.lower() == asked), default)


def due_now(store: Store, now: datetime, only: dict[str, str]) -> Count:
    chosen = Selection(as_of=now, state=MessageState.DUE, queue=only.get("queue"), kind=only.get("kind"))
    return count_live(store, chosen)


def totals_of(found: Figures, now: datetime) -> list[tuple[str, str, str]]:
    """Label, value and rate of each."""
    arrived, ended, failed = (
        sum(getattr(bucket, name) for bucket in found.buckets) for name in ("arrived", "ended", "failed")
    )
    minutes = (now - found.buckets[0].start).total_seconds() / 60
    worst = max((bucket.p95 for bucket in found.buckets if bucket.p95 is not None), default=None)
    return [
        (_("arrived"), count(arrived), rate_of(arrived, minutes)),
        (_("finished"), count(ended), rate_of(ended, minutes)),
        (_("of them failed"), count(failed), rate_of(failed, minutes) if failed else ""),
        (_("worst p95 of latency"), seconds(worst), ""),
    ]


def rate_of(number: int, minutes: float) -> str:
    """How many per minute, hour or day: in the shortest in which it is at least one."""
    rate, words = number / max(minutes, 1), _("%(number)s per minute")
    for longer, times in ((_("%(number)s per hour"), 60), (_("%(number)s per day"), 24)):
        if 0 < rate < 1:
            rate, words = rate * times, longer
    return words % {"number": grouped(rate, digits=int(rate < MOST_PRECISE))}


def charts_of(found: Figures) -> list[Chart]:
    def series(name: str, label: str, value: str, unit: str = "") -> Series:
        return Series(name, label, [getattr(bucket, value) for bucket in found.buckets], unit)

    times = [bucket.start for bucket in found.buckets]
    both = [series("arrived", _("arrived"), "arrived"), series("finished", _("finished"), "ended")]
    late = [series("p50", "p50", "p50", "s"), series("p95", "p95", "p95", "s")]
    if any(bucket.limited_p95 is not None for bucket in found.buckets):
        late.append(series("limited", _("p95 in channels"), "limited_p95", "s"))
    return [
        Chart("flow", _("Arrivals and finishes"), times, both),
        Chart("failures", _("Failures"), times, [series("failed", _("failed"), "failed")], bars=True),
        Chart("latency", _("Latency: how late messages started"), times, late),
    ]
