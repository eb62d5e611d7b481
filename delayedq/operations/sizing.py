"""Bounded reading: a range is read as a whole if it is small, else a sample of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from delayedq.core.sampling import sample, whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from django.db.models import QuerySet

    from delayedq.core.sampling import Sample

#: About this many rows are read at most; of more, a sample is read.
MOST = 30_000
#: The share of the first sample, taken before anything is known, and the largest growth from one sample to the next.
FIRST_SHARE, GROWTH = 1 / 500, 50


def read_bounded[Answer](
    rows: QuerySet[Any],
    ends: tuple[int, int],
    read: Callable[[Sample], Answer],
    size: Callable[[Answer], int],
    times: int = 1,
) -> tuple[Sample, Answer]:
    """Read a range as a whole if it has at most `times` * MOST rows, else a sample of about half that size.

    `rows`: those of the range, in the order of an index and with only its columns. `read` answers for a sample;
    `size` is the number of rows that an answer covers. Returns the sample and the answer for it.
    """
    most = times * MOST
    part = sample(*ends, FIRST_SHARE) if rows[most : most + 1] else whole(*ends)
    while (found := size(answer := read(part))) < most / 4 and not part.is_whole:
        part = sample(*ends, min(GROWTH, most / 2 / max(found, 1)) / part.scale)
    return part, answer


def ids_since(rows: QuerySet[Any], moment: datetime) -> tuple[int, int]:
    """A range of ids (from, up to) that has all rows created since `moment` and few others: ids rise with time."""
    lowest, highest = (_created(rows.order_by(order)) for order in ("id", "-id"))
    if lowest is None or highest is None:
        return 0, 0
    low, high = lowest[0], highest[0]
    while high - low > MOST // 100:
        middle = (low + high) // 2
        found = _created(rows.filter(id__gte=middle).order_by("id"))
        if found is None or found[1] >= moment:
            high = middle
        else:
            low = found[0]
    return low, highest[0] + 1


def _created(rows: QuerySet[Any]) -> tuple[int, datetime] | None:
    return rows.values_list("id", "created_at").first()
