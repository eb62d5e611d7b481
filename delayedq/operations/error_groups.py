"""The dead letters grouped by error: how many of each, since when, how often lately; a bounded look, however many.

A group is what shares a fingerprint: the class of the last error, and its first line without its values
(`core.errors`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from delayedq.core.errors import class_of, pattern
from delayedq.core.instants import EPOCH
from delayedq.operations.counting import BOUND, Count
from delayedq.store import operator_store
from delayedq.store.figures import Grid

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from delayedq.store.base import Store
    from delayedq.store.figures import Extent, Newest

#: At most this many groups are known, so many of them looked into, and so many shown: those that grew last.
KNOWN, SEARCHED, SHOWN = 1_000, 200, 50
#: All groups that are shown are counted up to BOUND together, each at least up to this number.
LEAST = 1_000
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


class ErrorGroups(NamedTuple):
    """`more`: how many others there are. `is_cut`: more than KNOWN, some of which were not looked at."""

    groups: list[ErrorGroup]
    more: int
    is_cut: bool
    classes: list[str]


def error_groups(
    store: Store, now: datetime, *, text: str = "", error_class: str = "", search_errors: bool = True
) -> ErrorGroups:
    """The error groups, first those that grew last; at most SHOWN. 4 statements, whatever there is.

    `text`: only those whose latest error has it, in upper or lower case, or whose task has. `error_class`: only those
    of this class, such as "app.errors.Overbooked". Both look at the SEARCHED that grew last. `search_errors` False: the
    text is sought in tasks alone.
    """
    is_search = bool(text or error_class)
    stored = operator_store(store.alias).error_groups
    extents = sorted(stored.extents(KNOWN), key=lambda extent: extent.last_at, reverse=True)
    searched = extents[: SEARCHED if is_search else SHOWN]
    newest = stored.newest([extent.fingerprint for extent in searched])
    texts = {one: f"{latest.error}\n{latest.kind}" if search_errors else latest.kind for one, latest in newest.items()}
    found = [
        extent
        for extent in searched
        if text.lower() in texts.get(extent.fingerprint, "").lower()
        and extent.fingerprint in newest
        and error_class in {"", class_of(newest[extent.fingerprint].error)}
    ]
    classes = sorted({class_of(one.error) for one in newest.values()} - {""})
    more = (len(found) if is_search else len(extents)) - len(found[:SHOWN])
    return ErrorGroups(_described(store, found[:SHOWN], newest, now), more, len(extents) == KNOWN, classes)


def _described(store: Store, extents: Sequence[Extent], newest: dict[int, Newest], now: datetime) -> list[ErrorGroup]:
    stored, fingerprints = operator_store(store.alias).error_groups, [extent.fingerprint for extent in extents]
    most = max(LEAST, BOUND // max(len(extents), 1))
    sizes, lately = stored.sizes(fingerprints, most + 1), stored.lately(fingerprints, _grid(now), MOST_LATELY)
    return [
        ErrorGroup(
            fingerprint=extent.fingerprint,
            error=newest[extent.fingerprint].error,
            id=newest[extent.fingerprint].id,
            kind=newest[extent.fingerprint].kind,
            queue=newest[extent.fingerprint].queue,
            size=_count(sizes.get(extent.fingerprint, 0), most),
            first_at=extent.first_at,
            last_at=extent.last_at,
            trend=[lately[extent.fingerprint].get(bucket, 0) for bucket in range(BUCKETS)],
        )
        for extent in extents
        if extent.fingerprint in newest
    ]


def _count(size: int, most: int) -> Count:
    return Count(size, exact=True) if size <= most else Count(most, exact=None)


def _grid(now: datetime) -> Grid:
    """The last BUCKETS hours, up to the end of the present one."""
    end = EPOCH + ((now - EPOCH) // timedelta(seconds=WIDTH) + 1) * timedelta(seconds=WIDTH)
    return Grid(end - timedelta(seconds=BUCKETS * WIDTH), end, WIDTH)
