"""Values on their way into the statements of PostgreSQL: a batch travels as one array for each column."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from psycopg.adapt import Dumper
from psycopg.pq import Format

from delayedq.core.flows import flow_of, step_id
from delayedq.core.lifecycle import FinalOutcome
from delayedq.store.claims import new_token
from delayedq.store.postgresql import offers_sql
from delayedq.store.protocol import Offer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from delayedq.store.bare_queues import Matching
    from delayedq.store.protocol import Claimed, ClaimRequest, Finish, GiveBack, Lane

#: The types of a time and of an array of them; from when a time counts, in what, and in how many bytes.
_TIMESTAMPTZ, _TIMESTAMPTZ_ARRAY = 1184, 1185
_EPOCH, _MICROSECOND, _EIGHT_BYTES = datetime(2000, 1, 1, tzinfo=UTC), timedelta(microseconds=1), 8


def of_offer(offer: Offer) -> dict[str, Any]:
    return {name: getattr(offer, name) for name in offers_sql.OFFER_COLUMNS}


def of_offers(offers: Sequence[Offer]) -> dict[str, Any]:
    """Of at least one. What they have in common is sent once."""
    values = dict(zip(Offer._fields, zip(*offers, strict=True), strict=True))
    parameters = {
        "key": texts(values["key"]),
        "payload": texts(values["payload"]),
        "scheduled_at": moments(values["scheduled_at"]),
    }
    for name, array in _ALIKE.items():
        first, is_same = values[name][0], values[name].count(values[name][0]) == len(offers)
        parameters |= {name: None if is_same else array(values[name]), f"same_{name}": first if is_same else None}
    return parameters


def of_lanes(lanes: Sequence[Lane]) -> dict[str, Any]:
    return {
        "queues": [lane.queue for lane in lanes],
        "priorities": [lane.priority for lane in lanes],
        "watermarks": [lane.watermark for lane in lanes],
    }


def of_lease(lease: timedelta, worker: str, token: int | None = None) -> dict[str, Any]:
    return {"token": token or new_token(), "lease": lease, "worker": worker}


def of_request(request: ClaimRequest) -> dict[str, Any]:
    lease = of_lease(request.lease, request.worker, request.token)
    return {**of_lanes(request.lanes), **lease, "limit": request.limit, "expired": request.expired}


def of_matching(matching: Matching) -> dict[str, Any]:
    """For `bare_sql.claim_matching`. Names are ASCII identifiers, so a path is an array as PostgreSQL writes it."""
    parameters = {**matching.lane._asdict(), **(matching.keys._asdict() if matching.keys else {})}
    for number, condition in enumerate(matching.conditions):
        parameters |= {
            f"path_{number}": "{" + ",".join(f'"{name}"' for name in condition.path) + "}",
            f"values_{number}": list(condition.values),
            f"bound_{number}": next(iter(condition.values), None),
            f"exact_{number}": condition.has_int_bound,
        }
    return parameters


def of_held(held: Collection[tuple[int, int]]) -> dict[str, Any]:
    return {"ids": numbers(id_ for id_, _ in held), "tokens": numbers(token for _, token in held)}


def of_leases(claims: Sequence[Claimed]) -> dict[str, Any]:
    return {
        "ids": numbers(claimed.id for claimed in claims),
        "tokens": numbers(claimed.token for claimed in claims),
        "generations": numbers(claimed.generation for claimed in claims),
    }


def of_finishes(finishes: Sequence[Finish]) -> dict[str, Any]:
    dead = [finish.last_error for finish in finishes] if any(map(_is_dead, finishes)) else []
    return {
        **of_leases([finish.claimed for finish in finishes]),
        "outcomes": texts([None if f.outcome is FinalOutcome.SUCCEEDED else f.outcome.value for f in finishes]),
        "started_us": numbers(None if f.started is None else int(f.started * 1e6) for f in finishes),
        "finished_us": numbers(int(f.finished * 1e6) for f in finishes),
        "results": texts([finish.result for finish in finishes]),
        "errors": texts([finish.errors for finish in finishes]),
        "error_lines": texts([error for error, _ in dead]),
        "fingerprints": numbers(fingerprint for _, fingerprint in dead) if dead else None,
    }


def of_steps(steps: Collection[int]) -> dict[str, Any]:
    """These steps of flows, by id, and the first one of each of their flows, which is locked for it."""
    if not steps:
        return {}
    return {"steps": numbers(steps), "first_steps": numbers({step_id(flow_of(step), 0) for step in steps})}


def _is_dead(finish: Finish) -> bool:
    return finish.outcome is FinalOutcome.FAILED


def numbers(values: Iterable[float | None]) -> str:
    """An array of numbers as PostgreSQL writes it: psycopg's own way takes ten times as long for a batch of acks."""
    return "{" + ",".join(["NULL" if value is None else repr(value) for value in values]) + "}"


def texts(values: Sequence[str | None]) -> str | None:
    """The same for texts. An array that holds nothing but NULL need not be sent: unnest() fills it up."""
    if all(value is None for value in values):
        return None
    first = values[0]
    if first is not None and values.count(first) == len(values):  # the metadata of the members of a group
        return "{" + ",".join([_quoted(first)] * len(values)) + "}"
    return "{" + ",".join(["NULL" if value is None else _quoted(value) for value in values]) + "}"


def moments(values: Sequence[datetime | None]) -> str | Moments | None:
    """The same for times. In binary they take a third of the time of texts, here and there."""
    if not any(values):
        return None
    if None in values:
        return "{" + ",".join(["NULL" if value is None else f'"{value!s}"' for value in values]) + "}"
    sizes_and_times = [_EIGHT_BYTES] * (2 * len(values))
    sizes_and_times[1::2] = [(value - _EPOCH) // _MICROSECOND for value in values]  # type: ignore[operator]
    return Moments(struct.pack(f">5i{'iq' * len(values)}", 1, 0, _TIMESTAMPTZ, len(values), 1, *sizes_and_times))


class Moments(bytes):
    """An array of times as PostgreSQL sends and receives it in binary."""

    __slots__ = ()


class MomentsDumper(Dumper):
    oid, format = _TIMESTAMPTZ_ARRAY, Format.BINARY

    def dump(self, obj: Moments) -> bytes:
        return bytes(obj)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


#: The columns in which the offers of a batch are mostly alike, and how they are written where they are not.
_ALIKE: dict[str, Callable[[Sequence[Any]], str | None]]
_ALIKE = {"queue": texts, "kind": texts, "metadata": texts, "priority": numbers, "max_attempts": numbers}


def of_returns(returns: Sequence[GiveBack]) -> dict[str, Any]:
    return {
        **of_leases([back.claimed for back in returns]),
        "charged": [back.charged for back in returns],
        "delays": numbers(back.delay for back in returns),
        "untils": [back.until for back in returns],
        "errors": texts([back.errors for back in returns]),
        "metadata": texts([back.metadata for back in returns]),
    }
