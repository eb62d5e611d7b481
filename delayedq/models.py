"""The tables: what lives, what ended, and the ticks of cron schedules.

What operators do is in `model_operations`, the books of the pipeline in `model_pipeline`.

`Message` holds live rows only; the lease columns are in no index and in no index predicate, so that on PostgreSQL a
claim is a heap-only update. `FinishedMessage` gets one row per ended message, written by the statement that deletes
the live one. Both share one sequence of ids: a message keeps its id through its whole life.

The QuerySet verbs are for reading. Whatever changes a message goes through `delayedq.store`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from django.db import models
from django.db.models import Q, functions

from delayedq.core.limits import KEY_LENGTH, NAME_LENGTH

if TYPE_CHECKING:
    from datetime import datetime

    from django.core.checks import CheckMessage
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models.sql.compiler import SQLCompiler


HASH_LENGTH = 64


class Now(functions.Now):
    """The database's clock. MySQL's own would be that of its server's time zone, and what it stores is in UTC."""

    def as_mysql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **context: Any) -> tuple[str, Any]:
        return self.as_sql(compiler, connection, template="UTC_TIMESTAMP(6)", **context)


class UniqueIfSet(models.UniqueConstraint):
    """MySQL has no partial index. Our migration makes a plain one there, in which no NULL equals another either."""

    def check(self, model: type[models.Model], connection: BaseDatabaseWrapper) -> list[CheckMessage]:
        return [message for message in super().check(model, connection) if message.id != "models.W036"]

    def deconstruct(self) -> tuple[str, Any, dict[str, Any]]:
        """To migrations it is what it inherits from."""
        _, arguments, options = super().deconstruct()
        return "django.db.models.UniqueConstraint", arguments, options


class IndexOfSome(models.Index):
    """MySQL has no partial index, and does without: there a walk through the history looks at every row."""

    def check(self, model: type[models.Model], connection: BaseDatabaseWrapper) -> list[CheckMessage]:
        return [message for message in super().check(model, connection) if message.id != "models.W037"]

    def deconstruct(self) -> tuple[str, Any, dict[str, Any]]:
        """To migrations it is what it inherits from."""
        _, arguments, options = super().deconstruct()
        return "django.db.models.Index", arguments, options

    def __eq__(self, other: object) -> bool:
        return isinstance(other, models.Index) and self.deconstruct() == other.deconstruct()

    __hash__ = None  # type: ignore[assignment]  # as in what it inherits from


class MessageQuerySet(models.QuerySet["Message"]):
    """Each verb compares with the database's clock."""

    def due(self) -> Self:
        """Would be claimed now, in the order of one queue and priority."""
        return self.waiting().filter(scheduled_at__lte=Now()).order_by("scheduled_at", "id")

    def scheduled(self) -> Self:
        """Waits for its time."""
        return self.waiting().filter(scheduled_at__gt=Now()).order_by("scheduled_at", "id")

    def waiting(self) -> Self:
        """No worker holds it: never claimed, given back, or its lease expired."""
        return self.filter(Q(lease_token__isnull=True) | Q(leased_until__lte=Now()))

    def leased(self) -> Self:
        """A worker holds it."""
        return self.filter(lease_token__isnull=False, leased_until__gt=Now())

    def expired(self) -> Self:
        """Its worker died or froze: the lease ran out and nobody has claimed it since."""
        return self.filter(lease_token__isnull=False, leased_until__lte=Now())

    def retrying(self) -> Self:
        """Failed at least once and waits for its next attempt."""
        return self.waiting().filter(attempt__gt=0)

    def keyed(self, kind: str, key: str) -> Self:
        return self.filter(kind=kind, key=key)


