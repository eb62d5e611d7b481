"""Messages of flows on PostgreSQL: what takes several statements elsewhere is one here."""

from __future__ import annotations

from itertools import batched
from typing import TYPE_CHECKING, Any, cast

from delayedq.flows.rules import flow_of, step_id
from delayedq.store.base import CHUNK
from delayedq.store.offers import check
from delayedq.store.postgresql.database import numbers, of_offers
from delayedq.store.postgresql.sql import OFFER_UNKEYED, settle_and_claim_if

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from delayedq.store.base import Store
    from delayedq.store.postgresql.database import PostgreSQLDatabase
    from delayedq.store.protocol import Offer

OFFER_STEP = f"""
WITH offered AS ({OFFER_UNKEYED}), member AS (
    INSERT INTO delayedq_flowmember (message_id, step_id) SELECT id, %(step)s::bigint FROM offered
)
SELECT count(*) FROM offered
"""


def offer_step(store: Store, offers: Sequence[Offer], step: int, *, checked: bool) -> None:
    """Store plain messages without keys, and that they are members of this step: their ids need not come here."""
    for offer in () if checked else offers:
        check(offer)
    database = cast("PostgreSQLDatabase", store.database)
    with database.atomic():
        for some in batched(offers, CHUNK):
            database.batch(OFFER_STEP, {**of_offers(some), "step": step})
        store.notify_after_commit({offer.scheduled_at for offer in offers})


# A batch of members of groups ends, and the next messages are claimed, in one statement.
#
# It does that only if no step can be over with it: if the last member of each step lives, and is not in the batch.
# Else it changes nothing, and `flows.ending` ends the batch in a transaction of several statements.
#
# Whoever ends a last member locks its flow first, and waits for those who share that lock here. So the last member
# lives as long as this statement does, and who ends it sees all that this has written. Its row is locked, too: what
# another has ended since this statement began would be taken for living.


# Together these conditions say that all of the flows are locked, and that the last member of each step lives.
_LOCKED = "(SELECT count(*) FROM flow) = cardinality(%(first_steps)s::bigint[])"

_GOES_ON = "(SELECT count(*) FROM last_member) = cardinality(%(steps)s::bigint[])"

_LAST_MEMBERS = f"""
flow AS MATERIALIZED (
    SELECT id FROM delayedq_flowstep WHERE id = ANY(ARRAY(SELECT unnest(%(first_steps)s::bigint[])))
    FOR SHARE SKIP LOCKED
),
last_member AS MATERIALIZED (
    SELECT message_id FROM delayedq_flowmember
    WHERE message_id = ANY(ARRAY(
        SELECT (SELECT max(message_id) FROM delayedq_flowmember WHERE step_id = step.id)
        FROM unnest(%(steps)s::bigint[]) AS step (id)
    )) AND outcome IS NULL AND message_id <> ALL(%(ids)s::bigint[]) AND {_LOCKED}
    FOR SHARE SKIP LOCKED
)"""

_MEMBERS = """
member AS (
    UPDATE delayedq_flowmember SET outcome = 'succeeded' WHERE message_id = ANY(ARRAY(SELECT id FROM ended))
)"""

SETTLE_MEMBERS_AND_CLAIM = settle_and_claim_if(_GOES_ON, _LAST_MEMBERS, _MEMBERS)


def of_steps(steps: Collection[int]) -> dict[str, Any]:
    """These steps of flows, by id, and the first one of each of their flows, which is locked for it."""
    if not steps:
        return {}
    return {"steps": numbers(steps), "first_steps": numbers({step_id(flow_of(step), 0) for step in steps})}
