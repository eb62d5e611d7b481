"""`settings.DELAYEDQ` as one frozen, validated value."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver

from delayedq.core.bounds import MAX_PAYLOAD_BYTES, NAME_LENGTH, is_storable
from delayedq.limits.rules import Limit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager


#: A lease and a wait for the database are at least so long; any duration can be added to the time of now.
SHORTEST, LONGEST = timedelta(milliseconds=10), timedelta(days=36_500)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The keys of `DELAYEDQ = {...}` with their types and defaults. Raises ImproperlyConfigured for a wrong value."""

    #: Duration of a lease (visibility timeout). The lease of a running message is renewed three times in it.
    LEASE: timedelta = timedelta(seconds=60)
    #: Longest sleep of an idle worker that no notification wakes.
    POLL_INTERVAL: timedelta = timedelta(seconds=3)
    #: When workers store results: "batched" (several in one statement, at most some milliseconds after the task
    #: returned), or "each" as soon as its task has returned, which takes up to one round trip per message.
    ACKNOWLEDGE: str = "batched"
    #: A worker process is ended and replaced when its loop is silent for this long, as a task holds the interpreter. A
    #: thread is lost when its task runs on for this long after its timeout; half of the threads lost end it too.
    HUNG_AFTER: timedelta = timedelta(seconds=60)
    #: A worker gives up a connection on which the database has not answered for this long, and opens a new one: the
    #: lease keeper after this time, claims after twice and scans after four times of it. None: a quarter of the lease.
    ANSWER_WITHIN: timedelta | None = None
    #: PostgreSQL: where the listener of a worker connects (a URL or libpq's keywords), if the alias leads to a pooler
    #: that gives a session to each transaction, as PgBouncer does: LISTEN gets nothing there. None: as the alias does.
    LISTENER_DSN: str | None = None
    #: How long a worker gives back messages whose task it does not know, or whose arguments do not fit, before it sets
    #: them aside: in a rolling deploy a worker of the other version can run them.
    DEPLOY_GRACE: timedelta = timedelta(minutes=10)
    #: How long history is kept; dead letters are never pruned. None: never deleted.
    RETENTION: timedelta | None = timedelta(days=30)
    #: Largest payload, in bytes of its JSON.
    MAX_PAYLOAD_BYTES: int = MAX_PAYLOAD_BYTES
    #: Where the pipeline keeps ended messages: a directory, or a URL that Spark and this process can write to.
    LAKE: str | None = None
    #: A directory through which Spark and this process exchange the files of a lake in S3, if Spark can't reach it.
    LAKE_STAGING: str | None = None
    #: What tells the rows of this database from those of others that share the lake. None: the name of the database.
    LAKE_SOURCE: str | None = None
    #: The archive moves history that is older than this. Must be below RETENTION, which deletes what is older.
    ARCHIVE_AFTER: timedelta = timedelta(days=7)
    #: Where the pipeline's Spark runs: a master ("local[*]"), or the address of a Spark Connect server ("sc://...").
    SPARK_MASTER: str | None = None
    SPARK_REMOTE: str | None = None
    #: Where executors find the URL of the database ("env:NAME" or "file:PATH"). None: in a file on this machine that
    #: exists while the pipeline runs.
    SPARK_ADDRESS: str | None = None
    #: Decides, for each argument, result and text of an error, what is shown of it: a callable, or its dotted path. See
    #: `delayedq.masking`. None: only what tasks name as sensitive is masked.
    REDACT: str | Callable[[str, str, Any], Any] | None = None
    #: Decides who may see how far a message has come in `delayedq.views.status`: a callable that takes the request and
    #: the result, or its dotted path. None: who has its signed id.
    STATUS_PERMISSION: str | Callable[[Any, Any], bool] | None = None
    #: Within this time messages are to start, as `delayedq_threads_needed` of the metrics takes it.
    TARGET_LATENCY: timedelta = timedelta(seconds=30)
    #: Functions, or their dotted paths, that take a task and return what is added to the metadata of its messages; and
    #: those that take an attempt and return a context manager around it: see `delayedq.hooks`.
    METADATA_FROM: Sequence[str | Callable[[Any], dict[str, Any]]] = ()
    AROUND_ATTEMPTS: Sequence[str | Callable[[Any], AbstractContextManager[object]]] = ()
    #: What the archive writes of the arguments and results of sensitive tasks: "plain", as they are, or "masked". What
    #: was masked can't be sent again.
    ARCHIVE_SENSITIVE: str = "plain"
    #: Schedules by name; see `delayedq.cron.definitions`, which reads them.
    CRON: dict[str, Any] = field(default_factory=dict)
    #: A schedule that no worker's settings have any more is retired when none has had it for this long: the time that
    #: a deploy takes.
    CRON_GRACE: timedelta = timedelta(minutes=10)
    #: Limits of whole queues, tasks (by their paths) and shared limits, by name: a Limit, or a dict with its terms.
    LIMITS: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _duration("DEPLOY_GRACE", self.DEPLOY_GRACE, timedelta())
        for name in ("POLL_INTERVAL", "HUNG_AFTER", "ARCHIVE_AFTER", "CRON_GRACE", "TARGET_LATENCY"):
            _duration(name, getattr(self, name))
        _duration("LEASE", self.LEASE, SHORTEST)
        if self.RETENTION is not None:
            _duration("RETENTION", self.RETENTION)
        if self.ANSWER_WITHIN is not None:
            _duration("ANSWER_WITHIN", self.ANSWER_WITHIN, SHORTEST)
        if type(self.MAX_PAYLOAD_BYTES) is not int or self.MAX_PAYLOAD_BYTES <= 0:
            raise ImproperlyConfigured(
                _problem("MAX_PAYLOAD_BYTES", "a number of bytes over 0", self.MAX_PAYLOAD_BYTES)
            )
        _one_of("ACKNOWLEDGE", self.ACKNOWLEDGE, "batched", "each")
        _one_of("ARCHIVE_SENSITIVE", self.ARCHIVE_SENSITIVE, "plain", "masked")
        _callable_or_path("REDACT", self.REDACT)
        _callable_or_path("STATUS_PERMISSION", self.STATUS_PERMISSION)
        _callables("METADATA_FROM", self.METADATA_FROM)
        _callables("AROUND_ATTEMPTS", self.AROUND_ATTEMPTS)
        for name in _TEXTS:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise ImproperlyConfigured(_problem(name, "a text, or None", value))
        if self.LISTENER_DSN is not None:
            _address_of_postgresql("LISTENER_DSN", self.LISTENER_DSN)
        if not isinstance(self.CRON, dict):
            raise ImproperlyConfigured(_problem("CRON", "a dict of schedules by name", self.CRON))
        object.__setattr__(self, "LIMITS", _limits(self.LIMITS))


