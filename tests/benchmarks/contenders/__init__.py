"""The contenders: delayedq, its floor and its peers, each a module with the same four functions.

Each function runs in a separate process, started by `python -m tests.benchmarks.contenders NAME VERB COUNT`:

`prepare()` creates the tables; `fill(count)` enqueues messages in the fastest way the peer documents; `drain(count)`
runs a worker until the stopwatch has counted `count` tasks; `enqueue(count)` enqueues one by one, with one commit each.
All have a no-op task that takes one integer. `SETTINGS` describes the set-up in one line.

A contender in another language has `command()` instead: the program that has these verbs; see `program`.

libpq's variables (PGHOST, PGUSER, PGDATABASE) name the database; the Django settings here read them too.
"""

#: In the order of the rows of the tables.
POSTGRESQL = (
    "floor", "delayedq_defaults", "delayedq", "graphile_worker", "pg_boss", "river", "pgqueuer", "oban", "awa",
    "procrastinate", "django_ox", "dj_queue", "django_tasks_db", "celery",
)  # fmt: skip
SQLITE = ("floor_django", "delayedq", "huey")
MARIADB = ("floor_django", "delayedq")
