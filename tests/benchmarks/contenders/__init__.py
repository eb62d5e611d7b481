"""What is compared: delayedq, the floor under it, and its peers, each in a module with the same four functions.

Each function runs in a process of its own, started by `python -m tests.benchmarks.contenders NAME VERB COUNT`:

`prepare()` makes the tables; `fill(count)` puts messages in, in the fastest way the peer documents; `drain(count)` runs
a worker until the stopwatch has seen so many; `enqueue(count)` enqueues one by one, each durable on its own. All have a
no-op task that takes one integer. `SETTINGS` says in a line how it is set up.

The database is named by libpq's variables (PGHOST, PGUSER, PGDATABASE), which Django's settings here read too.
"""

#: In the order of the tables.
POSTGRESQL = (
    "floor", "delayedq", "pgqueuer", "oban", "awa", "procrastinate", "django_ox", "dj_queue", "django_tasks_db",
    "celery",
)  # fmt: skip
SQLITE = ("delayedq", "huey")
