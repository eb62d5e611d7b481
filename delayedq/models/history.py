"""History: one row per ended message, written by the statement that deletes the live one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from delayedq.core.fingerprints import LINE_LENGTH
from delayedq.core.limits import KEY_LENGTH, NAME_LENGTH
from delayedq.models.calls import StoredCall, StoredCallQuerySet
from delayedq.models.stored_json import StoredJSON

if TYPE_CHECKING:
    from django.core.checks import CheckMessage


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

    # Of dead letters alone: see `core.fingerprints`.
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
