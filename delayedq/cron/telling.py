"""What cron did, sent as signals after commit: the log is one of their receivers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from django.db import transaction

from delayedq import signals

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from delayedq.store.base import Store

logger = logging.getLogger("delayedq")


def tell_placed(store: Store, schedule: str, nominal_at: datetime, message_id: int | None) -> None:
    """Sends nothing if the log is the only receiver and its level is above DEBUG."""
    if len(signals.tick_placed.receivers) > 1 or logger.isEnabledFor(logging.DEBUG):
        _after_commit(
            store,
            lambda: signals.tick_placed.send_robust(schedule, nominal_at=nominal_at, message_id=message_id),
        )


def tell_missed(store: Store, schedule: str, first: datetime, last: datetime, reason: str) -> None:
    _after_commit(store, lambda: signals.tick_missed.send_robust(schedule, nominal_at=first, until=last, reason=reason))


def tell_changed(store: Store, schedule: str, change: str, taken_back: int) -> None:
    _after_commit(store, lambda: signals.schedule_changed.send_robust(schedule, change=change, taken_back=taken_back))


def _after_commit(store: Store, send: Callable[[], object]) -> None:
    transaction.on_commit(send, using=store.alias, robust=True)
