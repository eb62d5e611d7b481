"""How long to wait before the next try, from the number of failures (1 is the first)."""

from __future__ import annotations

from datetime import timedelta

from delayedq.core.backoff import Exponential

#: To reach a database that is away.
RECONNECTING = Exponential(initial=timedelta(seconds=0.1), factor=2, maximum=timedelta(seconds=10))
#: To start a process again that died soon after its start.
RESTARTING = Exponential(initial=timedelta(seconds=0.5), factor=2, maximum=timedelta(seconds=10))
#: To release messages that somebody's transaction has locked.
RELEASING = Exponential(initial=timedelta(seconds=0.05), factor=2, maximum=timedelta(seconds=1))
#: To find what a claim has leased that commits after its worker died: each search reads the whole table.
SEARCHING = Exponential(initial=timedelta(seconds=1), factor=2, maximum=timedelta(hours=1), jitter=0.0)