_TEXTS = ("LAKE", "LAKE_STAGING", "LAKE_SOURCE", "LISTENER_DSN", "SPARK_MASTER", "SPARK_REMOTE", "SPARK_ADDRESS")


class ExtraMissing(ImproperlyConfigured):
    """The settings or the URLs use an optional library that is missing, or too old; the message names its extra."""


#: What modules lack that the URLs import, a sentence each.
missing_extras: list[str] = []


def note_missing(problem: str) -> None:
    """Have a system check tell it (E009), for a module whose import must not fail."""
    missing_extras.append(problem)


@cache
def get_settings() -> Settings:
    """Return the validated settings of the project; read once, and again after `override_settings`.

    Raises ImproperlyConfigured, naming the path, for an unknown key or a wrong value.
    """
    return parse(getattr(django_settings, "DELAYEDQ", {}))


def parse(given: Any) -> Settings:
    if not isinstance(given, dict):
        cure = 'Leave it out, or name what you set, as in {"MAX_PAYLOAD_BYTES": 65_536}.'
        raise ImproperlyConfigured(f"DELAYEDQ must be a dict, not {type(given).__name__}. {cure}")
    known = [field.name for field in fields(Settings)]
    for name in given:
        if name not in known:
            raise ImproperlyConfigured(f"DELAYEDQ[{name!r}] is unknown; known are {', '.join(known)}.")
    return Settings(**given)


