"""Channels: which have messages, which of these wait in each, and what was last said of them.

No row here belongs to a message without a channel. Offers and settlements only insert; one claim at a time changes the
rest (`delayedq.limits`).
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from delayedq.core.bounds import NAME_LENGTH


class ChannelGroup(models.Model):
    """The channels of one task in one queue: they have the same limits, and take turns."""

    id = models.BigIntegerField(primary_key=True)
    queue = models.CharField(max_length=NAME_LENGTH)
    kind = models.CharField(max_length=NAME_LENGTH)
    turn = models.FloatField(default=0.0, help_text="Where its channels are that were served last.")

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.kind} in {self.queue}"


class Channel(models.Model):
    """A channel that has messages. It is in turn (`is_ready`), or rests until `ready_at`."""

    id = models.BigIntegerField(primary_key=True)
    group_id = models.BigIntegerField()
    name = models.CharField(max_length=NAME_LENGTH, blank=True)
    is_ready = models.BooleanField(default=False)
    ready_at = models.DateTimeField(help_text="When it is looked at again, unless something happens in it before.")
    turn = models.FloatField(help_text="Seconds of work it had, by its weight; the lowest is served first.")
    seconds = models.FloatField(default=0.0, help_text="Mean of its messages.")
    weight = models.FloatField(default=1.0, db_default=1.0, help_text="As a claim found it.")
    tokens = models.FloatField(null=True, blank=True)
    tokens_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        default_permissions = ()
        indexes: ClassVar = [
            models.Index(fields=["group_id", "is_ready", "turn", "id"], name="delayedq_turn"),
            models.Index(fields=["is_ready", "ready_at"], name="delayedq_ready"),
        ]

    def __str__(self) -> str:
        return self.name


class ChannelMessage(models.Model):
    """The place of a live message in its channel: it waits (`lease_token` 0), or a claim has taken it.

    What counts as running is a message that still has this token, and whose lease holds. A row with an id below zero is
    the place of an attempt whose message was taken from it (`delayedq.limits.places_held`).
    """

    message_id = models.BigIntegerField(primary_key=True)
    channel_id = models.BigIntegerField()
    group_id = models.BigIntegerField()
    urgency = models.SmallIntegerField(
        help_text="The priority, negated: the lowest comes first. HEAD: it began, in a channel with a strict order."
    )
    due_at = models.DateTimeField()
    lease_token = models.BigIntegerField(default=0)
    held_until = models.DateTimeField(null=True, blank=True, help_text="It is taken at least until then.")

    class Meta:
        default_permissions = ()
        indexes: ClassVar = [
            models.Index(
                fields=["channel_id", "lease_token", "urgency", "due_at", "message_id"], name="delayedq_channel_order"
            ),
            models.Index(fields=["channel_id", "lease_token", "due_at"], name="delayedq_channel_due"),
            models.Index(fields=["group_id", "lease_token"], name="delayedq_channel_running"),
        ]

    def __str__(self) -> str:
        return f"message {self.message_id} in {self.channel_id}"


class ChannelNotice(models.Model):
    """Something happens in a channel: look at it at this moment. Inserted only, so no writer waits for another."""

    id = models.BigAutoField(primary_key=True)
    channel_id = models.BigIntegerField()
    group_id = models.BigIntegerField()
    queue = models.CharField(max_length=NAME_LENGTH)
    kind = models.CharField(max_length=NAME_LENGTH)
    name = models.CharField(max_length=NAME_LENGTH, blank=True)
    at = models.DateTimeField()
    ended = models.IntegerField(default=0, help_text="Attempts that ended,")
    seconds = models.FloatField(default=0.0, help_text="and how long they took together.")

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.name


class LimitState(models.Model):
    """A limit that was set live; or, with an empty scope, the token bucket of one (`limits.rules.bucket_name`)."""

    scope = models.CharField(max_length=NAME_LENGTH, help_text="The name of a queue, a task or a shared limit.")
    channel = models.CharField(max_length=NAME_LENGTH, blank=True, help_text="Empty: all of the scope.")
    definition = models.TextField(null=True, blank=True, help_text="JSON; null: it is not set live.")
    tokens = models.FloatField(null=True, blank=True)
    tokens_at = models.DateTimeField(null=True, blank=True)
    share = models.IntegerField(null=True, blank=True, db_index=True, help_text="That of a channel.")

    class Meta:
        default_permissions = ()
        constraints: ClassVar = [models.UniqueConstraint(fields=["scope", "channel"], name="delayedq_limit")]

    def __str__(self) -> str:
        return f"{self.scope} {self.channel}".rstrip()


class ChannelSize(models.Model):
    """How many messages a channel or a scope has that is limited in its size. Each offer to it locks the row.

    It counts what was offered since the last counting; what ended meanwhile is found by the next one.
    """

    id = models.BigIntegerField(primary_key=True)
    size = models.IntegerField()
    counted_at = models.DateTimeField(db_index=True)
    members = models.TextField(blank=True, help_text="JSON: the groups of a scope that offered; empty: a channel.")

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.size} in {self.pk}"
