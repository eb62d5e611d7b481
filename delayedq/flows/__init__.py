"""Flows: chains, groups and graphs of tasks. `docs/flows.md` is the guide.

`graph` has the Flow and its steps, `parts` has `chain`, `group` and `map_`, `result` what `enqueue` returns, and
`sweeping` what workers do for flows besides ending their messages.
"""
