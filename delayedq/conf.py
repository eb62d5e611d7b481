"""`settings.DELAYEDQ` as one frozen, validated value."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cache
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What `DELAYEDQ = {...}` may hold, with the defaults."""

    #: How long a claim holds; a running message's lease is renewed three times in it.
    LEASE: timedelta = timedelta(seconds=60)
    #: How long an idle worker sleeps at most when nothing wakes it.
    POLL_INTERVAL: timedelta = timedelta(seconds=3)
    #: When workers store how tasks ended: several at a time ("batched": as soon as no other task runs, or some
    #: milliseconds later), or "each" as soon as it has returned, which takes up to a trip to the database per message.
    ACKNOWLEDGE: str = "batched"
    #: How long history is kept, dead letters excepted; None keeps it for ever.
    RETENTION: timedelta | None = timedelta(days=30)
    #: The largest payload that is stored, in bytes of its JSON.
    MAX_PAYLOAD_BYTES: int = 1_000_000
    #: Where the pipeline keeps ended messages: a directory, or a URL that Spark can write to. None: it has no lake.
    LAKE: str | None = None
    #: The archive moves history that is older; below RETENTION, or it is pruned before.
    ARCHIVE_AFTER: timedelta = timedelta(days=7)
    #: Where the pipeline's Spark runs: a master ("local[*]"), or the address of a Spark Connect server ("sc://...").
    SPARK_MASTER: str | None = None
    SPARK_REMOTE: str | None = None
    #: Where executors find the URL of the database ("env:NAME" or "file:PATH"). None: on this machine, in a file that
    #: is there while the pipeline runs.
    SPARK_ADDRESS: str | None = None
    #: Schedules by name; see `delayedq.cron.definitions`, which reads them.
    CRON: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("LEASE", "POLL_INTERVAL", "ARCHIVE_AFTER"):
            _positive_duration(name, getattr(self, name))
        if self.RETENTION is not None:
            _positive_duration("RETENTION", self.RETENTION)
        if type(self.MAX_PAYLOAD_BYTES) is not int or self.MAX_PAYLOAD_BYTES <= 0:
            raise ImproperlyConfigured(
                _problem("MAX_PAYLOAD_BYTES", "a number of bytes over 0", self.MAX_PAYLOAD_BYTES)
            )
        if self.ACKNOWLEDGE not in {"batched", "each"}:
            raise ImproperlyConfigured(_problem("ACKNOWLEDGE", '"batched" or "each"', self.ACKNOWLEDGE))
        for name in ("LAKE", "SPARK_MASTER", "SPARK_REMOTE", "SPARK_ADDRESS"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise ImproperlyConfigured(_problem(name, "a text, or None", value))
        if not isinstance(self.CRON, dict):
            raise ImproperlyConfigured(_problem("CRON", "a dict of schedules by name", self.CRON))


@cache
def get_settings() -> Settings:
    """The validated settings of the project.

    Raises ImproperlyConfigured, naming the path, for an unknown key or a wrong value.
    """
    return parse(getattr(django_settings, "DELAYEDQ", {}))


def parse(given: Any) -> Settings:
    if not isinstance(given, dict):
        raise ImproperlyConfigured(f"DELAYEDQ must be a dict, not {type(given).__name__}.")
    known = [field.name for field in fields(Settings)]
    for name in given:
        if name not in known:
            raise ImproperlyConfigured(f"DELAYEDQ[{name!r}] is unknown; known are {', '.join(known)}.")
    return Settings(**given)


def _positive_duration(name: str, value: object) -> None:
    if not isinstance(value, timedelta) or value <= timedelta():
        raise ImproperlyConfigured(_problem(name, "a timedelta over zero", value))


def _problem(name: str, wanted: str, value: object) -> str:
    return f"DELAYEDQ[{name!r}] must be {wanted}, not {value!r}."


@receiver(setting_changed)
def _forget(*, setting: str, **_: object) -> None:
    if setting == "DELAYEDQ":
        get_settings.cache_clear()
