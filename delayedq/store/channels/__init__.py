"""Messages with a channel: how they are lined up, and how claims take them. Messages without one never come here.

`offers` is what offers and settlements insert; `claims` is the claim, which reads `notices`, visits channels (`visits`)
and finds what waits and runs in them (`places`). docs/limits.md describes the whole.
"""
