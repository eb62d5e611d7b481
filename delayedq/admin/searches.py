"""What a list says of a search: how many it found, and where it looked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.utils.translation import gettext as _

from delayedq.admin.base import visible
from delayedq.operations.browsing import DEPTH
from delayedq.operations.counting import Count
from delayedq.operations.wording import grouped

if TYPE_CHECKING:
    from delayedq.operations.finding import Found


def found_count(found: Found) -> Count:
    return Count(len(found.messages), exact=None if found.is_cut else True)


def searched(text: str, found: Found) -> str:
    """Where a search for a text looked; "" if it was found by key or id, and all of it is shown."""
    given = {"text": visible(text), "depth": grouped(DEPTH)}
    if not found.by_argument:
        return _("More keys begin with “%(text)s”; these are the first.") % given if found.is_cut else ""
    if found.messages:
        return _("No id or key fits “%(text)s”, but these messages have it in their payload.") % given
    if found.is_cut:
        return (
            _(
                "No live message has the id or a key that begins with “%(text)s”, and none of the first %(depth)s that"
                " are due has it in its payload."
            )
            % given
        )
    return _("No live message has “%(text)s” as its id, at the beginning of its key, or in its payload.") % given


def where_leases_are() -> str:
    """How what runs and what was lost is found."""
    return _(
        "What workers ran at their last heartbeat, and what is leased among the first %(depth)s messages that are due."
    ) % {"depth": grouped(DEPTH)}
