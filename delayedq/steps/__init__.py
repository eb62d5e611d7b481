"""Durable steps: what a task has done survives its attempts. `docs/steps.md` is the guide.

`rules` names and numbers the steps of an attempt, `running` runs them in the worker, `store` keeps what each has
returned, and `feature` is what the store asks when messages end or come back.
"""
