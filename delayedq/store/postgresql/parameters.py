"""Values on their way into the statements of PostgreSQL: a batch travels as one array for each column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from delayedq.core.lifecycle import FinalOutcome
from delayedq.store.claims import new_token
from delayedq.store.postgresql import offers_sql

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from datetime import timedelta

    from delayedq.store.bare_queues import Matching
    from delayedq.store.protocol import Claimed, ClaimRequest, Finish, GiveBack, Lane, Offer


def of_offer(offer: Offer) -> dict[str, Any]:
    return {name: getattr(offer, name) for name in offers_sql.OFFER_COLUMNS}


def of_offers(offers: Sequence[Offer]) -> dict[str, Any]:
    times = [offer.scheduled_at for offer in offers]
    return {
        **{name: texts([getattr(offer, name) for offer in offers]) for name in offers_sql.OFFER_TEXTS},
        "priority": numbers(offer.priority for offer in offers),
        "max_attempts": numbers(offer.max_attempts for offer in offers),
        "scheduled_at": times if any(times) else None,
    }


def of_unkeyed(offers: Sequence[Offer]) -> dict[str, Any]:
    times = [offer.scheduled_at for offer in offers]
    parameters = {
        "payload": texts([offer.payload for offer in offers]),
        "scheduled_at": times if any(times) else None,
    }
    arrays: dict[str, Callable[[list[Any]], str | None]]
    arrays = {"queue": texts, "kind": texts, "metadata": texts, "priority": numbers, "max_attempts": numbers}
    for name, array in arrays.items():
        values = [getattr(offer, name) for offer in offers]
        is_same = values.count(values[0]) == len(values)
        parameters |= {name: None if is_same else array(values), f"same_{name}": values[0] if is_same else None}
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


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def of_returns(returns: Sequence[GiveBack]) -> dict[str, Any]:
    return {
        **of_leases([back.claimed for back in returns]),
        "charged": [back.charged for back in returns],
        "delays": numbers(back.delay for back in returns),
        "untils": [back.until for back in returns],
        "errors": texts([back.errors for back in returns]),
        "metadata": texts([back.metadata for back in returns]),
    }
