"""Live messages: the table, and what to read from it.

The lease columns are in no index and in no index predicate, so that on PostgreSQL a claim is a heap-only update.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Self

from django.db import models
from django.db.models import Exists, OuterRef, Q, Value, functions
from django.utils.translation import gettext_lazy as _

from delayedq import clock
from delayedq.core.bounds import KEY_LENGTH, NAME_LENGTH
from delayedq.core.errors import LINE_LENGTH
from delayedq.models.calls import StoredCall, StoredCallQuerySet
from delayedq.models.stored_json import StoredJSON
from delayedq.sql.priority import shown_priority

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from django.core.checks import CheckMessage
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models.sql.compiler import SQLCompiler


class Now(functions.Now):
    """The database's clock. MySQL's own would be that of its server's time zone, and what it stores is in UTC."""

    def resolve_expression(self, *args: Any, **kwargs: Any) -> Any:
        """The moment that a test has chosen takes its place."""
        moment = clock.chosen()
        return super().resolve_expression(*args, **kwargs) if moment is None else Value(moment)

    def as_mysql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **context: Any) -> tuple[str, Any]:
        return self.as_sql(compiler, connection, template="UTC_TIMESTAMP(6)", **context)


def _without_partial(found: list[CheckMessage]) -> list[CheckMessage]:
    return [message for message in found if message.id != "models.W036"]


class PartialUnique(models.UniqueConstraint):
    """Unique among some rows. MySQL has no partial index; the migration makes a plain one there, which allows NULLs."""

    def check(self, model: type[models.Model], connection: BaseDatabaseWrapper) -> list[CheckMessage]:
        return _without_partial(super().check(model, connection))

    def _check(self, model: type[models.Model], connection: BaseDatabaseWrapper) -> list[CheckMessage]:
        """The same, by its name in Django 5.2."""
        return _without_partial(super()._check(model, connection))  # type: ignore[misc]

    def deconstruct(self) -> tuple[str, Any, dict[str, Any]]:
        """In migrations it is a plain UniqueConstraint."""
        _, arguments, options = super().deconstruct()
        return "django.db.models.UniqueConstraint", arguments, options


def has_run_out(now: datetime | Now) -> Q:
    """Messages whose lease has run out, and was not renewed beside its row (`LockedRenewal`)."""
    return Q(lease_token__isnull=False, leased_until__lte=now) & ~_renewed_beside(now)


def is_held(now: datetime | Now) -> Q:
    """Messages whose lease holds, by their row or beside it."""
    return Q(lease_token__isnull=False) & (Q(leased_until__gt=now) | _renewed_beside(now))


def is_free(now: datetime | Now) -> Q:
    """Messages without a lease, or whose lease has run out."""
    return Q(lease_token__isnull=True) | has_run_out(now)


def _renewed_beside(now: datetime | Now) -> Q:
    renewals = LockedRenewal.objects.filter(
        message_id=OuterRef("id"), lease_token=OuterRef("lease_token"), leased_until__gt=now
    )
    return Q(Exists(renewals))


def with_renewals(messages: Iterable[Message], now: datetime, using: str) -> list[Message]:
    """The same; where a lease was renewed beside its locked row, a copy whose `leased_until` says until when it holds.

    One query if a lease has run out by its row, else none.
    """
    given = list(messages)
    run_out = [one.pk for one in given if one.leased_until is not None and one.leased_until <= now]
    beside = LockedRenewal.objects.using(using).in_bulk(run_out) if run_out else {}
    return [_renewed(one, beside[one.pk]) if one.pk in beside else one for one in given]


def _renewed(message: Message, renewal: LockedRenewal) -> Message:
    if renewal.lease_token != message.lease_token:
        return message
    renewed = copy(message)
    renewed.leased_until = renewal.leased_until
    return renewed


class Priority(models.SmallIntegerField):  # type: ignore[type-arg]  # Django does not know arguments
    """The priority that a message was given. That of a message with a channel is stored lower: see `limits.rules`."""

    def from_db_value(self, value: int, *_: object) -> int:
        return shown_priority(value)

    def deconstruct(self) -> tuple[str, str, Any, Any]:
        """In migrations it is a plain SmallIntegerField."""
        name, _, arguments, options = super().deconstruct()
        return name, "django.db.models.SmallIntegerField", arguments, options


