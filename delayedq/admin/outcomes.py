"""What a change makes of messages, before it is made: the old values of a sample beside the new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from delayedq.admin.base import visible
from delayedq.admin.moments import when

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from django.utils.safestring import SafeString

    from delayedq.admin.changes import Nothing
    from delayedq.core.edits import Place

#: In place of the random number that spreads messages: the middle of what it can be.
MIDDLE = 0.5


class Comparison(NamedTuple):
    """The time, queue or priority of one message; `after` is "" if it stays."""

    before: SafeString | str
    after: SafeString | str


def comparisons(form: Nothing, places: Sequence[Place], now: datetime) -> list[Comparison]:
    """One for each place; none if the form has no valid values yet, or does not change the place of messages."""
    tried = form if form.is_bound else type(form)(_shown(form))
    change = tried.change(now) if tried.is_valid() else None
    if change is None:
        return []
    return [compared(place, change(place, now, rank, MIDDLE), now) for rank, place in enumerate(places)]


def _shown(form: Nothing) -> dict[str, object]:
    """The values that an unbound form shows, as if it was sent so."""
    return {name: form[name].value() for name in form.fields}


def compared(before: Place, after: Place, now: datetime) -> Comparison:
    if before.queue != after.queue:
        return Comparison(visible(before.queue), visible(after.queue))
    if before.priority != after.priority:
        return Comparison(str(before.priority), str(after.priority))
    is_same = before.scheduled_at == after.scheduled_at
    return Comparison(when(before.scheduled_at, now), "" if is_same else when(after.scheduled_at, now))
