"""The tables of operation: which queues are paused, who works, and what operators changed by hand."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from delayedq.core.bounds import NAME_LENGTH

#: Characters of a reason.
WHY_LENGTH = 500


class PausedQueue(models.Model):
    """A queue from which workers claim nothing. The row exists while it is paused."""

    queue = models.CharField(max_length=NAME_LENGTH, unique=True)
    paused_at = models.DateTimeField("paused")
    paused_by = models.CharField(max_length=NAME_LENGTH, blank=True, help_text="The name of a user; empty: a command.")

    class Meta:
        verbose_name_plural = _("queues")
        default_permissions = ("view",)
        permissions: ClassVar = [
            ("pause_queue", "Can pause and resume queues, tasks and channels"),
            ("set_limit", "Can set limits of queues, tasks and channels"),
        ]

    def __str__(self) -> str:
        return self.queue


class PausedTask(models.Model):
    """A task of whose messages workers claim none. The row exists while it is paused."""

    kind = models.CharField(max_length=NAME_LENGTH, unique=True, help_text="The path of the task.")
    paused_at = models.DateTimeField("paused")
    paused_by = models.CharField(max_length=NAME_LENGTH, blank=True, help_text="The name of a user; empty: a command.")

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.kind


class Worker(models.Model):
    """A worker process that lives, or was killed: then its `seen_at` no longer advances."""

    name = models.CharField(max_length=NAME_LENGTH, unique=True, help_text="What its messages are leased by.")
    host = models.CharField(max_length=NAME_LENGTH)
    pid = models.IntegerField("process id")
    threads = models.IntegerField()
    queues = models.TextField(blank=True, help_text="Those it serves, with commas between; empty: all.")
    excluded_queues = models.TextField(blank=True, default="", help_text="Of all, these are not served.")
    lease = models.FloatField(help_text="Seconds that a renewal lasts.")
    held = models.IntegerField(default=0, help_text="How many messages it had claimed when it was last seen.")
    running = models.TextField(default="[]", help_text="JSON: the ids of those it had started then.")
    problems = models.TextField(blank=True, default="", help_text="Empty: nothing is wrong with it.")
    started_at = models.DateTimeField("started")
    seen_at = models.DateTimeField("last seen")
    asked = models.CharField(
        max_length=NAME_LENGTH, blank=True, db_default="", help_text="What an operator asked of it; empty: nothing."
    )
    asked_by = models.CharField(max_length=NAME_LENGTH, blank=True, db_default="", help_text="The name of a user.")

    class Meta:
        default_permissions = ()
        permissions: ClassVar = [("stop_worker", "Can quiet and stop workers")]

    def __str__(self) -> str:
        return self.name


class Edit(models.Model):
    """What an operator did: to many messages at once, to queues, tasks, schedules, limits, workers or modes.

    Undo changes only what still is as this left it.
    """

    id = models.BigAutoField(primary_key=True)
    action = models.CharField(max_length=NAME_LENGTH)
    description = models.TextField(blank=True)
    made_at = models.DateTimeField("made")
    # No foreign key: the queue may live in another database than the users, or in a project that has none.
    made_by = models.CharField(max_length=NAME_LENGTH, blank=True, help_text="The name of a user; empty: a command.")
    undone_at = models.DateTimeField("undone", null=True, blank=True)
    undone_by = models.CharField(max_length=NAME_LENGTH, blank=True, default="", help_text="As made_by.")
    changed = models.IntegerField(default=0, help_text="How many messages.")
    skipped = models.IntegerField(default=0, help_text="How many were running, or had ended.")
    why = models.CharField(max_length=WHY_LENGTH, blank=True, db_default="", help_text="As who did it has said.")

    class Meta:
        verbose_name = _("edit")
        verbose_name_plural = _("edits")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.action} ({self.changed})"


class EditedMessage(models.Model):
    """One message of an edit, before and after."""

    id = models.BigAutoField(primary_key=True)
    edit = models.ForeignKey(Edit, models.CASCADE, related_name="messages")
    message_id = models.BigIntegerField(db_index=True)
    generation = models.IntegerField()
    before = models.TextField(help_text="JSON: what the edit changed, as it was.")
    after = models.TextField(help_text="JSON: the same, as the edit left it.")
    undone = models.BooleanField(default=False, help_text="An undo brought back what was before.")

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.message_id} in edit {self.edit_id}"