class MessageQuerySet(StoredCallQuerySet["Message"]):
    """Live messages by state, judged by the database's clock: `Message.objects.due().filter(queue="mail").count()`."""

    def due(self) -> Self:
        """Those that would be claimed now, ordered by due time, as within one queue and priority."""
        return self.waiting().filter(scheduled_at__lte=Now()).order_by("scheduled_at", "id")

    def scheduled(self) -> Self:
        """Those that are due later, ordered by due time."""
        return self.waiting().filter(scheduled_at__gt=Now()).order_by("scheduled_at", "id")

    def waiting(self) -> Self:
        """Those without a valid lease: never claimed, given back, or their lease expired."""
        return self.filter(is_free(Now()))

    def leased(self) -> Self:
        """Those that a worker or consumer holds."""
        return self.filter(self.is_leased())

    @staticmethod
    def is_leased() -> Q:
        """The condition of `leased`, for use in other queries."""
        return is_held(Now())

    def expired(self) -> Self:
        """Those whose lease expired (their worker was killed or froze), and which were not claimed since."""
        return self.filter(has_run_out(Now()))

    def retrying(self) -> Self:
        """Those that failed at least once and wait for their next attempt."""
        return self.waiting().filter(attempt__gt=0)

    def keyed(self, kind: str, key: str) -> Self:
        """The message with this key of this kind (the path of a task): at most one."""
        return self.filter(kind=kind, key=key)


