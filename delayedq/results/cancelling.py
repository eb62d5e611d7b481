"""Cancel messages: what waits ends at once, what runs is told, and the answer says which it was.

The message of a task that runs ends as cancelled in the same moment: nothing runs it again, and what the task returns
is refused. So the answer is final whatever the task does next. It is told soon on PostgreSQL, elsewhere when its lease
is renewed, at most a third of LEASE later: see `Attempt.cancelled`.
"""

from __future__ import annotations

import time
from enum import StrEnum
from itertools import batched
from typing import TYPE_CHECKING

from django.db import transaction

from delayedq.store import operator_store
from delayedq.store.claim_tokens import BUSY_PAUSE
from delayedq.store.operator import Seen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from delayedq.store.base import Store

#: Seconds for which a message that others lock or change is tried again.
PATIENCE = 2.0
#: Messages in one statement.
CHUNK = 1_000


class Cancellation(StrEnum):
    """What became of a message that was to be cancelled."""

    CANCELLED = "cancelled"  #: it waited, and ended as cancelled
    STOPPED = "stopped"  #: it ran, and ended as cancelled: its task is told, and its result will be refused
    ENDED = "ended"  #: it had ended before: nothing was changed
    BUSY = "busy"  #: another transaction has locked it: nothing was changed


def cancel(store: Store, ids: Iterable[int], patience: float = PATIENCE) -> dict[int, Cancellation]:
    """Cancel these messages of one database; within the caller's transaction, if there is one.

    patience: for how many seconds each CHUNK of them is tried if others lock or change it; 0: once.
    """
    answers: dict[int, Cancellation] = {}
    for some in batched(dict.fromkeys(ids), CHUNK):
        answers |= _cancelled(store, some, patience)
    if Cancellation.STOPPED in answers.values():
        store.tell_stopped_after_commit()
    return answers


def _cancelled(store: Store, ids: tuple[int, ...], patience: float) -> dict[int, Cancellation]:
    answers: dict[int, Cancellation] = {}
    give_up_at = time.monotonic() + patience
    while left := [id_ for id_ in ids if id_ not in answers]:
        answers |= _try(store, left)
        if time.monotonic() >= give_up_at:
            return answers | {id_: Cancellation.BUSY for id_ in ids if id_ not in answers}
        if len(answers) < len(ids):
            time.sleep(BUSY_PAUSE)
    return answers


def _try(store: Store, ids: list[int]) -> dict[int, Cancellation]:
    """Those that have ended by now; the others are locked, or changed as they were read."""
    from delayedq.models import Message  # a project that has forgotten the app is told so by its checks

    rows = Message.objects.using(store.alias).filter(id__in=ids)
    seen = {row.pk: Seen._make(getattr(row, name) for name in Seen._fields) for row in rows}
    operator = operator_store(store.alias)
    with transaction.atomic(using=store.alias):
        waiting = operator.cancel(list(seen.values()))
        running = operator.stop([one for id_, one in seen.items() if id_ not in waiting])
    answers = {id_: Cancellation.ENDED for id_ in ids if id_ not in seen}
    answers |= dict.fromkeys(waiting, Cancellation.CANCELLED)
    return answers | dict.fromkeys(running, Cancellation.STOPPED)
