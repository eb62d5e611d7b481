"""The steps that messages have done, of those whose tasks have steps. No other message has a row."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from delayedq.core.bounds import NAME_LENGTH


class RecordedStep(models.Model):
    """A step of a task that is done: an attempt that comes to it again takes its result from here.

    It is written in the transaction of the step, outlives the message, and goes with its history. There is no foreign
    key: the message moves from one table to the other.
    """

    id = models.BigAutoField(primary_key=True)
    message_id = models.BigIntegerField()
    generation = models.IntegerField(help_text="Of the message: a replacement begins anew.")
    name = models.CharField(max_length=NAME_LENGTH)
    result = models.TextField(help_text="JSON.")
    recorded_at = models.DateTimeField(db_index=True)

    class Meta:
        default_permissions = ()
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["message_id", "generation", "name"], name="delayedq_recorded_step")
        ]

    def __str__(self) -> str:
        return f"{self.name} of message {self.message_id}"


# How far the attempts of messages have come, of those that say so. No other message has a row.


class MessageProgress(models.Model):
    """What the last attempt of a message has reported. It outlives the message, and goes with its history.

    There is no foreign key: the message moves from one table to the other.
    """

    message_id = models.BigIntegerField(primary_key=True)
    done = models.FloatField()
    total = models.FloatField(null=True)
    note = models.CharField(max_length=NAME_LENGTH, blank=True)
    began_at = models.DateTimeField(help_text="When the attempt first reported.")
    written_at = models.DateTimeField()

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"message {self.message_id}: {self.done:g} of {self.total or 0:g}"
