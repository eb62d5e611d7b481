"""Flows: a row for each flow, for each of its steps, and for each message of these. Nothing else has a row here.

There are no foreign keys: whoever ends a message must not wait for the row of a flow that somebody is about to cancel.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from delayedq.core.bounds import NAME_LENGTH
from delayedq.flows.rules import FlowState, Policy, StepState, When


class Flow(models.Model):
    """A graph of steps. What its steps do is read from their rows; only its end is stored here."""

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(max_length=NAME_LENGTH)
    policy = models.CharField(max_length=10, default=Policy.STOP.value)
    created_at = models.DateTimeField("created")
    deadline = models.DurationField(null=True, blank=True, help_text="Counts from its start, and from each retry.")
    deadline_at = models.DateTimeField("deadline", null=True, blank=True)
    stopped_at = models.DateTimeField("cancelled", null=True, blank=True)
    ended_at = models.DateTimeField("ended", null=True, blank=True, db_index=True)
    outcome = models.CharField(max_length=10, blank=True, help_text="How it ended; empty: it has not.")
    on_failure = models.TextField(null=True, blank=True, help_text="JSON: what is enqueued if it fails.")

    class Meta:
        verbose_name = _("flow")
        verbose_name_plural = _("flows")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return self.name

    @property
    def state(self) -> FlowState:
        return FlowState(self.outcome or FlowState.RUNNING)


class FlowStep(models.Model):
    """A step: its predecessors, and what it calls, as long as it waits.

    Its id is made of that of its flow and its number. The row with number 0 is locked by whoever ends or releases steps
    of its flow: see `flows.ending`.
    """

    id = models.BigIntegerField(primary_key=True)
    flow_id = models.BigIntegerField(db_index=True)
    name = models.CharField(max_length=NAME_LENGTH)
    state = models.CharField(max_length=10, default=StepState.WAITING.value)
    after = models.TextField(default="[]", help_text="JSON: the numbers of the steps that come before.")
    runs_when = models.CharField(max_length=20, default=When.SUCCEEDED.value)
    kind = models.CharField(max_length=NAME_LENGTH, help_text="The task; that of the first member.")
    is_group = models.BooleanField(default=False)
    size = models.IntegerField(default=0, help_text="How many messages it has, or will have.")
    calls = models.TextField(null=True, blank=True, help_text="JSON: the messages to store when released.")
    released_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.name} of flow {self.flow_id}"


class FlowMember(models.Model):
    """A message of a step; those of a group in the order of their ids. `outcome`: how it ended; empty: it has not."""

    message_id = models.BigIntegerField(primary_key=True)
    step_id = models.BigIntegerField()
    outcome = models.CharField(max_length=10, null=True, blank=True)

    class Meta:
        default_permissions = ()
        indexes: ClassVar = [models.Index(fields=["step_id", "message_id"], name="delayedq_member")]

    def __str__(self) -> str:
        return f"message {self.message_id} of step {self.step_id}"
