"""Flows in the database: steps end, and others are released, in the transaction that ends their messages.

Whoever ends messages of a flow first locks the row of its first step, until the transaction ends. So of two that end
the last predecessors of a step at once, the second one sees what the first one did, and releases the step. Nobody else
locks that row for longer than a statement takes: in particular nobody who cancels a flow in a long transaction. On
PostgreSQL, a batch of members that can't end their step shares the lock with others: see
`store.postgresql.sql`.

Whether all members of a step have ended is asked of their rows, never counted up or down. Whatever ends a message in
another way (an operator, a deletion) is found by `delayedq.flows.sweeping`.
"""
