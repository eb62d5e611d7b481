"""What must hold of a torture run, whatever happened: values in, violations out; nothing is read or asked here.

Each attempt *holds* its message from the line in which it began until it ended. It holds no longer than until its
process was killed or frozen: from then on, its lease may run out. Where nobody has seen how a process died, until the
last line that it wrote. What it begins just after it was frozen, it does not hold. So an interval is never longer than
it really was, and no overlap is reported that was none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import datetime, timedelta
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from delayedq.torture.audit import Event

#: How many lines of an interleaving are printed.
SHOWN = 20
#: So soon (ns) after its process was thawed, a thread may go on to what it was about to begin when that was frozen.
AWAKE = 2_000_000_000


class Ended(NamedTuple):
    """A row of the history. `result` is what the task returned: its uid and its attempt; None if it did not."""

    id: int
    kind: str
    outcome: str
    attempts: int
    started_at: datetime | None
    scheduled_at: datetime
    result: Any


class Rules(NamedTuple):
    """What the tasks promise of themselves: see `tasks`."""

    max_attempts: Mapping[str, int]
    concurrency: Mapping[str, int]
    per_channel: Mapping[str, int]


class Run(NamedTuple):
    """One attempt: of which message, by which process, and from when to when it held it (ns)."""

    id: int
    token: int
    attempt: int
    kind: str
    uid: str
    channel: str | None
    pid: int
    began: int
    held_until: float
    ended: float  # infinity and "" if it never said so
    how: str  # "returned" or "raised"


class Violation(NamedTuple):
    """What did not hold: the invariant, what happened, and the lines of the audit that show it."""

    invariant: str
    text: str
    lines: Sequence[Event] = ()


class History:
    """All that was written down, by what it is about."""

    def __init__(self, events: Sequence[Event], ended: Sequence[Ended], left: Sequence[int] = ()) -> None:
        self.events, self.left = events, set(left)
        self.ended = {row.id: row for row in ended}
        self.by_what: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            self.by_what[event.what].append(event)
        self.stored = {uid: id_ for event in self.by_what["stored"] for uid, id_ in event.about}
        self.undone = {uid for event in self.by_what["undone"] for uid in event.about}
        self.asked = {uid for event in self.by_what["asked"] for uid in event.about}
        self.runs = [*self._runs()]
        self.runs_of: dict[int, list[Run]] = defaultdict(list)
        self.runs_by_uid: dict[str, list[Run]] = defaultdict(list)
        for run in self.runs:
            self.runs_of[run.id].append(run)
            self.runs_by_uid[run.uid].append(run)

    def about(self, id_: int) -> list[Event]:
        """The lines that tell of this message, and of the processes that ran it."""
        pids = {run.pid for run in self.runs_of[id_]}
        told = {"began", "ended", "step", "tick"}
        return [
            one
            for one in self.events
            if (one.what in told and one.about[0] == id_)
            or (one.what in {"killed", "frozen", "thawed"} and one.pid in pids)
        ][:SHOWN]

    def _runs(self) -> Iterator[Run]:
        ends = {(event.pid, *event.about[:2]): event for event in self.by_what["ended"]}
        last = {event.pid: event.at for event in self.events}
        stops: dict[int, list[int]] = defaultdict(list)
        for what in ("killed", "frozen"):
            for event in self.by_what[what]:
                stops[event.pid].append(event.at)
        caught = set(self._caught())
        for event in self.by_what["began"]:
            id_, token, attempt, kind, uid, channel, _ = event.about
            end = ends.get((event.pid, id_, token))
            stopped = min((at for at in stops[event.pid] if at > event.at), default=inf)
            over = min(stopped, last[event.pid] if end is None else end.at)
            if event.at in caught:
                over = event.at
            ended, how = (inf, "") if end is None else (end.at, end.about[3])
            yield Run(id_, token, attempt, kind, uid, channel, event.pid, event.at, over, ended, how)

    def _caught(self) -> Iterator[int]:
        """When each thread began what it had looked at the lease of before it was frozen: the first after each thaw."""
        thawed: dict[int, list[int]] = defaultdict(list)
        for event in self.by_what["thawed"]:
            thawed[event.pid].append(event.at)
        seen: set[tuple[int, int, int]] = set()
        for event in self.by_what["began"]:
            thread = event.about[-1]
            for at in thawed[event.pid]:
                if at <= event.at < at + AWAKE and (event.pid, thread, at) not in seen:
                    seen.add((event.pid, thread, at))
                    yield event.at


def judge(history: History, rules: Rules) -> list[Violation]:
    """Everything that did not hold, by invariant."""
    return [
        *nothing_lost(history),
        *nothing_from_nothing(history),
        *no_overlap(history),
        *ended_by_its_last(history),
        *attempts(history, rules),
        *as_intended(history),
        *not_before_due(history),
        *in_order_of_key(history),
        *ticks(history),
        *replacements_run(history),
        *within_limits(history, rules),
        *nothing_left(history),
        *ends_when_told(history),
        *effects_once(history),
        *steps_once(history),
        *flows_whole(history),
    ]


def nothing_lost(history: History) -> Iterator[Violation]:
    """I1, I11: what was stored has exactly one row in the history; none waits at the end."""
    for uid, id_ in history.stored.items():
        if id_ not in history.ended and id_ not in history.left:
            yield Violation("nothing is lost", f"{uid}, message {id_}, is nowhere", history.about(id_))


def nothing_left(history: History) -> Iterator[Violation]:
    """I12: when the faults have ended, everything ends."""
    uids = {id_: uid for uid, id_ in history.stored.items()}
    for id_ in sorted(history.left):
        said = f"message {id_} ({uids.get(id_, 'a tick, or of a flow')}) still waits or runs"
        yield Violation("everything ends", said, history.about(id_))


def ends_when_told(history: History) -> Iterator[Violation]:
    """SIGTERM ends a fleet, and a producer."""
    for event in history.by_what["stuck"]:
        yield Violation("SIGTERM ends it", f"process {event.about[0]} went on for 30 s")


def nothing_from_nothing(history: History) -> Iterator[Violation]:
    """I2: what was rolled back never runs, and neither does what nobody has made."""
    for run in history.runs:
        if run.uid in history.undone:
            said = f"{run.uid}, message {run.id}, was rolled back, and has run"
            yield Violation("nothing comes from nothing", said, history.about(run.id))
        elif run.kind in {"plain", "plain_async", "flaky"} and run.uid not in history.asked:
            yield Violation("nothing comes from nothing", f"nobody has made {run.uid}", history.about(run.id))


def no_overlap(history: History) -> Iterator[Violation]:
    """I3: two attempts of a message don't hold it at one time."""
    for id_, runs in history.runs_of.items():
        for one, other in _overlapping(runs, 1):
            said = f"attempts {one.attempt} and {other.attempt} of message {id_} ({one.uid}) overlap"
            yield Violation("no overlap", said, history.about(id_))


