"""The options of `format("delayedq")`, read and checked. Spark passes them as texts and shows them in its logs."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from delayedq.exceptions import InvalidOption
from delayedq.pipeline.spark.connecting import Address
from delayedq.pipeline.spark.schema import FINAL_STATES, LIVE_STATES, MESSAGES, STATES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

#: How many ranges a read is divided into, and the most of them: each is a connection, which takes some 100 ms to open.
PARTITIONS, MOST_PARTITIONS = 4, 64


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages are read. An empty tuple selects all; the window is on `finished_at`, and what lives is in any."""

    address: Address
    states: tuple[str, ...] = STATES
    kinds: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    snapshot: str | None = None
    partitions: int = PARTITIONS
    #: How long after its end a message may at most be recorded, as a stream reads it.
    lateness: timedelta = timedelta(minutes=1)

    @property
    def live(self) -> bool:
        """Are messages selected that have not ended?"""
        return any(state in LIVE_STATES for state in self.states)

    @property
    def ended(self) -> bool:
        """Is history selected?"""
        return any(state in FINAL_STATES for state in self.states)

    def parameters(self) -> dict[str, str | datetime | None]:
        """Those of the statements in `reading_sql`; lists as JSON, empty for all."""
        lists = {"states": self.states, "kinds": self.kinds, "queues": self.queues}
        return {name: json.dumps(names) if names else "" for name, names in lists.items()} | {
            "since": self.since,
            "until": self.until,
        }


def selection(options: Mapping[str, str]) -> Selection:
    """Raises InvalidOption, naming the option."""
    known = ("address", "states", "kinds", "queues", "since", "until", "snapshot", "partitions", "lateness", "columns")
    refuse_unknown(options, known)
    return Selection(
        address=address(options),
        states=_states(_names(options, "states")) or STATES,
        kinds=_names(options, "kinds"),
        queues=_names(options, "queues"),
        since=_moment(options, "since"),
        until=_moment(options, "until"),
        snapshot=options.get("snapshot") or None,
        partitions=int(_number(options, "partitions", PARTITIONS, 1, MOST_PARTITIONS)),
        lateness=timedelta(seconds=_number(options, "lateness", 60, 0, 366 * 86_400)),
    )


def stream_selection(options: Mapping[str, str]) -> Selection:
    """Only what has ended is streamed, and no snapshot holds it. Raises InvalidOption."""
    selected = selection({"states": ",".join(FINAL_STATES), **options})
    if selected.live:
        raise InvalidOption(f"states: a stream is of finished messages: {', '.join(FINAL_STATES)}.")
    if selected.snapshot:
        raise InvalidOption("snapshot: a stream can't read one, because it continues after it.")
    if "lateness" not in options and selected.address.vendor == "postgresql":
        return replace(selected, lateness=timedelta(hours=1))  # where it costs nothing
    return selected


def columns(options: Mapping[str, str]) -> StructType:
    """The columns of MESSAGES that were asked for, in the order in which they were; without the option, all."""
    names = _names(options, "columns") or tuple(MESSAGES.names)
    if unknown := sorted(set(names) - set(MESSAGES.names)):
        raise InvalidOption(f"columns: {', '.join(unknown)} unknown; known are {', '.join(MESSAGES.names)}.")
    return StructType([MESSAGES[name] for name in dict.fromkeys(names)])


def address(options: Mapping[str, str]) -> Address:
    """Raises InvalidOption if there is none."""
    if "address" not in options:
        raise InvalidOption(
            "address: missing; it says where the URL of the database is kept, as in file:/run/secrets/db."
        )
    return Address(options["address"])


def refuse_unknown(options: Mapping[str, str], known: Collection[str]) -> None:
    """Raises InvalidOption, naming the unknown options and those that there are."""
    # Spark's dict lowers the names.
    if unknown := sorted({name.lower() for name in options} - set(known)):
        raise InvalidOption(f"{', '.join(unknown)}: unknown; known are {', '.join(known)}.")


def _names(options: Mapping[str, str], option: str) -> tuple[str, ...]:
    """Separated by commas; or a JSON list, for names that have commas."""
    text = options.get(option, "").strip()
    if not text.startswith("["):
        return tuple(name.strip() for name in text.split(",") if name.strip())
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidOption(f"{option}: names separated by commas, or a JSON list of them, not {text!r}.")
    return tuple(names)


def _states(states: tuple[str, ...]) -> tuple[str, ...]:
    if unknown := sorted(set(states) - set(STATES)):
        raise InvalidOption(f"states: {', '.join(unknown)} unknown; known are {', '.join(STATES)}.")
    return states


def _moment(options: Mapping[str, str], option: str) -> datetime | None:
    text = options.get(option)
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidOption(f"{option}: a time in ISO 8601, not {text!r}.") from None
    if moment.utcoffset() is None:
        raise InvalidOption(f"{option}: {text} has no time zone; add one, as in {text}Z.")
    return moment.astimezone(UTC)


def _number(options: Mapping[str, str], option: str, default: int, least: int, most: int) -> float:
    text = options.get(option, str(default))
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        raise InvalidOption(f"{option}: a number from {least} to {most}, not {text!r}.")
    return number
