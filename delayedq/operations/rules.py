"""The rules of a verdict: each looks at the symptoms for one kind of trouble. Nothing is read here."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from delayedq.core.errors import class_of, pattern
from delayedq.limits.lateness import ChannelWait
from delayedq.operations.wording import relative, span
from delayedq.operations.workers import is_alive, running_ids, serves
from delayedq.store.protocol import BARE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from delayedq.models import PausedQueue, PausedTask, Worker
    from delayedq.operations.archived import Trouble
    from delayedq.store.figures import Extent, Newest
    from delayedq.store.protocol import LaneHead

# What the rules of a verdict say, and what they are told: values without a database.


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
    waits: Mapping[str, ChannelWait] = field(default_factory=dict)
    paused: Sequence[PausedQueue] = ()
    backlogs: Mapping[str, datetime] = field(default_factory=dict)
    paused_tasks: Sequence[PausedTask] = ()
    task_backlogs: Mapping[str, datetime] = field(default_factory=dict)
    spikes: Sequence[Spike] = ()
    unknown: Sequence[Spike] = ()
    overdue: Sequence[Overdue] = ()
    lost: Sequence[Lost] = ()
    archive: Sequence[Trouble] = ()


# Rules


#: A queue is late if its first message has been due for this long, and so is a schedule that no beat has visited.
LATE = timedelta(minutes=1)

#: An error spikes if there were at least LEAST in this time, and TIMES as many as in the same time of the day before.
SPIKE_WINDOW = timedelta(minutes=10)

SPIKE_LEAST, SPIKE_TIMES = 10, 3


def judged(symptoms: Symptoms) -> list[Finding]:
    """All that is wrong, the worst first; of one kind, what has been wrong for longest."""
    found = [finding for rule in RULES for finding in rule(symptoms)]
    order = list(Rule)
    return sorted(found, key=lambda one: (order.index(one.rule), one.since or symptoms.now))


# Queues ---------------------------------------------------------------------------------------------------------------
def _live(symptoms: Symptoms) -> list[Worker]:
    return [worker for worker in symptoms.workers if is_alive(worker, symptoms.now)]


def oldest_due(symptoms: Symptoms) -> dict[str, timedelta]:
    """By queue that workers serve and that is not paused, for how long its first message has been due."""
    waits: dict[str, timedelta] = {}
    for head in symptoms.heads:
        if head.due_in < 0 and BARE not in head.queue:
            wait = timedelta(seconds=-head.due_in)
            waits[head.queue] = max(wait, waits.get(head.queue, wait))
    return waits


def no_worker(symptoms: Symptoms) -> Iterator[Finding]:
    """No worker lives, and messages are due."""
    waits = oldest_due(symptoms)
    if _live(symptoms) or not waits:
        return
    seen = max((worker.seen_at for worker in symptoms.workers), default=None)
    last = _("The last one was seen %(when)s.") % {"when": relative(seen, symptoms.now)} if seen else ""
    wait = max(waits.values())
    yield Finding(
        Rule.NO_WORKER,
        _("No worker is running, and messages are due."),
        max(seen, symptoms.now - wait) if seen else symptoms.now - wait,
        "",
        [*([last] if last else [_("None is registered.")]), _waiting(waits)],
        NextAction(Verb.WORKERS, _("Look at the workers"), command="manage.py run_workers"),
    )


def unserved(symptoms: Symptoms) -> Iterator[Finding]:
    """Messages are due in a queue that no live worker serves, though others live."""
    workers = _live(symptoms)
    for queue, wait in oldest_due(symptoms).items() if workers else ():
        if not any(serves(worker, queue) for worker in workers):
            names = ", ".join(sorted(worker.name for worker in workers))
            yield Finding(
                Rule.UNSERVED,
                _("No live worker serves the queue %(queue)s, and its messages are due.") % {"queue": queue},
                symptoms.now - wait,
                queue,
                [_waiting({queue: wait}), _("These workers live and serve other queues: %(names)s") % {"names": names}],
                _look(queue, f"manage.py run_workers --queues {queue}"),
            )


def late(symptoms: Symptoms) -> Iterator[Finding]:
    """The first message of a queue that is served has been due for long, and waits for no limit."""
    workers = _live(symptoms)
    for queue, longest in oldest_due(symptoms).items():
        known = symptoms.waits.get(queue, ChannelWait(longest.total_seconds()))
        wait, limited = timedelta(seconds=known.late), timedelta(seconds=known.limited)
        serving = [worker for worker in workers if serves(worker, queue)]
        if wait >= LATE and serving:
            threads, running = sum(one.threads for one in serving), sum(len(running_ids(one)) for one in serving)
            yield Finding(
                Rule.LATE,
                _("The queue %(queue)s is late: its first message has been due for %(span)s.")
                % {"queue": queue, "span": span(wait)},
                symptoms.now - wait,
                queue,
                [_capacity(threads, threads - running), *_limited(limited)],
                _look(queue),
            )


def _limited(wait: timedelta) -> Iterator[str]:
    if wait:
        yield _("Other messages wait for a limit, the first for %(span)s: they are not late.") % {"span": span(wait)}


def _capacity(threads: int, free: int) -> str:
    if free <= 0:
        return _("All %(threads)s threads that serve it were busy at the last heartbeat.") % {"threads": threads}
    words = _(
        "%(free)s of the %(threads)s threads that serve it were free at the last heartbeat: capacity is not the cause."
    )
    return words % {"free": free, "threads": threads}


def paused(symptoms: Symptoms) -> Iterator[Finding]:
    """A paused queue has messages that are due."""
    for pause in symptoms.paused:
        if since := symptoms.backlogs.get(pause.queue):
            by = _("Paused by %(user)s.") % {"user": pause.paused_by} if pause.paused_by else _("Paused by a command.")
            yield Finding(
                Rule.PAUSED,
                _("The queue %(queue)s is paused, and its messages are due.") % {"queue": pause.queue},
                pause.paused_at,
                pause.queue,
                [by, _waiting({pause.queue: symptoms.now - since})],
                NextAction(
                    Verb.RESUME,
                    _("Resume %(queue)s") % {"queue": pause.queue},
                    {"queue": pause.queue},
                    f"manage.py delayedq resume {pause.queue}",
                ),
            )


def paused_task(symptoms: Symptoms) -> Iterator[Finding]:
    """A paused task has messages that are due."""
    for pause in symptoms.paused_tasks:
        if since := symptoms.task_backlogs.get(pause.kind):
            by = _("Paused by %(user)s.") % {"user": pause.paused_by} if pause.paused_by else _("Paused by a command.")
            due = _("Its first message has been due for %(span)s.") % {"span": span(symptoms.now - since)}
            yield Finding(
                Rule.PAUSED,
                _("The task %(task)s is paused, and its messages are due.") % {"task": pause.kind},
                pause.paused_at,
                pause.kind,
                [by, due],
                NextAction(
                    Verb.RESUME_TASK,
                    _("Resume %(queue)s") % {"queue": pause.kind},
                    {"task": pause.kind},
                    f"manage.py delayedq resume --task {pause.kind}",
                ),
            )


def _look(queue: str, command: str = "") -> NextAction:
    about = {"queue": queue, "state": "due"}
    return NextAction(Verb.MESSAGES, _("Look at what is due in %(queue)s") % {"queue": queue}, about, command)


def _waiting(waits: dict[str, timedelta]) -> str:
    queue = max(waits, key=lambda name: waits[name])
    return _("The first message of %(queue)s has been due for %(span)s.") % {"queue": queue, "span": span(waits[queue])}


# Errors ---------------------------------------------------------------------------------------------------------------
def spiking(symptoms: Symptoms) -> Iterator[Finding]:
    """Dead letters of one error come much faster than they did."""
    for spike in symptoms.spikes:
        usual = spike.before * SPIKE_WINDOW / (timedelta(days=1) - SPIKE_WINDOW)
        if spike.recent >= max(SPIKE_LEAST, SPIKE_TIMES * usual):
            yield Finding(
                Rule.SPIKE,
                _("%(error)s: %(number)s messages failed of it for good in the last %(span)s.")
                % {"error": class_of(spike.newest.error), "number": f"{spike.recent:,}", "span": span(SPIKE_WINDOW)},
                spike.since,
                pattern(spike.newest.error),
                [
                    spike.newest.error,
                    _latest(spike),
                    _("In the day before, %(number)s.") % {"number": f"{spike.before:,}"},
                ],
                _look_at_error(spike),
                spike.newest.id,
            )


def unknown_task(symptoms: Symptoms) -> Iterator[Finding]:
    """Messages failed since no worker knows their task."""
    for spike in symptoms.unknown:
        yield Finding(
            Rule.UNKNOWN_TASK,
            _("No worker knows the task %(task)s: its messages fail.") % {"task": spike.newest.kind},
            spike.since,
            spike.newest.kind,
            [spike.newest.error, _latest(spike), _("Until a worker knows it, what is retried fails again.")],
            _look_at_error(spike),
            spike.newest.id,
        )


def _latest(spike: Spike) -> str:
    return _("The latest is #%(id)s, of %(task)s.") % {"id": spike.newest.id, "task": spike.newest.kind}


def _look_at_error(spike: Spike) -> NextAction:
    """Not to retry them: while the cause lasts, they fail again. The page of the error offers that."""
    return NextAction(Verb.ERRORS, _("Look at this error"), {"fingerprint": spike.extent.fingerprint})


# Leases, schedules, workers -------------------------------------------------------------------------------------------
def lost(symptoms: Symptoms) -> Iterator[Finding]:
    """Leases ran out, and nobody has claimed their messages since."""
    if stuck := [one for one in symptoms.lost if symptoms.now - one.leased_until >= LATE]:
        first = min(stuck, key=lambda one: one.leased_until)
        sentence = ngettext(
            "%(number)s message was lost by its worker, and no other has claimed it.",
            "%(number)s messages were lost by their workers, and no other has claimed them.",
            len(stuck),
        ) % {"number": f"{len(stuck):,}"}
        evidence = _("The lease of #%(id)s in %(queue)s, held by %(worker)s, ended %(when)s.") % {
            **first._asdict(),
            "when": relative(first.leased_until, symptoms.now),
        }
        action = NextAction(Verb.MESSAGES, _("Look at what was lost"), {"state": "lost"})
        yield Finding(Rule.LOST, sentence, first.leased_until, first.worker, [evidence], action, first.id)


def not_ticking(symptoms: Symptoms) -> Iterator[Finding]:
    """No beat has visited a schedule whose time has come."""
    for one in symptoms.overdue:
        yield Finding(
            Rule.SCHEDULE,
            _("The schedule %(name)s does not tick.") % {"name": one.name},
            one.next_at,
            one.name,
            [_("Its tick was due %(when)s; workers place ticks.") % {"when": relative(one.next_at, symptoms.now)}],
            NextAction(Verb.SCHEDULE, _("Look at the schedule"), {"schedule": one.name}),
        )


def archive(symptoms: Symptoms) -> Iterator[Finding]:
    """A batch does not end, or rows of history are not where the books say."""
    for trouble in symptoms.archive:
        yield Finding(Rule.ARCHIVE, trouble.sentence, trouble.since, trouble.condition, [trouble.cure])


def ailing(symptoms: Symptoms) -> Iterator[Finding]:
    """A worker says that something is wrong with it, or says nothing any more."""
    for worker in symptoms.workers:
        seen = relative(worker.seen_at, symptoms.now)
        action = NextAction(Verb.WORKERS, _("Look at the workers"))
        if not is_alive(worker, symptoms.now):
            sentence = _("The worker %(name)s is silent.") % {"name": worker.name}
            evidence = _("Its last heartbeat came %(when)s.") % {"when": seen}
            yield Finding(Rule.WORKER, sentence, worker.seen_at, worker.name, [evidence], action)
        elif worker.problems:
            sentence = _("The worker %(name)s has a problem: %(problems)s")
            given = {"name": worker.name, "problems": worker.problems}
            yield Finding(Rule.WORKER, sentence % given, None, worker.name, [], action)


RULES: tuple[Callable[[Symptoms], Iterator[Finding]], ...] = (
    *(no_worker, unserved, late, paused, paused_task),
    *(spiking, unknown_task),
    *(lost, not_ticking, archive, ailing),
)
