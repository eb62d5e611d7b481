"""What the statements of the store and of the pipeline have in common: no Django, no I/O, and one place for each rule.

`columns` lists the columns of both tables, `priority` says how a channel is folded into the stored priority, `leases`
who holds a message, `states` what a live message does, and `dialects` how the databases differ.
"""
