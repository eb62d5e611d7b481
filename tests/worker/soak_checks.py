"""What the lines of the soak of limits prove, without tolerance.

Each attempt holds its places from the moment at which its claim had counted what runs, until its handler has ended or
its process was killed. At each claim, no more are held than the largest number that a limit had in that moment: a
change of a limit holds once it is committed, and while that is under way, either does.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections import defaultdict
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

#: Concurrency of the tasks and of the limits that they share; and the size of `measure`.
API, CALLS, FETCHES, MEASURES, SHARED, BARE, SIZE = 6, 2, 3, 3, 12, 2, 12
#: Starts per second, and at once.
PACE, BURST = 20, 3
QUEUE, BARE_QUEUE, API_NAME = "soaked", "soaked_contacts", "soaked-api"
TASKS = "tests.app.soaked."
OWN = {f"{TASKS}call": CALLS, f"{TASKS}measure": MEASURES, f"{TASKS}follow": 1}


def write(what, *words):
    """Append one line to the file that SOAKED names; of any process, at any time."""
    file = os.open(os.environ["SOAKED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, " ".join(map(str, (time.time_ns(), what, *words))).encode() + b"\n")
    os.close(file)


class Attempt(NamedTuple):
    """Of a message; moments in ns, but for `moment`: that of the claim by the database's clock, in µs."""

    message: int
    queue: str
    kind: str
    channel: str
    counted: int
    began: int
    over: int
    moment: int

    def scopes(self):
        """The limits that it counts in, and what the code says of them."""
        if self.queue == QUEUE:
            yield f"{QUEUE}/-", SHARED
            if self.kind in {f"{TASKS}call", f"{TASKS}fetch"}:
                yield f"{API_NAME}/-", API
            if self.kind in OWN:
                yield f"{self.kind}/{self.channel}", OWN[self.kind]
            elif self.kind == f"{TASKS}fetch":
                yield f"{self.kind}/-", FETCHES
        else:
            yield f"{BARE_QUEUE}/{self.channel}", BARE


class Lines:
    """What the processes wrote, in order."""

    def __init__(self, path):
        self.by_name = defaultdict(list)
        for line in sorted((one.split() for one in path.read_text().splitlines()), key=lambda words: int(words[0])):
            self.by_name[line[1]].append([int(line[0]), *line[2:]])

    def attempts(self):
        """All that began. What a process had begun ended when it was killed, at the latest."""
        claims = {(id_, token): (int(counted), int(at)) for _, counted, id_, token, at, _ in self.by_name["claimed"]}
        ended = {tuple(words): at for at, *words in self.by_name["ended"]}
        killed = defaultdict(list)
        for at, process in self.by_name["killed"]:
            killed[process].append(at)
        for began, *who in self.by_name["began"]:
            process, id_, token, queue, kind, channel = who
            over = ended.get(tuple(who)) or next((at for at in killed[process] if at > began), None)
            assert over is not None, f"{who} has neither ended nor was its process killed"
            counted, moment = claims[id_, token]
            yield Attempt(int(id_), queue, kind, channel, counted, began, over, moment)

    def changes(self):
        """By scope: when a change began, from when on it held for sure, and the number that was set; None: cleared."""
        found = defaultdict(list)
        for at, scope, number in self.by_name["changing"]:
            found[scope].append([at, inf, None if number == "None" else int(number)])
        sure = defaultdict(list)
        for at, scope, _ in self.by_name["changed"]:
            sure[scope].append(at)
        for scope, changes in found.items():
            for one, after in zip(changes, [*changes[1:], [inf]], strict=True):
                one[1] = next((at for at in sure[scope] if one[0] <= at <= after[0]), inf)
        return found


def most_allowed(changes, defined, since, until):
    """The largest number that a limit had from one moment (ns) to another."""
    allowed = defined
    for began, sure, number in changes:
        if began >= until:
            break
        value = defined if number is None else number
        allowed = value if sure <= since else max(allowed, value)
    return allowed


def exceeded(attempts, changes):
    """Claims that gave out more places than their limits had, and the fullest that each limit was."""
    found, fullest = [], defaultdict(int)
    by_scope = defaultdict(list)
    for one in attempts:
        for scope, defined in one.scopes():
            by_scope[scope, defined].append(one)
    for (scope, defined), those in by_scope.items():
        running = []
        for one in sorted(those, key=lambda each: each.counted):
            while running and running[0] <= one.counted:
                heappop(running)
            heappush(running, one.over)
            fullest[scope] = max(fullest[scope], len(running))
            allowed = most_allowed(recent(changes.get(scope, []), one), defined, one.moment * 1_000, one.counted)
            if len(running) > allowed:
                found.append((scope, len(running), allowed, one))
    return found, fullest


def recent(changes, one):
    """Those from the last one that held for sure before this claim."""
    last = bisect_right([began for began, *_ in changes], one.counted)
    first = next((n for n in range(last - 1, -1, -1) if changes[n][1] <= one.moment * 1_000), 0)
    return changes[first:last]


def overlapping(attempts):
    """Attempts that began while another one of the same message ran."""
    last, found = {}, []
    for one in sorted(attempts, key=lambda each: each.began):
        before = last.get(one.message)
        if before is not None and before.over > one.began:
            found.append((before, one))
        last[one.message] = one if before is None else max(before, one, key=lambda each: each.over)
    return found


def too_fast(attempts):
    """Of each channel with a rate: by how many starts it was exceeded over any window, in millionths."""
    starts = defaultdict(list)
    for one in attempts:
        if one.kind == f"{TASKS}pace":
            starts[one.channel].append(one.moment)
    found = {}
    for channel, moments in starts.items():
        least = inf
        for number, moment in enumerate(sorted(moments)):
            beyond = 10**6 * number - PACE * moment
            least = min(least, beyond)
            excess = beyond - least - 10**6 * (BURST - 1)
            if excess > 0:
                found[channel] = max(found.get(channel, 0), excess)
    return found