def ended_by_its_last(history: History) -> Iterator[Violation]:
    """I4: what ended a message is an attempt that returned, and none began after it."""
    for row in history.ended.values():
        if row.outcome != "succeeded" or not isinstance(row.result, list) or row.kind == "keyed":
            continue
        runs = history.runs_of[row.id]
        said_by = [run for run in runs if run.attempt == row.result[1] and run.how == "returned"]
        if not said_by:
            said = f"message {row.id} has the result of attempt {row.result[1]}, which never returned"
            yield Violation("a stale end changes nothing", said, history.about(row.id))
        elif any(run.attempt > row.result[1] for run in runs):
            said = f"message {row.id} ended with attempt {row.result[1]}, and ran again"
            yield Violation("a stale end changes nothing", said, history.about(row.id))


def attempts(history: History, rules: Rules) -> Iterator[Violation]:
    """I5, I13: no more attempts than allowed, each number once; what did not start was not charged.

    An attempt may be charged and not written down where its process was killed in that moment, or where nothing told
    it of the claim until the lease ran out.
    """
    stopped = sum(len(history.by_what[what]) for what in ("killed", "frozen", "unanswered"))
    unseen = 0
    for row in history.ended.values():
        if row.kind == "keyed":  # a replaced message counts anew
            continue
        numbers = Counter(run.attempt for run in history.runs_of[row.id])
        most = rules.max_attempts.get(row.kind, 0)
        if len(numbers) > most or any(number > most for number in numbers):
            said = f"message {row.id} may have {most} attempts, and had {sorted(numbers)}"
            yield Violation("no more attempts than allowed", said, history.about(row.id))
        if any(times > 1 for times in numbers.values()):
            said = f"message {row.id} had an attempt twice: {sorted(numbers.elements())}"
            yield Violation("each attempt has a number of its own", said, history.about(row.id))
        unseen += max(0, row.attempts - len(numbers))
    if unseen > stopped * _IN_FLIGHT:
        said = f"{unseen} attempts were charged and never began, with {stopped} processes killed, frozen or unanswered"
        yield Violation("what did not start is not charged", said)


