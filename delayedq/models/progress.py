"""How far the attempts of messages have come, of those that say so. No other message has a row."""

from __future__ import annotations

from django.db import models

from delayedq.core.limits import NAME_LENGTH


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
