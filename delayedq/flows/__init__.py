"""Flows: chains, groups and graphs of tasks. `docs/flows.md` is the guide.

`graph` has the Flow and its parts (`chain`, `group`, `map_`), `result` what `enqueue` returns. `rules` judges what
becomes of the steps that wait, from values alone. `feature` is what the store asks; `ending` ends and releases steps in
the transaction that ends their messages; `sweeping` is what workers do besides. `operator` and `admin` are for who
operates them.

Whoever ends messages of a flow first locks the row of its first step, until the transaction ends. So of two that end
the last predecessors of a step at once, the second one sees what the first one did, and releases the step. Nobody else
locks that row for longer than a statement takes: in particular nobody who cancels a flow in a long transaction. On
PostgreSQL, a batch of members that can't end their step shares the lock with others: see `postgresql`.

Whether all members of a step have ended is asked of their rows, never counted up or down. Whatever ends a message in
another way (an operator, a deletion) is found by `sweeping`.
"""
