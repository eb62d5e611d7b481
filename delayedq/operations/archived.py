"""Messages that have left the database for an archive: found by id or key, and sent again.

The core knows no archive. An app that has one registers how to look in it, as the pipeline does for its lake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from delayedq.core.masking import MASKED
from delayedq.exceptions import DelayedQError, InvalidMessage, QueueFull
from delayedq.limits.declared import sizes_of
from delayedq.limits.operator import rules_here
from delayedq.limits.rules import channel_of
from delayedq.store.protocol import Offer, OfferOutcome, OnConflict

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from delayedq.models import FinishedMessage
    from delayedq.store.base import Store

    #: By id or by key (the other is None), of the database of this alias. Raises DelayedQError if it can't look.
    Finder = Callable[[str, int | None, str | None], "Found"]
    #: Since when a batch of the database of this alias has been open; None if none is.
    OpenSince = Callable[[str], datetime | None]
    #: Raises DelayedQError if what was archived from the database of this alias can't be read.
    Look = Callable[[str], None]
    #: What is wrong with the archive of the database of this alias, by what the database alone says of it.
    Troubles = Callable[[str], list["Trouble"]]
    #: The scheduled steps of the archive of the database of this alias, at this moment.
    Steps = Callable[[str, datetime], list["ScheduledStep"]]


class Found(NamedTuple):
    """Archived messages, as the history had them, latest end first. complete: False if there may be more."""

    messages: list[FinishedMessage]
    complete: bool = True


class Trouble(NamedTuple):
    """What is wrong with an archive. `condition`: a word for programs. `cure`: a command, or what to do. `since`: None
    if it is not known.
    """

    condition: str
    sentence: str
    since: datetime | None
    cure: str


class ScheduledStep(NamedTuple):
    """A step of an archive that cron starts. `last`: when its last run ended, or began if it runs. `state`: of that
    run; "" if there was none. `following`: None if no tick comes.
    """

    schedule: str
    arguments: list[str]
    following: datetime | None
    last: datetime | None = None
    state: str = ""


_FINDERS: list[Finder] = []
_OPEN_SINCE: list[OpenSince] = []
_LOOKS: list[Look] = []
_TROUBLES: list[Troubles] = []
_STEPS: list[Steps] = []


def register_archive(finder: Finder, open_since: OpenSince, look: Look, troubles: Troubles, steps: Steps) -> None:
    """Let messages be found in an archive, and monitoring see for how long a batch has been open, and what is amiss.

    Call it in `AppConfig.ready`; to register one again changes nothing.
    """
    if finder not in _FINDERS:
        _FINDERS.append(finder)
        _OPEN_SINCE.append(open_since)
        _LOOKS.append(look)
        _TROUBLES.append(troubles)
        _STEPS.append(steps)


def archive_open_since(store: Store) -> datetime | None:
    """Since when a batch has been open, which an archive has to finish; None if none is. Raises django.db.Error."""
    return min(filter(None, (open_since(store.alias) for open_since in _OPEN_SINCE)), default=None)


def archive_troubles(store: Store) -> list[Trouble]:
    """What is wrong with archives, as the database has it: a few rows are read. Raises django.db.Error."""
    return [trouble for troubles in _TROUBLES for trouble in troubles(store.alias)]


def archive_steps(store: Store, now: datetime) -> list[ScheduledStep]:
    """The steps of archives that cron starts. Raises django.db.Error."""
    return [step for steps in _STEPS for step in steps(store.alias, now)]


def look_into_archives(store: Store) -> list[str]:
    """Why archives can't be read; nothing: all can, or there is none. Raises django.db.Error."""
    found = []
    for look in _LOOKS:
        try:
            look(store.alias)
        except DelayedQError as error:
            found.append(str(error))
    return found


def find_archived(store: Store, *, id: int | None = None, key: str | None = None) -> Found:  # noqa: A002
    """What the archives have of this id or key; nothing if there is none. Bounded: see the archive's own docs."""
    found = [finder(store.alias, id, key) for finder in _FINDERS]
    messages = [message for one in found for message in one.messages]
    return Found(messages, all(one.complete for one in found))


def send_again(store: Store, message: FinishedMessage) -> int | None:
    """Offer it once more, due at once, as a new message; returns its id. None: a live message has its key, and stays.

    It waits in its channel again, as far as its limits have room. Raises InvalidMessage for what can't be stored any
    more, and for what was masked when it was archived; QueueFull if a limit of it has reached its size.
    """
    if message.payload == MASKED:
        raise InvalidMessage(f"The arguments of message {message.pk} were masked when it was archived: they are lost.")
    channel = channel_of(message.metadata)
    offer = Offer(
        queue=message.queue,
        kind=message.kind,
        payload=message.payload,
        key=message.key,
        priority=message.priority,
        max_attempts=message.max_attempts,
        metadata=message.metadata,
        channel=channel,
        sizes=() if channel is None else sizes_of(rules_here(message.queue, message.kind)),
    )
    offered = store.offer(offer, OnConflict.KEEP)
    if offered.outcome is OfferOutcome.DROPPED:
        raise QueueFull(f"A limit of {message.kind} has reached its size: message {message.pk} was not sent again.")
    return offered.id if offered.outcome is OfferOutcome.CREATED else None