def _limits(given: object) -> dict[str, Limit]:
    if not isinstance(given, dict):
        raise ImproperlyConfigured(_problem("LIMITS", "a dict of limits by the name of a queue or task", given))
    limits = {}
    for name, terms in given.items():
        try:
            limits[name] = _limit(name, terms)
        except (TypeError, ValueError) as error:
            problem = str(error).removeprefix("Limit.__init__() ").removesuffix(".")
            raise ImproperlyConfigured(
                f"DELAYEDQ['LIMITS'][{name!r}]: {problem}; it has concurrency, rate, size and on_full."
            ) from None
    return limits


def _limit(name: object, terms: Any) -> Limit:
    if not isinstance(name, str) or not name.strip() or len(name) > NAME_LENGTH or not is_storable(name):
        raise ValueError(
            f"the name of a queue, a task or a shared limit is a text of 1 to {NAME_LENGTH} characters, not {name!r}"
        )
    if not isinstance(terms, Limit | dict):
        raise TypeError(f"a limit is a Limit, or a dict of its terms, not {terms!r}")
    limit = terms if isinstance(terms, Limit) else Limit(**terms)
    if limit.name not in {None, name}:
        raise ValueError(f"this Limit has another name, {limit.name!r}")
    if limit.is_of_channels:
        raise ValueError("weight, share and order are those of channels by themselves")
    return limit


def _duration(name: str, value: object, shortest: timedelta = timedelta.resolution) -> None:
    if not isinstance(value, timedelta) or not shortest <= value <= LONGEST:
        least = {timedelta(): "not below zero", timedelta.resolution: "over zero"}.get(shortest, f"at least {shortest}")
        raise ImproperlyConfigured(_problem(name, f"a timedelta, {least} and at most {LONGEST.days:,} days", value))


def _address_of_postgresql(name: str, value: str) -> None:
    try:
        from psycopg import Error
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:  # the system checks tell that
        return
    try:
        conninfo_to_dict(value)
    except Error as error:
        wanted = f"a URL (postgresql://...) or keywords of libpq (host=... dbname=...): {str(error).strip()}"
        raise ImproperlyConfigured(f"DELAYEDQ[{name!r}] must be {wanted}.") from None


def _one_of(name: str, value: object, *choices: str) -> None:
    if value not in choices:
        raise ImproperlyConfigured(_problem(name, " or ".join(f'"{choice}"' for choice in choices), value))


def _callable_or_path(name: str, value: object) -> None:
    if not (value is None or _is_callable_or_path(value)):
        raise ImproperlyConfigured(_problem(name, "a callable, its dotted path, or None", value))


def _callables(name: str, value: object) -> None:
    if not isinstance(value, list | tuple) or not all(map(_is_callable_or_path, value)):
        raise ImproperlyConfigured(_problem(name, "a list of callables, or of their dotted paths", value))


def _is_callable_or_path(value: object) -> bool:
    """No text that `import_string` answers with something else than an ImportError, as it does to `..`."""
    return callable(value) or (isinstance(value, str) and "." in value and all(map(str.isidentifier, value.split("."))))


def _problem(name: str, wanted: str, value: object) -> str:
    return f"DELAYEDQ[{name!r}] must be {wanted}, not {value!r}."


@receiver(setting_changed)
def _forget(*, setting: str, **_: object) -> None:
    if setting == "DELAYEDQ":
        get_settings.cache_clear()