#: Threads of a process: as many attempts may be about to begin when it is stopped.
_IN_FLIGHT = 8


def as_intended(history: History) -> Iterator[Violation]:
    """I14: what ruins its process in each attempt ends as a dead letter; what ran beside it, or after it, does not."""
    for row in history.ended.values():
        if (row.outcome == "failed") != (row.kind in {"poison", "doomed"}):
            said = f"message {row.id} ({row.kind}) has {row.outcome}"
            yield Violation("poison ends alone", said, history.about(row.id))


def not_before_due(history: History) -> Iterator[Violation]:
    """I6: none was claimed before it was due, both by the database's clock.

    When an attempt began is reckoned back from its end: that seems to be sooner if this clock was set back meanwhile.
    """
    for row in history.ended.values():
        if row.started_at is not None and row.started_at + _set_back(history, row) < row.scheduled_at:
            times = f"due at {row.scheduled_at.isoformat()} and started at {row.started_at.isoformat()}"
            yield Violation("not before it is due", f"message {row.id} was {times}", history.about(row.id))


def _set_back(history: History, row: Ended) -> timedelta:
    """By how much the database's clock was set back, at most, after this message was claimed."""
    first = min((run.began for run in history.runs_of[row.id]), default=0)
    back = [event.about[0] for event in history.by_what["set back"] if event.at > first - AWAKE]
    return timedelta(seconds=max(back, default=0))


def in_order_of_key(history: History) -> Iterator[Violation]:
    """I7: an older version of a key never begins after a newer one."""
    newest: dict[str, int] = {}
    for run in history.runs:
        if run.kind != "keyed" or run.held_until <= run.began:
            continue
        key, _, version = run.uid.rpartition("#")
        if int(version) < newest.get(key, 0):
            said = f"version {version} of {key} began after version {newest[key]}"
            yield Violation("keys keep their order", said, history.about(run.id))
        newest[key] = max(newest.get(key, 0), int(version))


def replacements_run(history: History) -> Iterator[Violation]:
    """I9: the last version of each key that was stored has run, or a later one whose commit nobody saw."""
    done: dict[str, int] = {}
    for run in history.runs:
        if run.kind == "keyed" and run.how == "returned":
            key, _, version = run.uid.rpartition("#")
            done[key] = max(done.get(key, 0), int(version))
    last = {key: version for event in history.by_what["offered"] for key, version in event.about[0].items()}
    for key, version in last.items():
        if done.get(key, 0) < version:
            yield Violation("no replacement is lost", f"version {version} of {key} never ran")


