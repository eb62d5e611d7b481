"""Keys of delayedq itself in the metadata of a message: names that begin with `delayedq.`, beside those of the task.

Metadata travels with its message, also into the history and back. A message that uses none of this has none.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from delayedq.core.serialization import stored_json

PREFIX = "delayedq."
#: Seconds that the message may wait for its first start, and within which it must have ended; see `Task`.
EXPIRES, DEADLINE = f"{PREFIX}expires", f"{PREFIX}deadline"
#: It does not expire any more: an attempt that is not charged has started. The value is when it was first due, which
#: changes where a message is brought back after its end; true, if a former version has stored it.
STARTED = f"{PREFIX}started"
#: The message whose attempt has made this one, and the first one of that line.
PARENT, ROOT = f"{PREFIX}parent", f"{PREFIX}root"

#: The flow and the number of the step whose message it is; see `flows.rules`.
FLOW, STEP = f"{PREFIX}flow", f"{PREFIX}step"
#: Seconds within which its flow lets it run; its own DEADLINE may be shorter.
STEP_DEADLINE = f"{PREFIX}step_deadline"

_MARK = f'"{PREFIX}'


def with_own(metadata: str | None, values: dict[str, Any]) -> str | None:
    """The metadata (JSON) with these values of delayedq; None if there are none at all.

    >>> with_own('{"a":1}', {EXPIRES: 60.0})
    '{"a":1,"delayedq.expires":60.0}'
    """
    if not values:
        return metadata
    return json.dumps({**stored_json(metadata, dict), **values}, separators=(",", ":"))


def own(metadata: str | None, name: str) -> Any:
    """One value of delayedq; None if the message has none."""
    if not metadata or name not in metadata:
        return None
    return stored_json(metadata, dict).get(name)


def stored_duration(metadata: str | None, name: str, otherwise: timedelta | None) -> timedelta | None:
    """One value of delayedq that is a number of seconds; `otherwise` if the message has none that can be read."""
    seconds = own(metadata, name)
    try:
        return otherwise if seconds is None else timedelta(seconds=seconds)
    except (TypeError, ValueError, OverflowError):
        return otherwise


def shortest_deadline(metadata: str | None, otherwise: timedelta | None) -> timedelta | None:
    """Its own deadline (`otherwise` that of its task) or that of its flow, whichever is over first."""
    if not metadata or (DEADLINE not in metadata and STEP_DEADLINE not in metadata):
        return otherwise
    both = stored_duration(metadata, DEADLINE, otherwise), stored_duration(metadata, STEP_DEADLINE, None)
    return min((one for one in both if one is not None), default=None)


def as_given(metadata: str | None) -> str | None:
    """The metadata as the task gave it."""
    if not metadata or _MARK not in metadata:
        return metadata
    loaded = json.loads(metadata)
    rest = {name: value for name, value in loaded.items() if not name.startswith(PREFIX)}
    if len(rest) == len(loaded):
        return metadata
    return json.dumps(rest, separators=(",", ":")) if rest else None
