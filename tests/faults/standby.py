"""What a promoted standby had not got: which lines of the audit tell of what the database lost.

A failover to an asynchronous standby loses commits that were acknowledged: messages, claims and ends. The judge of
`delayedq torture` has no tolerance for that, so it is told exactly what was lost. Both servers are read: the standby
when it has replayed all that it received, and is not promoted yet; the old primary after it was started again, where
nobody else reaches it. A line is left out only if it tells of something of which the primary knows and the standby
does not.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from delayedq.torture.audit import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import psycopg

    from delayedq.torture.audit import Event

_MESSAGES = """
SELECT id, payload, attempt, lease_token FROM delayedq_message WHERE kind LIKE %(kinds)s
UNION ALL
SELECT id, payload, NULL, NULL FROM delayedq_finishedmessage WHERE kind LIKE %(kinds)s AND outcome <> 'superseded'
"""
_STEPS = "SELECT message_id, name FROM delayedq_recordedstep"


class Seen(NamedTuple):
    """A message. `uid` is the first argument of its task; `attempt` and `token` are None where it has ended."""

    uid: str
    attempt: int | None
    token: int | None


class State(NamedTuple):
    """What one server has: messages by id, steps, and the newest version of each key."""

    messages: Mapping[int, Seen]
    steps: frozenset[tuple[int, str]]
    versions: Mapping[str, int]
    uids: frozenset[str]


def state_of(connection: psycopg.Connection[Any]) -> State:
    rows = connection.execute(_MESSAGES, {"kinds": f"{KINDS}%"}).fetchall()
    messages = {id_: Seen(_uid(payload), attempt, token) for id_, payload, attempt, token in rows}
    versions: dict[str, int] = {}
    for one in messages.values():
        key, sign, version = one.uid.rpartition("#")
        if sign:
            versions[key] = max(versions.get(key, 0), int(version))
    steps = frozenset((id_, name) for id_, name in connection.execute(_STEPS).fetchall())
    return State(messages, steps, versions, frozenset(one.uid for one in messages.values()))


def _uid(payload: str) -> str:
    """Of `collect`, it is the second argument when its message has got the results, and the first before."""
    arguments = [one for one in json.loads(payload).get("args", []) if isinstance(one, str)]
    return arguments[0] if arguments else ""


#: Where a line has the message and the token of the attempt that wrote it.
_ATTEMPT = {"began": (0, 1), "ended": (0, 1), "tick": (0, 2), "step": (0, 3), "collected": (2, 3)}


def attempt_of(event: Event) -> tuple[int, int] | None:
    """The message and the token of the attempt that wrote this line; None if none did."""
    if event.what not in _ATTEMPT:
        return None
    id_, token = _ATTEMPT[event.what]
    return event.about[id_], event.about[token]


class Lost:
    """What the standby had not got of what the primary had.

    promoted: a moment (ns of the audit) when the primary was gone already, and the standby did not write yet.
    """

    def __init__(self, primary: State, standby: State, promoted: int) -> None:
        self._primary, self._standby, self._promoted = primary, standby, promoted

    def told(self) -> dict[str, int]:
        """How much: messages, and claims or ends of messages that the standby had."""
        theirs, ours = self._primary.messages, self._standby.messages
        return {
            "messages": len(theirs.keys() - ours.keys()),
            "changes": sum(theirs[id_] != one for id_, one in ours.items() if id_ in theirs),
        }

    def leave_out(self, events: Sequence[Event]) -> list[Event]:
        """The audit without what was lost."""
        forgotten = {attempt_of(event) for event in events if event.what == "began" and self._is_forgotten(event)}
        return [
            self._without_lost(event)
            for event in events
            if attempt_of(event) not in forgotten and not self._is_lost_step(event) and not self._is_lost_flow(event)
        ]

    def _without_lost(self, event: Event) -> Event:
        if event.what == "stored":
            return event._replace(about=tuple(one for one in event.about if not self._is_lost_uid(one[0])))
        if event.what == "offered":
            known = {key: number for key, number in event.about[0].items() if not self._is_lost_version(key, number)}
            return event._replace(about=(known,))
        return event

    def _is_lost_uid(self, uid: str) -> bool:
        return uid in self._primary.uids and uid not in self._standby.uids

    def _is_lost_version(self, key: str, version: int) -> bool:
        return self._standby.versions.get(key, 0) < version <= self._primary.versions.get(key, 0)

    def _is_forgotten(self, began: Event) -> bool:
        """Whether the standby had not got the claim of this attempt, which the primary had."""
        id_, token, attempt, _, uid, *_ = began.about
        held = self._primary.messages.get(id_)
        if began.at > self._promoted and (held is None or held.token != token):
            return False  # claimed after the failover
        seen = self._standby.messages.get(id_)
        if seen is None:
            return True
        key, sign, version = uid.rpartition("#")
        if sign and int(version) != self._standby.versions.get(key, 0):
            return self._is_lost_version(key, int(version))
        if seen.attempt is None:
            return False
        return attempt > seen.attempt or (attempt == seen.attempt and seen.token not in {None, token})

    def _is_lost_flow(self, event: Event) -> bool:
        return event.what == "flowing" and self._is_lost_uid(event.about[1][0])

    def _is_lost_step(self, event: Event) -> bool:
        """One that was recorded by the primary alone."""
        if event.what != "step":
            return False
        id_, _, number, *_ = event.about
        step = (id_, f"step {number}")
        ended = (seen := self._standby.messages.get(id_)) is not None and seen.attempt is None
        return event.at < self._promoted and not ended and step not in self._standby.steps