class Message(models.Model):
    """A live message: scheduled, due, or leased by a worker."""

    id = models.BigAutoField(primary_key=True)
    scheduled_at = models.DateTimeField("due", help_text="When it may start; a retry moves it.")
    scheduled_at_initially = models.DateTimeField(help_text="When it was asked to start.")
    created_at = models.DateTimeField("created")
    leased_until = models.DateTimeField(null=True, blank=True)
    lease_token = models.BigIntegerField(null=True, blank=True, help_text="Fences every write after the claim.")
    generation = models.IntegerField(default=0, help_text="How often the keyed message was replaced.")
    priority = models.SmallIntegerField(default=0, help_text="-100 to 100; higher runs first.")
    attempt = models.SmallIntegerField(default=0, help_text="Charged at the claim.")
    max_attempts = models.SmallIntegerField()
    queue = models.CharField(max_length=NAME_LENGTH)
    kind = models.CharField(max_length=NAME_LENGTH, help_text="What reads the payload: the path of the task.")
    key = models.CharField(max_length=KEY_LENGTH, null=True, blank=True, help_text="Unique within its kind.")
    leased_by = models.CharField(max_length=NAME_LENGTH, null=True, blank=True)
    payload = models.TextField(help_text="JSON.")
    metadata = models.TextField(null=True, blank=True, help_text="JSON.")
    errors = models.TextField(null=True, blank=True, help_text="JSON: one record per failed attempt.")

    objects = MessageQuerySet.as_manager()

    class Meta:
        permissions: ClassVar = [
            ("reschedule_message", "Can run, reschedule and move messages"),
            ("cancel_message", "Can cancel messages"),
            ("retry_message", "Can retry dead letters"),
        ]
        # Three indexes with the primary key, and no more: each is written once per message. On PostgreSQL this one
        # has a condition that is always true; migration 0005 says why.
        indexes: ClassVar = [models.Index(fields=["queue", "priority", "scheduled_at", "id"], name="delayedq_due")]
        constraints: ClassVar = [
            UniqueIfSet(fields=["kind", "key"], condition=Q(key__isnull=False), name="delayedq_key"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.key or self.pk}"


class Dashboard(Message):
    """No table, but a place in the admin and a permission to see it."""

    class Meta:
        proxy = True
        default_permissions = ("view",)
        verbose_name = "dashboard"
        verbose_name_plural = "dashboard"


class Outcome(models.TextChoices):
    """How a message ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    #: The attempt ended after its keyed message had been replaced, which then ran on its own.
    SUPERSEDED = "superseded"


class FinishedMessageQuerySet(models.QuerySet["FinishedMessage"]):
    def succeeded(self) -> Self:
        return self.filter(outcome=Outcome.SUCCEEDED)

    def failed(self) -> Self:
        """The dead letters."""
        return self.filter(outcome=Outcome.FAILED)

    def cancelled(self) -> Self:
        return self.filter(outcome=Outcome.CANCELLED)

    def superseded(self) -> Self:
        return self.filter(outcome=Outcome.SUPERSEDED)


class FinishedMessage(models.Model):
    """History: one row per ended message, under the id it had in its life."""

    id = models.BigIntegerField(primary_key=True)
    finished_at = models.DateTimeField(db_index=True)
    started_at = models.DateTimeField(null=True, blank=True, help_text="Of the last attempt; empty if none started.")
    scheduled_at = models.DateTimeField("due")
    scheduled_at_initially = models.DateTimeField()
    created_at = models.DateTimeField("created")
    priority = models.SmallIntegerField()
    attempts = models.SmallIntegerField(help_text="How often it was started.")
    max_attempts = models.SmallIntegerField()
    outcome = models.CharField(max_length=10, choices=Outcome)
    queue = models.CharField(max_length=NAME_LENGTH)
    kind = models.CharField(max_length=NAME_LENGTH)
    key = models.CharField(max_length=KEY_LENGTH, null=True, blank=True)
    worker = models.CharField(max_length=NAME_LENGTH, null=True, blank=True)
    payload = models.TextField()
    metadata = models.TextField(null=True, blank=True)
    result = models.TextField(null=True, blank=True, help_text="JSON.")
    errors = models.TextField(null=True, blank=True, help_text="JSON: one record per failed attempt.")

    objects = FinishedMessageQuerySet.as_manager()

    class Meta:
        # The dead letters are few; what succeeds does not pay for it.
        indexes: ClassVar = [
            IndexOfSome(fields=["finished_at"], condition=Q(outcome="failed"), name="delayedq_dead"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.key or self.pk} {self.outcome}"


class CronSchedule(models.Model):
    """What the workers know of a schedule: the definition its future ticks were placed for, and how far."""

    owner = models.CharField(
        max_length=NAME_LENGTH, blank=True, help_text="Empty for settings; else the kind of the queue."
    )
    name = models.CharField(max_length=NAME_LENGTH)
    config_hash = models.CharField(
        max_length=HASH_LENGTH, blank=True, help_text="Of its definition; empty while there is none."
    )
    covered_until = models.DateTimeField(help_text="Up to here ticks were placed or passed over; no more will come.")
    attended_at = models.DateTimeField(null=True, blank=True, help_text="When a worker last saw to it.")
    disabled_at = models.DateTimeField(null=True, blank=True, help_text="Since then no tick is placed, by hand.")

    class Meta:
        permissions: ClassVar = [
            ("run_schedule", "Can run schedules now"),
            ("disable_schedule", "Can disable and enable schedules"),
        ]
        constraints: ClassVar = [models.UniqueConstraint(fields=["owner", "name"], name="delayedq_schedule")]

    def __str__(self) -> str:
        return self.name


class CronTickQuerySet(models.QuerySet["CronTick"]):
    def between(self, first: datetime, last: datetime) -> Self:
        """Both included."""
        return self.filter(nominal_at__gte=first, nominal_at__lte=last)


class CronTick(models.Model):
    """One tick of a schedule, placed as a message; it stays as the tombstone that keeps it from being placed again."""

    schedule = models.ForeignKey(CronSchedule, on_delete=models.CASCADE, related_name="ticks", db_index=False)
    nominal_at = models.DateTimeField(help_text="When the schedule says.")
    config_hash = models.CharField(max_length=HASH_LENGTH)
    message_id = models.BigIntegerField(null=True, blank=True)

    objects = CronTickQuerySet.as_manager()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["schedule", "nominal_at"], name="delayedq_tick")]

    def __str__(self) -> str:
        return f"{self.schedule_id} at {self.nominal_at:%Y-%m-%d %H:%M:%S%z}"


# Django looks for them here.
from delayedq.model_operations import Edit, EditedMessage, PausedQueue, Worker  # noqa: E402
from delayedq.model_pipeline import ArchiveBatch, ArchiveState, Load, LoadStaging, LoadState  # noqa: E402

__all__ = [
    "ArchiveBatch",
    "ArchiveState",
    "CronSchedule",
    "CronTick",
    "CronTickQuerySet",
    "Dashboard",
    "Edit",
    "EditedMessage",
    "FinishedMessage",
    "FinishedMessageQuerySet",
    "Load",
    "LoadStaging",
    "LoadState",
    "Message",
    "MessageQuerySet",
    "Now",
    "Outcome",
    "PausedQueue",
    "Worker",
]
