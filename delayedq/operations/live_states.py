"""The state of a live message as lists show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.utils.translation import gettext as _

from delayedq.operations.wording import printable, span

if TYPE_CHECKING:
    from datetime import datetime

    from delayedq.models import Message
    from delayedq.operations.pauses import Paused


def is_running(message: Message, now: datetime) -> bool:
    return message.leased_until is not None and message.leased_until > now


def state_of(message: Message, now: datetime, paused: Paused) -> tuple[str, str]:
    """The state that a list shows, and a remark on it: `("running", "for 5 s on host:42")`."""
    if is_running(message, now):
        return "running", _running(message, now)
    if message.lease_token is not None:
        return "lost", _("by %(worker)s") % {"worker": printable(message.leased_by or "?")}
    if message.scheduled_at > now:
        return ("retrying", "") if message.attempt else ("scheduled", "")
    if paused.has(message.queue, message.kind):
        return "paused", ""
    return "due", ""


def _running(message: Message, now: datetime) -> str:
    """For how long it has been running, and where."""
    words = _("on %(worker)s") if message.claimed_at is None else _("for %(span)s on %(worker)s")
    running_for = span(now - (message.claimed_at or now))
    return words % {"span": running_for, "worker": printable(message.leased_by or "?")}
