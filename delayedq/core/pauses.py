"""How long to wait before the next try to reach a database that is away."""

from __future__ import annotations

from datetime import timedelta

from delayedq.core.backoff import Exponential

#: Pauses between tries to reach the database, from the number of failures.
RECONNECTING = Exponential(initial=timedelta(seconds=0.1), factor=2, maximum=timedelta(seconds=10))