class Message(StoredCall, models.Model):
    """A live message: scheduled, due, or leased by a worker."""

    id = models.BigAutoField(primary_key=True)
    scheduled_at = models.DateTimeField("due", help_text="When it may start; a retry moves it.")
    scheduled_at_initially = models.DateTimeField(help_text="When it was asked to start.")
    created_at = models.DateTimeField("created")
    generation = models.IntegerField(default=0, help_text="How often the keyed message was replaced.")
    priority = Priority(default=0, help_text="-100 to 100; higher runs first.")
    max_attempts = models.SmallIntegerField()
    queue = models.CharField(max_length=NAME_LENGTH)
    kind = models.CharField(max_length=NAME_LENGTH, help_text="What reads the payload: the path of the task.")
    key = models.CharField(max_length=KEY_LENGTH, null=True, blank=True, help_text="Unique within its kind.")

    # What a claim writes lies between what it does not: PostgreSQL logs a row from the first byte that changed to the
    # last one. SQLite reads what lies behind a long payload more slowly.
    leased_until = models.DateTimeField(null=True, blank=True)
    claimed_at = models.DateTimeField(null=True, blank=True, help_text="When a worker last claimed it.")
    lease_token = models.BigIntegerField(null=True, blank=True, help_text="Fences every write after the claim.")
    attempt = models.SmallIntegerField(default=0, help_text="Charged at the claim.")
    leased_by = models.CharField(max_length=NAME_LENGTH, null=True, blank=True)

    payload = models.TextField(help_text="JSON.")
    metadata = StoredJSON(null=True, blank=True, help_text="JSON.")
    errors = models.TextField(null=True, blank=True, help_text="JSON: one record per failed attempt.")

    objects = MessageQuerySet.as_manager()

    class Meta:
        verbose_name = _("message")
        verbose_name_plural = _("messages")
        default_permissions = ("view",)
        permissions: ClassVar = [
            ("reschedule_message", "Can run, reschedule and move messages"),
            ("cancel_message", "Can cancel messages"),
            ("retry_message", "Can retry dead letters"),
            ("discard_message", "Can discard dead letters"),
            ("stop_message", "Can stop running messages"),
            ("send_message", "Can send messages"),
            ("edit_payload", "Can edit the arguments of waiting messages"),
            ("view_payload", "Can see arguments, results and errors"),
            ("export_message", "Can export messages"),
        ]
        # A message is in three indexes with the primary key, and no more: each is written once per message. A fourth
        # one has only those that a task has made. On PostgreSQL this one has a condition that is always true. Migration
        # 0001 makes both, and says why.
        indexes: ClassVar = [models.Index(fields=["queue", "priority", "scheduled_at", "id"], name="delayedq_due")]
        constraints: ClassVar = [
            PartialUnique(fields=["kind", "key"], condition=Q(key__isnull=False), name="delayedq_key"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.key or self.pk}"

    @property
    def attempts(self) -> int:
        """How often it was started: `attempt`, under the name that an ended message has for it."""
        return self.attempt


class LockedRenewal(models.Model):
    """The renewed lease of a message whose row another open transaction has locked.

    A lease that ran out in the message's own row still holds while this one does. There is no foreign key: its check
    would wait for the locked row.
    """

    message_id = models.BigIntegerField(primary_key=True)
    lease_token = models.BigIntegerField()
    leased_until = models.DateTimeField()

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"message {self.message_id} until {self.leased_until}"


class Dashboard(Message):
    """The admin's dashboard as a model without a table: a menu entry, and the permission to view it."""

    class Meta:
        proxy = True
        default_permissions = ("view",)
        verbose_name = _("dashboard")
        verbose_name_plural = _("dashboard")


# History: one row per ended message, written by the statement that deletes the live one.


#: Checks that complain of databases without partial indexes, or without columns in an index that are no part of its
#: order. MySQL has a plain index instead of a partial one, unless migration 0001 leaves it out.
_MEANT = {"models.W037", "models.W040"}


class Outcome(models.TextChoices):
    """How a message ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    #: It was not started while it was worth it.
    EXPIRED = "expired"
    #: The attempt ended after its keyed message had been replaced, which then ran on its own.
    SUPERSEDED = "superseded"


class FinishedMessageQuerySet(StoredCallQuerySet["FinishedMessage"]):
    """Ended messages by outcome: `FinishedMessage.objects.failed().filter(queue="mail")`."""

    def succeeded(self) -> Self:
        """Those whose task returned, or whose consumer acknowledged them."""
        return self.filter(outcome=Outcome.SUCCEEDED)

    def failed(self) -> Self:
        """The dead letters: those that failed at their last attempt, or could not run."""
        return self.filter(outcome=Outcome.FAILED)

    def cancelled(self) -> Self:
        """Those that were unscheduled, or cancelled by an operator or their own task."""
        return self.filter(outcome=Outcome.CANCELLED)

    def expired(self) -> Self:
        """Those that were not started while they were worth it, as the option `expires` of their task says."""
        return self.filter(outcome=Outcome.EXPIRED)

    def superseded(self) -> Self:
        """Attempts that ended after their message was replaced; the replacement has a row of its own when it ends."""
        return self.filter(outcome=Outcome.SUPERSEDED)


class FinishedMessage(StoredCall, models.Model):
    """History: one row per ended message, with the id that it had as a live message."""

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
    metadata = StoredJSON(null=True, blank=True)
    result = models.TextField(null=True, blank=True, help_text="JSON.")
    errors = models.TextField(null=True, blank=True, help_text="JSON: one record per failed attempt.")

    # Of dead letters alone: see `core.errors`.
    error = models.CharField(max_length=LINE_LENGTH, null=True, blank=True, help_text="The last error in one line.")
    fingerprint = models.BigIntegerField(null=True, blank=True, help_text="What alike errors share.")

    objects = FinishedMessageQuerySet.as_manager()

    class Meta:
        verbose_name = _("ended message")
        verbose_name_plural = _("history")
        default_permissions = ("view",)
        # The dead letters are few; what succeeds does not pay for it.
        indexes: ClassVar = [
            # On PostgreSQL it also has what dead letters are filtered by, so that no row is read to decide.
            models.Index(
                fields=["finished_at"],
                include=["id", "kind", "queue"],
                condition=Q(outcome="failed"),
                name="delayedq_dead",
            ),
            models.Index(
                fields=["fingerprint", "finished_at", "id"],
                condition=Q(fingerprint__isnull=False),
                name="delayedq_fingerprint",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.key or self.pk} {self.outcome}"

    @classmethod
    def check(cls, **options: Any) -> list[CheckMessage]:
        """As Django does, without what is meant: see `_MEANT`."""
        return [message for message in super().check(**options) if message.id not in _MEANT]
