"""Values on their way into the statements of MariaDB and MySQL, and out of their rows."""

from __future__ import annotations

import json
from datetime import UTC
from typing import TYPE_CHECKING, Any, overload

from delayedq.core.instants import MICROSECOND
from delayedq.core.lifecycle import FinalOutcome
from delayedq.core.limits import EARLIEST
from delayedq.exceptions import InvalidTime
from delayedq.store.protocol import Claimed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime, timedelta

    from delayedq.store.bare_queues import Matching
    from delayedq.store.protocol import Finish, GiveBack, Lane

#: A statement takes at most this many characters: each may need four bytes, and a packet holds 16 MB.
CHARACTERS = 2_000_000


def check_year(when: datetime) -> None:
    """Refuse with InvalidTime what is earlier than any DATETIME."""
    if when < EARLIEST:
        raise InvalidTime(f"{when!r} can't be stored: MySQL's times begin with the year 1000.")


@overload
def text(moment: datetime) -> str: ...
@overload
def text(moment: datetime | None) -> str | None: ...
def text(moment: datetime | None) -> str | None:
    """A time as a DATETIME takes it: UTC without an offset. None is the server's clock."""
    return None if moment is None else str(max(moment, EARLIEST).astimezone(UTC).replace(tzinfo=None))


def packets[R](rows: Iterable[R], size: Callable[[R], int], most: int) -> Iterator[list[R]]:
    """The rows in their order, split for statements of at most `most` rows and of limited size."""
    packet: list[R] = []
    room = CHARACTERS
    for row in rows:
        taken = size(row)
        if packet and (len(packet) == most or taken > room):
            yield packet
            packet, room = [], CHARACTERS
        packet.append(row)
        room -= taken
    if packet:
        yield packet


def length(row: Iterable[Any]) -> int:
    return sum(len(value) for value in row if isinstance(value, str))


def document(rows: Sequence[Sequence[Any]]) -> str:
    return json.dumps(rows, ensure_ascii=False)


def instant(stored: datetime) -> datetime:
    """The reverse of `text`."""
    return stored.replace(tzinfo=UTC)


def microseconds(duration: timedelta) -> int:
    return duration // MICROSECOND


def _micros(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)


def place(lane: Lane) -> dict[str, Any]:
    return {"queue": lane.queue, "priority": lane.priority, "watermark": text(lane.watermark or EARLIEST)}


# JSON in which every escape of a character stands for its own letters, and that of a backslash for two control
# characters: the server refuses half a surrogate pair, which a payload may hold.
_ESCAPES = {"backslash": r"\\", "controls": r"\b\f", "escape": r"\u", "letters": r"\\u"}


def matching_of(matching: Matching) -> dict[str, Any]:
    """For `bare_sql`. The names in a path need no quotes."""
    parameters = {**_ESCAPES, **place(matching.lane), **(matching.keys._asdict() if matching.keys else {})}
    for number, condition in enumerate(matching.conditions):
        parameters[f"path_{number}"] = f"$.{'.'.join(condition.path)}"
        parameters[f"exact_{number}"] = condition.has_int_bound
        parameters[f"bound_{number}"] = next(iter(condition.values), None)
        values = enumerate(map(_readable, condition.values))
        parameters |= {f"value_{number}_{index}": value for index, value in values}
    return parameters


def _readable(value: str) -> str:
    names = _ESCAPES
    return value.replace(names["backslash"], names["controls"]).replace(names["escape"], names["letters"])


def claimed_from(row: tuple[Any, ...]) -> Claimed:
    return Claimed._make([*row[:9], *map(instant, row[9:12]), *row[12:]])


def record(finish: Finish) -> list[Any]:
    """A row of `sql.RECORD`; only that of a dead letter has what tells it from others."""
    times = _micros(finish.started), _micros(finish.finished)
    row = [finish.claimed.id, finish.outcome.value, *times, finish.result, finish.errors]
    return [*row, *finish.last_error] if finish.outcome is FinalOutcome.FAILED else row


def given_back(back: GiveBack) -> list[Any]:
    """A row of `sql.GIVE_BACK`."""
    times = text(back.until), _micros(back.delay)
    return [back.claimed.id, int(not back.charged), *times, back.errors, back.metadata]


def superseded(id_: int, ran: Finish | GiveBack, worker: str, now: str | None) -> list[Any]:
    """A row of `sql.record_superseded`."""
    claimed = ran.claimed
    return [
        id_,
        *(now, _micros(ran.finished)),
        *(now, _micros(ran.started)),
        *map(text, (claimed.scheduled_at, claimed.scheduled_at_initially, claimed.created_at)),
        *(claimed.priority, claimed.attempt, claimed.max_attempts),
        *(claimed.queue, claimed.kind, claimed.key, worker),
        *(claimed.payload, claimed.metadata, ran.errors or claimed.errors),
    ]


def fence(claimed: Claimed) -> tuple[int, int]:
    return claimed.token, claimed.generation
