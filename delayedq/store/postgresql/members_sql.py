"""A batch of members of groups ends, and the next messages are claimed, in one statement.

It does that only if no step can be over with it: if the last member of each step lives, and is not in the batch. Else
it changes nothing, and `store.flows.ending` ends the batch in a transaction of several statements.

Whoever ends a last member locks its flow first, and waits for those who share that lock here. So the last member lives
as long as this statement does, and who ends it sees all that this has written. Its row is locked, too: what another has
ended since this statement began would be taken for living.
"""

from __future__ import annotations

from delayedq.store.postgresql import sql

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
SETTLE_AND_CLAIM = sql.settle_and_claim_if(_GOES_ON, _LAST_MEMBERS, _MEMBERS)
