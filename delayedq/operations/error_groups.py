"""The dead letters grouped by error: how many of each, since when, how often lately; a bounded look, however many.

A group is what shares a fingerprint: the class of the last error, and its first line without its values
(`core.errors`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from itertools import batched
from typing import TYPE_CHECKING, NamedTuple

from delayedq.core.errors import class_of, pattern
from delayedq.core.instants import EPOCH
from delayedq.operations.counting import Count
from delayedq.store import operator_store
from delayedq.store.figures import Grid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from delayedq.store.base import Store
    from delayedq.store.figures import ErrorGroupStore, Extent, Newest

#: At most this many groups are known, and so many shown at once.
KNOWN, SHOWN = 10_000, 50
#: Groups in one statement.
AT_ONCE = 200
#: Each group is counted up to this number, and those that have more up to FULL together, but at least so far.
LEAST, FULL = 1_000, 500_000
#: The latest of each group that a trend has at most.
MOST_LATELY = 1_000
#: A trend has so many buckets of so many seconds.
BUCKETS, WIDTH = 24, 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorGroup:
    """Dead letters that failed alike. `error`, `id`, `kind` and `queue`: of the one that ended last.

    `trend`: how many ended in each of the last BUCKETS hours, the present one last; of those that ended last, at most
    MOST_LATELY.
    """

    fingerprint: int
    error: str
    id: int
    kind: str
    queue: str
    size: Count
    first_at: datetime
    last_at: datetime
    trend: Sequence[int]

    @property
    def pattern(self) -> str:
        """What their errors have in common."""
        return pattern(self.error)


class Order(StrEnum):
    """How error groups come."""

    MOST = "most"  #: of most dead letters first
    LAST = "last"  #: that grew last first
    FIRST = "first"  #: that are oldest first


class ErrorGroups(NamedTuple):
    """`more`: how many follow. `is_cut`: more than KNOWN, some of which were not looked at. `known`: how many were."""

    groups: list[ErrorGroup]
    more: int
    is_cut: bool
    classes: list[str]
    known: int = 0


def error_groups(
    store: Store,
    now: datetime,
    *,
    text: str = "",
    error_class: str = "",
    search_errors: bool = True,
    order: Order = Order.MOST,
    skip: int = 0,
) -> ErrorGroups:
    """SHOWN error groups after the first `skip` of this order. Up to AT_ONCE groups take 5 statements.

    text: only those whose latest error has it, in upper or lower case, or whose task has. error_class: only those of
    this class, such as "app.errors.Overbooked". search_errors False: the text is sought in tasks alone.
    """
    is_search = bool(text or error_class)
    stored = operator_store(store.alias).error_groups
    extents = stored.extents(KNOWN)
    sizes = _sizes(stored, [extent.fingerprint for extent in extents])
    extents.sort(key=lambda extent: _rank(extent, sizes, order))
    looked_into = extents if is_search else extents[skip : skip + SHOWN]
    newest: dict[int, Newest] = {}
    for some in batched((extent.fingerprint for extent in looked_into), AT_ONCE):
        newest |= stored.newest(some)
    texts = {one: f"{latest.error}\n{latest.kind}" if search_errors else latest.kind for one, latest in newest.items()}
    found = [
        extent
        for extent in looked_into
        if text.lower() in texts.get(extent.fingerprint, "").lower()
        and extent.fingerprint in newest
        and error_class in {"", class_of(newest[extent.fingerprint].error)}
    ]
    classes = sorted({class_of(one.error) for one in newest.values()} - {""})
    page = found[skip : skip + SHOWN] if is_search else found
    more = max(0, len(found if is_search else extents) - skip - SHOWN)
    return ErrorGroups(_described(stored, page, newest, sizes, now), more, len(extents) == KNOWN, classes, len(extents))


def _sizes(stored: ErrorGroupStore, fingerprints: Sequence[int]) -> dict[int, Count]:
    """How many dead letters each of these groups has: each up to a bound, which is far beyond for few large ones."""
    found: dict[int, int] = {}
    for some in batched(fingerprints, AT_ONCE):
        found |= stored.sizes(some, LEAST + 1)
    large = [one for one, size in found.items() if size > LEAST]
    most = max(LEAST, FULL // max(len(large), 1))
    for some in batched(large, AT_ONCE):
        found |= stored.sizes(some, most + 1)
    return {one: Count(size, exact=True) if size <= most else Count(most, exact=None) for one, size in found.items()}


def _rank(extent: Extent, sizes: Mapping[int, Count], order: Order) -> tuple[float, float]:
    last = -extent.last_at.timestamp()
    match order:
        case Order.MOST:
            return -(sizes[extent.fingerprint].number if extent.fingerprint in sizes else 0), last
        case Order.FIRST:
            return extent.first_at.timestamp(), last
        case _:
            return last, 0.0


def _described(
    stored: ErrorGroupStore,
    extents: Sequence[Extent],
    newest: Mapping[int, Newest],
    sizes: Mapping[int, Count],
    now: datetime,
) -> list[ErrorGroup]:
    lately = stored.lately([extent.fingerprint for extent in extents], _grid(now), MOST_LATELY)
    return [
        ErrorGroup(
            fingerprint=extent.fingerprint,
            error=newest[extent.fingerprint].error,
            id=newest[extent.fingerprint].id,
            kind=newest[extent.fingerprint].kind,
            queue=newest[extent.fingerprint].queue,
            size=sizes.get(extent.fingerprint, Count(0, exact=True)),
            first_at=extent.first_at,
            last_at=extent.last_at,
            trend=[lately[extent.fingerprint].get(bucket, 0) for bucket in range(BUCKETS)],
        )
        for extent in extents
        if extent.fingerprint in newest
    ]


def _grid(now: datetime) -> Grid:
    """The last BUCKETS hours, up to the end of the present one."""
    end = EPOCH + ((now - EPOCH) // timedelta(seconds=WIDTH) + 1) * timedelta(seconds=WIDTH)
    return Grid(end - timedelta(seconds=BUCKETS * WIDTH), end, WIDTH)
