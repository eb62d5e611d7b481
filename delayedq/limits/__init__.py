"""Limits and channels: how many messages run, start and wait at once, and in whose turn. `docs/limits.md` is the guide.

    limits.set("webhooks", concurrency=10)                        # a queue
    limits.set("shop.tasks.deliver", channel="acme", rate=Rate(1, per=timedelta(seconds=1)))
    limits.clear("webhooks")                                      # what the code says holds again
    limits.pause("shop.tasks.deliver", channel="acme")            # until limits.resume(...)

A message that has a limit waits in a channel, in a lane of its own: whoever uses no limit never comes here. `rules`
says what a limit is and judges, without a database. `declared` knows the limits that the code has, `setting` those
that are set live. `feature` is what the store asks. `offers` and `sizes` are what an offer does, `channels` what a
claim and a settlement read and write, `claims` the claim itself, which visits the channels in turn and finds what waits
and runs in them (`places`, `places_held`). `postgresql`, `mysql` and `sqlite` do it in their words. `operator`, `admin`
and `command` are for who operates them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delayedq.limits.rules import Limit, Rate
    from delayedq.limits.setting import clear, holding, live, pause, resume, rules_for, set, skip  # noqa: A004

__all__ = ["Limit", "Rate", "clear", "holding", "live", "pause", "resume", "rules_for", "set", "skip"]


def __getattr__(name: str) -> Any:
    """On first use, so that `rules` can be imported without Django."""
    if name not in __all__:
        raise AttributeError(f"module 'delayedq.limits' has no attribute {name!r}")
    home = "rules" if name in {"Limit", "Rate"} else "setting"
    return getattr(import_module(f"delayedq.limits.{home}"), name)
