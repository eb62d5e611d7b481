"""What the rules of a verdict say, and what they are told: values without a database."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from delayedq.models import PausedQueue, PausedTask, Worker
    from delayedq.operations.archived import Trouble
    from delayedq.operations.limited_waits import Wait
    from delayedq.store.error_groups import Extent, Newest
    from delayedq.store.protocol import LaneHead


class Rule(StrEnum):
    """What can be wrong, the worst first."""

    DATABASE = "database"
    NO_WORKER = "no worker"
    UNSERVED = "unserved queue"
    SPIKE = "spike of an error"
    LATE = "late queue"
    UNKNOWN_TASK = "unknown task"
    LOST = "lost leases"
    PAUSED = "paused queue or task"
    SCHEDULE = "schedule"
    ARCHIVE = "archive"
    WORKER = "worker"


class Verb(StrEnum):
    """What an operator may do about it. Each is confirmed before anything happens, or only shows something."""

    RESUME = "resume"  #: a queue
    RESUME_TASK = "resume task"
    MESSAGES = "messages"  #: look at live messages, by `state` and `queue`
    ERRORS = "errors"  #: look at the dead letters of an error group
    SCHEDULE = "schedule"  #: look at a schedule
    WORKERS = "workers"  #: look at queues and workers


class NextAction(NamedTuple):
    """`about`: what the verb needs: `queue`, `task`, `state`, `fingerprint`, `schedule`. `command`: what does it in a
    shell; "" if nothing does.
    """

    verb: Verb
    label: str
    about: Mapping[str, str | int] = {}
    command: str = ""


class Finding(NamedTuple):
    """Something that is wrong. `subject`: the queue, task, error, worker or schedule. `since`: None if it is not known.
    `message_id`: the message that the evidence names as #id, if it names one.

    The texts are translated, and hold texts of the database as they are.
    """

    rule: Rule
    sentence: str
    since: datetime | None
    subject: str
    evidence: Sequence[str]
    action: NextAction | None = None
    message_id: int | None = None


class Spike(NamedTuple):
    """An error group that grew lately: `recent` in SPIKE_WINDOW, `before` in the rest of the day until then."""

    extent: Extent
    newest: Newest
    recent: int
    before: int
    since: datetime


class Overdue(NamedTuple):
    """A schedule that no beat has visited since `next_at`."""

    name: str
    next_at: datetime


class Lost(NamedTuple):
    """A message whose lease ran out, and that nobody has claimed since."""

    id: int
    queue: str
    worker: str
    leased_until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptoms:
    """What is known at `now`. `heads`: of each lane whose queue is not paused, what would be claimed next.

    `backlogs`, `task_backlogs`: by paused queue, or task, that has due messages, since when the first is due.
    `waits`: by queue, for how long messages have been due that wait for a worker, and for a limit.
    """

    now: datetime
    workers: Sequence[Worker] = ()
    heads: Sequence[LaneHead] = ()
    waits: Mapping[str, Wait] = field(default_factory=dict)
    paused: Sequence[PausedQueue] = ()
    backlogs: Mapping[str, datetime] = field(default_factory=dict)
    paused_tasks: Sequence[PausedTask] = ()
    task_backlogs: Mapping[str, datetime] = field(default_factory=dict)
    spikes: Sequence[Spike] = ()
    unknown: Sequence[Spike] = ()
    overdue: Sequence[Overdue] = ()
    lost: Sequence[Lost] = ()
    archive: Sequence[Trouble] = ()
