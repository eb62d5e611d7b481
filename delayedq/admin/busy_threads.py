"""The busy threads of the last hour, day or week, by queue and by worker, as heat maps with tables of the numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django.utils import timezone
from django.utils.dateformat import format as formatted
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from delayedq.admin.figures import SPANS, choices
from delayedq.admin.heat import Cell, level
from delayedq.operations.busy_threads import BusySpan, busy_threads
from delayedq.operations.figures import Span
from delayedq.operations.wording import exact, grouped, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from delayedq.operations.busy_threads import BusyRow, BusyThreads
    from delayedq.store.base import Store

#: Averages below it are shown with two digits after the point.
SMALL = 10


class Row(NamedTuple):
    """`numbers`: those of the cells, as texts. `threads`: how many there are now; "-": none, or it is of several.
    `share`: the average, with the threads if there are any.
    """

    name: str
    cells: Sequence[Cell]
    numbers: Sequence[str]
    average: str
    threads: str
    share: str


class Table(NamedTuple):
    """`id`: in the page. `header`: of the first column."""

    id: str
    title: str
    header: str
    rows: list[Row]


def context_of(store: Store, span: BusySpan, now: datetime) -> dict[str, Any]:
    """The context of `threads.html`."""
    found = busy_threads(store, span, now)
    labels = {BusySpan[one.name]: SPANS[one] for one in Span}
    return {
        "tab": "threads",
        "choices": choices(labels),
        "choice_name": "span",
        "chosen": span,
        "one_in": round(found.one_in),
        "columns": [*_columns(found.starts, span)],
        "starts": [exact(start) for start in found.starts],
        "tables": [*_tables(found)] if found.queues else [],
    }


def _tables(found: BusyThreads) -> Iterator[Table]:
    most = max(found.all.buckets)
    queues = [*found.queues, found.other_queues] if found.other_queues.number else found.queues
    workers = [*found.workers, found.other_workers] if found.other_workers.number else found.workers
    rows = [_row(found, one, most) for one in queues]
    yield Table("queues", _("By queue"), _("Queue"), [_row(found, found.all, most, _("All queues")), *rows])
    yield Table("workers", _("By worker"), _("Worker"), [_row(found, one, most) for one in workers])


def _row(found: BusyThreads, one: BusyRow, most: float, name: str = "") -> Row:
    others = ngettext("%(number)s other", "%(number)s others", one.number) % {"number": grouped(one.number)}
    numbers = [average(busy) for busy in one.buckets]
    words = _("%(time)s: %(number)s busy")
    cells = [
        Cell(level(busy, most), words % {"time": exact(start), "number": number}) if busy else Cell()
        for busy, number, start in zip(one.buckets, numbers, found.starts, strict=True)
    ]
    threads = grouped(one.threads) if one.threads else "-"
    busy = average(one.average)
    share = _("%(busy)s of %(threads)s") % {"busy": busy, "threads": threads} if one.threads else busy
    return Row(name or visible(one.name) or others, cells, numbers, busy, threads, share)


def average(number: float) -> str:
    return grouped(number, digits=2 if 0 < number < SMALL else 1) if number else "0"


def _columns(starts: Sequence[datetime], span: BusySpan) -> Iterator[str]:
    """What stands above each column; "" where there is no room."""
    for number, start in enumerate(starts):
        local = timezone.localtime(start)
        if span is BusySpan.WEEK:
            yield formatted(local, "D") if number % 4 == 0 else ""
        else:
            yield f"{local:%H:%M}" if number % (6 if span is BusySpan.DAY else 3) == 0 else ""
