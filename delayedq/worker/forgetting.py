"""What the lease keeper removes besides history, and what apps look at: page by page, and later on where it stopped."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from django.db import Error

from delayedq.conf import get_settings
from delayedq.flows.forgetting import forget_flows
from delayedq.store.expiring import expire_results
from delayedq.store.pages import Page, looks_of_apps
from delayedq.store.progress import forget_progress
from delayedq.store.steps import forget_steps

if TYPE_CHECKING:
    from delayedq.store.base import Store
    from delayedq.store.pages import Look

logger = logging.getLogger("delayedq")


def _forget_flows(store: Store, after: Any) -> Page:
    retention = get_settings().RETENTION
    return Page(0, None) if retention is None else forget_flows(store, retention, after)


LOOKS: tuple[Look, ...] = (expire_results, _forget_flows, forget_progress, forget_steps)


class Forgetting:
    """Rounds over these rows. Most of them stay: a round that takes long goes on later, and begins nothing anew."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._looks = [*LOOKS, *looks_of_apps()]
        self._after: Any = None

    def go_on(self, pause_at: float) -> bool:
        """Until the round is over, or this moment of `time.monotonic()`.

        Returns whether there is more to remove: nothing of a long round that only finds what stays is pressing.
        """
        removed = 0
        while self._looks:
            removed += self._look().removed
            if self._looks and time.monotonic() >= pause_at:
                return removed > 0
        self._looks = [*LOOKS, *looks_of_apps()]
        return False

    def _look(self) -> Page:
        """The next page. After an error the round goes on with the others: one table that is locked, or was not
        migrated, and an app with a defect hold up nothing else.
        """
        try:
            page = self._looks[0](self._store, self._after)
        except Exception as error:
            look, self._after = self._looks.pop(0), None
            if isinstance(error, Error):
                raise
            logger.exception("A look at rows of an app has failed: %s.", getattr(look, "__qualname__", look))
            return Page(0, None)
        self._after = page.reached
        if page.reached is None:
            self._looks.pop(0)
        return page
