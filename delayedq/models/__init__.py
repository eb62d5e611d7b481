"""The tables: what lives, what ended, the ticks of cron schedules, and what operators do.

`Message` holds live rows only, `FinishedMessage` one row per ended message. Both share one sequence of ids: a message
keeps its id through its whole life.

The QuerySet verbs are for reading. Whatever changes a message goes through `delayedq.store`.
"""

from __future__ import annotations

from delayedq.models import installed  # noqa: F401  before the models: it says so if they can't be
from delayedq.models.channels import Channel, ChannelGroup, ChannelMessage, ChannelNotice, ChannelSize, LimitState
from delayedq.models.cron import HASH_LENGTH, CronSchedule, CronSettings, CronTick, CronTickQuerySet
from delayedq.models.expiring import ExpiringResult
from delayedq.models.flows import Flow, FlowMember, FlowStep
from delayedq.models.message import (
    Dashboard,
    FinishedMessage,
    FinishedMessageQuerySet,
    LockedRenewal,
    Message,
    MessageQuerySet,
    Now,
    Outcome,
    has_run_out,
    is_free,
    is_held,
    with_renewals,
)
from delayedq.models.operations import Edit, EditedMessage, PausedQueue, PausedTask, Worker
from delayedq.models.steps import MessageProgress, RecordedStep

__all__ = [
    "HASH_LENGTH",
    "Channel",
    "ChannelGroup",
    "ChannelMessage",
    "ChannelNotice",
    "ChannelSize",
    "CronSchedule",
    "CronSettings",
    "CronTick",
    "CronTickQuerySet",
    "Dashboard",
    "Edit",
    "EditedMessage",
    "ExpiringResult",
    "FinishedMessage",
    "FinishedMessageQuerySet",
    "Flow",
    "FlowMember",
    "FlowStep",
    "LimitState",
    "LockedRenewal",
    "Message",
    "MessageProgress",
    "MessageQuerySet",
    "Now",
    "Outcome",
    "PausedQueue",
    "PausedTask",
    "RecordedStep",
    "Worker",
    "has_run_out",
    "is_free",
    "is_held",
    "with_renewals",
]
