"""Count what waits in a database, and for how long, for monitoring: a bounded read, however much there is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING

from django.db.models import Min, Q

from delayedq.conf import get_settings
from delayedq.core.bounds import OTHERS
from delayedq.core.scaling import Demand, threads_needed
from delayedq.limits.channels import Channels
from delayedq.limits.lateness import waits
from delayedq.limits.operator import rules_here
from delayedq.limits.places import Places
from delayedq.models import Channel, ChannelGroup, CronSchedule, FinishedMessage, Message, PausedTask, is_free, is_held
from delayedq.operations.archived import archive_open_since
from delayedq.operations.counting import FEW, bounded_rows
from delayedq.operations.workers import live_workers
from delayedq.sql.priority import BOUNDARY, is_limited
from delayedq.store.protocol import BARE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from django.db.models import QuerySet

    from delayedq.store.base import Store
    from delayedq.store.protocol import LaneHead

# What is asked of the workers of a database: a bounded read, however much waits.


#: Arrivals are counted over this time, and run times averaged over the last MOST messages of an hour.
WINDOW, HISTORY, MOST = timedelta(minutes=1), timedelta(hours=1), 1_000

#: What is due is counted up to this number, and estimated beyond.
COUNTED = 10_000

#: When a message was due, started and ended.
Times = tuple["datetime", "datetime", "datetime"]


def demand(store: Store, serves: Callable[[str], bool] = lambda _: True) -> Demand:
    """Of the queues of tasks that are served. Raises django.db.Error."""
    now = store.now()
    held = sum(worker.held for worker in live_workers(store, now))
    return demand_of(store, [one for one in store.scan() if serves(one.queue)], held, now, serves)


def demand_of(
    store: Store, heads: Iterable[LaneHead], held: int, now: datetime, serves: Callable[[str], bool] = lambda _: True
) -> Demand:
    """The same from what a scan has found, and how many messages workers hold."""
    first = [one for one in heads if one.due_in <= 0 and _counts(one)]
    due = _due(store, first, now)
    came = bounded_rows(due.filter(scheduled_at__gt=now - WINDOW), COUNTED).number
    ended = _ended(store, now, serves)
    runs = [(finished - started).total_seconds() for _, started, finished in ended]
    return Demand(
        oldest_due=max((-one.due_in for one in first), default=0.0),
        due=bounded_rows(due, COUNTED).number,
        arrivals=came / WINDOW.total_seconds() + _rate(ended, now),
        run_seconds=max(0.0, sum(runs) / len(runs)) if runs else 0.0,
        running=held,
    )


def _due(store: Store, heads: Iterable[LaneHead], now: datetime) -> QuerySet[Message]:
    """What could be claimed in these lanes: in no other lane of their queues and priorities is anything due.

    Not what belongs to a paused task: more workers would not start it.
    """
    lanes = [(head.queue, head.priority) for head in heads]
    queues, priorities = {queue for queue, _ in lanes}, {priority for _, priority in lanes}
    rows = Message.objects.using(store.alias).filter(queue__in=queues, priority__in=priorities)
    paused = PausedTask.objects.using(store.alias).values("kind")
    return rows.filter(is_free(now), scheduled_at__lte=now).exclude(kind__in=paused)


def _counts(head: LaneHead) -> bool:
    """Bare queues have no workers, and what waits for a limit would not start sooner with more."""
    return BARE not in head.queue and not is_limited(head.priority)


def _ended(store: Store, now: datetime, serves: Callable[[str], bool]) -> Sequence[Times]:
    """Of the last messages that ended, the last first."""
    rows = FinishedMessage.objects.using(store.alias).filter(finished_at__gt=now - HISTORY).order_by("-finished_at")
    columns = rows.values_list("queue", "scheduled_at", "started_at", "finished_at")
    return [
        (due, started, finished)
        for queue, due, started, finished in columns[:MOST]
        if started and BARE not in queue and serves(queue)
    ]


def _rate(ended: Sequence[Times], now: datetime) -> float:
    """Messages per second that fell due in the window, and have ended."""
    if not ended:
        return 0.0
    window = min(now - ended[-1][2], WINDOW) if len(ended) >= MOST else WINDOW
    came = sum(1 for due, _, finished in ended if due > now - WINDOW and finished > now - window)
    return came / max(window.total_seconds(), 1.0)


# Backlogs


#: So many queues, or pairs of queue and task, are named at a time; what others have is OTHERS.
QUEUES = 200

#: Of channels: a claim visits those IN_TURN. Others rest until a limit has room or a message is due; of those with a
#: strict order, some are BLOCKED by a message that is tried again.
IN_TURN, RESTING, BLOCKED = "in turn", "resting", "blocked"


@dataclass(slots=True)
class Backlog:
    """Counts by (queue, task), seconds. With more than FEW live messages, those that are due and scheduled are counted
    by queue, up to FEW and estimated beyond, of the QUEUES whose first message is due first. Then the running ones are
    one number, and more than FEW dead letters are one too. Names that are not told are "".

    `limited`: of those that are due, the ones with a channel or a limit, for which they may wait, by queue. `channels`:
    those that have messages, by (queue, state): IN_TURN, RESTING or BLOCKED; with more than FEW the queue is "".

    `oldest`: by queue that is not paused, for how long its first message has been due that waits for no limit.
    `oldest_of_task`: the same by queue and task that are not paused, with at most FEW live messages.
    `oldest_limited`: the same of the first that waits for a limit, of queues with such messages.
    """

    due: Counter[tuple[str, str]] = field(default_factory=Counter)
    scheduled: Counter[tuple[str, str]] = field(default_factory=Counter)
    running: Counter[tuple[str, str]] = field(default_factory=Counter)
    dead: Counter[tuple[str, str]] = field(default_factory=Counter)
    limited: Counter[str] = field(default_factory=Counter)
    channels: Counter[tuple[str, str]] = field(default_factory=Counter)
    oldest: dict[str, float] = field(default_factory=dict)
    oldest_limited: dict[str, float] = field(default_factory=dict)
    oldest_of_task: dict[tuple[str, str], float] = field(default_factory=dict)
    offered: int = 0  #: The highest id: about how many messages there ever were.
    workers: int = 0
    threads_needed: int = 0  #: For messages to start within DELAYEDQ["TARGET_LATENCY"].
    cron_late: float = 0.0  #: For how long the schedule that is due first has been due.
    history: float = 0.0  #: For how long the oldest row of the history has been there: what archives and prunes lag.
    archive: float = 0.0  #: For how long a batch of the archive has been open.


def backlog(store: Store) -> Backlog:
    """Reads at most 2,000 rows one by one, and counts those of at most QUEUES queues. Raises django.db.Error."""
    now, found = store.now(), Backlog()
    workers = live_workers(store, now)
    held = sum(worker.held for worker in workers)
    heads = store.scan()
    _count_live(store, now, heads, held, found)
    _count_channels(store, now, found)
    _count_dead(store, found)
    waiting = waits(store, heads, now)
    found.oldest = _oldest({queue: wait.late for queue, wait in waiting.items()}, OTHERS)
    found.oldest_limited = _oldest({queue: wait.limited for queue, wait in waiting.items() if wait.limited}, OTHERS)
    of_task = {names: late for names, late in found.oldest_of_task.items() if names[0] in waiting}
    found.oldest_of_task = _oldest(of_task, (OTHERS, OTHERS))
    found.workers = len(workers)
    asked = demand_of(store, heads, held, now)
    found.threads_needed = threads_needed(asked, get_settings().TARGET_LATENCY.total_seconds())
    placed = CronSchedule.objects.using(store.alias).filter(disabled_at=None, retired_at=None)
    found.cron_late = _age(placed.aggregate(first=Min("next_at"))["first"], now)
    found.history = _age(_oldest_end(store), now)
    found.archive = _age(archive_open_since(store), now)
    return found


def _count_live(store: Store, now: datetime, heads: Iterable[LaneHead], held: int, found: Backlog) -> None:
    live = Message.objects.using(store.alias).filter(queue__gt="")
    paused = Q(kind__in=PausedTask.objects.using(store.alias).values("kind"))
    live = live.annotate(is_held=is_held(now), is_limited=Q(priority__lt=BOUNDARY), is_paused=paused)
    columns = ("queue", "kind", "scheduled_at", "is_held", "is_limited", "is_paused")
    rows = list(live.order_by("queue", "priority", "scheduled_at").values_list(*columns)[: FEW + 1])
    found.offered = _highest(store)
    if len(rows) > FEW:
        _count_queues(store, now, heads, found)
        found.running["", ""] = held
        return
    for queue, kind, scheduled_at, is_leased, in_channel, is_paused in rows:
        state = found.running if is_leased else found.due if scheduled_at <= now else found.scheduled
        state[queue, kind] += 1
        if state is found.due and in_channel:
            found.limited[queue] += 1
        elif state is found.due and not is_paused:
            late = found.oldest_of_task.get((queue, kind), 0.0)
            found.oldest_of_task[queue, kind] = max(late, _age(scheduled_at, now))
    for counted in (found.due, found.scheduled, found.running):
        _bound(counted, (OTHERS, OTHERS))
    _bound(found.limited, OTHERS)


def _count_queues(store: Store, now: datetime, heads: Iterable[LaneHead], found: Backlog) -> None:
    lanes, due_in = store.lanes(), dict[str, float]()
    for head in heads:
        due_in[head.queue] = min(head.due_in, due_in.get(head.queue, inf))
    queues = sorted({lane.queue for lane in lanes}, key=lambda queue: (due_in.get(queue, inf), queue))
    for queue in queues[:QUEUES]:
        priorities = {lane.priority for lane in lanes if lane.queue == queue}
        rows = Message.objects.using(store.alias).filter(queue=queue, priority__in=priorities)
        planned = Message.objects.using(store.alias).filter(queue=queue)
        is_due, is_scheduled = Q(is_free(now), scheduled_at__lte=now), Q(scheduled_at__gt=now)
        due = rows.filter(is_due)
        found.due[queue, ""] = bounded_rows(due, FEW, planned.filter(is_due)).number
        if limited := [priority for priority in priorities if is_limited(priority)]:
            found.limited[queue] = bounded_rows(due.filter(priority__in=limited), FEW).number
        found.scheduled[queue, ""] = bounded_rows(rows.filter(is_scheduled), FEW, planned.filter(is_scheduled)).number


def _count_channels(store: Store, now: datetime, found: Backlog) -> None:
    """What blocks is looked for in the first FEW that rest, of tasks with a strict order."""
    channels = Channel.objects.using(store.alias)
    rows = list(channels.order_by("is_ready", "ready_at").values_list("id", "group_id", "is_ready")[: FEW + 1])
    if not rows:
        return
    groups = {one.pk: one for one in ChannelGroup.objects.using(store.alias).order_by("queue", "kind")[:QUEUES]}
    strict = {id_ for id_, one in groups.items() if rules_here(one.queue, one.kind).is_strict}
    resting = [id_ for id_, group, is_ready in rows if not is_ready and group in strict]
    blocked = Places(Channels.of(store), now).blocked(resting) if resting else {}
    for id_, group, is_ready in rows if len(rows) <= FEW else ():
        state = BLOCKED if id_ in blocked else IN_TURN if is_ready else RESTING
        found.channels[groups[group].queue if group in groups else "", state] += 1
    if len(rows) > FEW:
        of_state = {state: channels.filter(is_ready=state == IN_TURN) for state in (IN_TURN, RESTING)}
        found.channels.update({("", state): bounded_rows(some, 10 * FEW).number for state, some in of_state.items()})
        found.channels.update({("", BLOCKED): len(blocked), ("", RESTING): -len(blocked)})


def _count_dead(store: Store, found: Backlog) -> None:
    dead = FinishedMessage.objects.using(store.alias).failed().order_by("finished_at")
    rows = list(dead.values_list("queue", "kind")[: FEW + 1])
    found.dead.update(rows if len(rows) <= FEW else {("", ""): bounded_rows(dead, 10 * FEW).number})
    _bound(found.dead, (OTHERS, OTHERS))


def _bound[Names](counted: Counter[Names], others: Names) -> None:
    """Leave the names that have most, and add up the others."""
    for names, number in counted.most_common()[QUEUES:]:
        del counted[names]
        counted[others] += number


def _oldest[Names: (str, tuple[str, str])](seconds: dict[Names, float], others: Names) -> dict[Names, float]:
    """The names that have waited the longest, and the longest of the others."""
    ordered = sorted(seconds.items(), key=lambda one: (-one[1], one[0]))
    return dict(ordered[:QUEUES]) | ({others: ordered[QUEUES][1]} if len(ordered) > QUEUES else {})


def _oldest_end(store: Store) -> datetime | None:
    """Of the first FEW rows of the history, that which is no dead letter, as these are kept; of ten times as many if
    there is none, and else the last of them.
    """
    first = FinishedMessage.objects.using(store.alias).order_by("finished_at").values_list("outcome", "finished_at")
    for most in (FEW, 10 * FEW):
        rows = list(first[:most])
        end = next((finished_at for outcome, finished_at in rows if outcome != "failed"), None)
        if end is not None or len(rows) < most:
            return end
    return rows[-1][1]


def _highest(store: Store) -> int:
    ids: Iterable[int | None] = (
        model.objects.using(store.alias).order_by("-id").values_list("id", flat=True).first()
        for model in (Message, FinishedMessage)
    )
    return max(id_ or 0 for id_ in ids)


def _age(since: datetime | None, now: datetime) -> float:
    return 0.0 if since is None else max(0.0, (now - since).total_seconds())