def ticks(history: History) -> Iterator[Violation]:
    """I8: one message for each second between the first tick and the last."""
    by_instant: dict[datetime, set[int]] = defaultdict(set)
    for event in history.by_what["tick"]:
        if event.about[1]:
            by_instant[datetime.fromisoformat(event.about[1])].add(event.about[0])
    for instant, ids in by_instant.items():
        if len(ids) > 1:
            yield Violation("a tick is placed once", f"{instant.isoformat()} has the messages {sorted(ids)}")
    if by_instant:
        first, last = min(by_instant), max(by_instant)
        whole = {first + timedelta(seconds=n) for n in range(int((last - first).total_seconds()) + 1)}
        for instant in sorted(whole - by_instant.keys()):
            yield Violation("no tick is missed", f"{instant.isoformat()} has no message")


def within_limits(history: History, rules: Rules) -> Iterator[Violation]:
    """I10: never more at a time than a limit has."""
    groups: dict[tuple[str, str | None], list[Run]] = defaultdict(list)
    for run in history.runs:
        if run.kind in rules.concurrency:
            groups[run.kind, None].append(run)
        if run.kind in rules.per_channel:
            groups[run.kind, run.channel].append(run)
    for (kind, channel), runs in groups.items():
        most = rules.concurrency[kind] if channel is None else rules.per_channel[kind]
        for one, other in _overlapping(runs, most):
            where = kind if channel is None else f"{kind} in the channel {channel!r}"
            said = f"more than {most} of {where} ran, when message {other.id} began beside message {one.id}"
            lines = sorted([*history.about(one.id), *history.about(other.id)], key=lambda event: event.at)
            yield Violation("limits hold", said, lines[:SHOWN])


def effects_once(history: History) -> Iterator[Violation]:
    """Exactly once: what succeeded has one effect, and nothing else has any."""
    effects: dict[str, set[int]] = defaultdict(set)
    for run in history.runs:
        if run.kind == "effect":
            effects[run.uid.removeprefix("effect/")].add(run.id)
    for uid, runs in history.runs_by_uid.items():
        if runs[0].kind != "exact":
            continue
        row = history.ended.get(runs[0].id)
        wanted = 1 if row is not None and row.outcome == "succeeded" else 0
        if row is not None and len(effects[uid]) != wanted:
            said = f"{uid} has {len(effects[uid])} effects, and {wanted} is right"
            yield Violation("exactly once", said, history.about(runs[0].id))


def steps_once(history: History) -> Iterator[Violation]:
    """A step is not done again once the next one has begun."""
    reached: dict[int, int] = {}
    for event in history.by_what["step"]:
        id_, uid, number, *_ = event.about
        if number < reached.get(id_, 0):
            said = f"step {number} of {uid} was done after step {reached[id_]}"
            yield Violation("a step is done once", said, history.about(id_))
        reached[id_] = max(reached.get(id_, 0), number)


def flows_whole(history: History) -> Iterator[Violation]:
    """What follows a group comes once, after all of its members, with what each has returned."""
    collected: dict[str, list[Event]] = defaultdict(list)
    for event in history.by_what["collected"]:
        collected[event.about[0]].append(event)
    for flow in history.by_what["flowing"]:
        uid, members = flow.about
        found = {run.id for run in history.runs_by_uid[uid]}
        if len(found) != 1:
            yield Violation("a flow goes on once", f"{uid} has {len(found)} messages: {sorted(found)}")
            continue
        first = collected[uid][0]
        returned = [min(_ends(history, one), default=inf) for one in members]
        if first.about[1] != sorted(members) or max(returned) > first.at:
            said = f"{uid} got {first.about[1]}, before or without some of {sorted(members)}"
            yield Violation("a flow goes on once", said, history.about(min(found)))


def _ends(history: History, uid: str) -> Iterator[float]:
    """When attempts of this message returned."""
    return (run.ended for run in history.runs_by_uid[uid] if run.how == "returned")


def _overlapping(runs: Iterable[Run], most: int) -> Iterator[tuple[Run, Run]]:
    """Each one that began while `most` others held, and one of these."""
    holding: list[Run] = []
    for run in sorted(runs, key=lambda one: one.began):
        holding = [one for one in holding if one.held_until > run.began]
        if len(holding) >= most:
            yield holding[0], run
        holding.append(run)
