"""The attempts of a message as spans on one scale of time: how long each waited, and how long it ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from django.utils.translation import gettext as _

from delayedq.operations.wording import seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from delayedq.operations.timeline import Attempt

#: The width of the picture in its own units; a span is at least so wide.
WIDTH, LEAST = 1_000, 6


class SpanRow(NamedTuple):
    """One attempt. `left`, `width`: of its run in the picture; `waits_from`: where the wait before it begins."""

    number: int
    state: str
    start: datetime
    waited: str
    ran: str
    waits_from: int
    left: int
    width: int

    @property
    def waits_for(self) -> int:
        """The width of the wait."""
        return self.left - self.waits_from


def spans_of(attempts: Sequence[Attempt], due: datetime) -> list[SpanRow]:
    """In the order of their starts. The first waited since `due`, if that is before it; each other since the end of the
    one before.
    """
    if not attempts:
        return []
    first = min(due, attempts[0].start)
    whole = max(1e-6, (max(one.end for one in attempts) - first).total_seconds())

    def place(moment: datetime) -> int:
        return round(WIDTH * (moment - first).total_seconds() / whole)

    rows, since = [], first
    for one in attempts:
        since = min(since, one.start)
        left = min(place(one.start), WIDTH - LEAST)
        width = max(LEAST, place(one.end) - left)
        told = seconds((one.start - since).total_seconds()), _ran(one)
        rows.append(SpanRow(one.number, one.state, one.start, *told, min(place(since), left), left, width))
        since = one.end
    return rows


def _ran(one: Attempt) -> str:
    ran = seconds((one.end - one.start).total_seconds())
    if one.processor is None:
        return ran
    return _("%(ran)s, %(processor)s of processor time") % {"ran": ran, "processor": seconds(one.processor)}
