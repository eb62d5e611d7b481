"""What the heartbeats of worker processes have in common on all databases.

The workers are one JSON document. `now` may be NULL, for the database's clock.
"""

from __future__ import annotations

from delayedq.store.columns import listed

#: What a heartbeat writes.
GIVEN = ("name", "host", "pid", "threads", "queues", "excluded_queues", "lease", "held", "running", "problems")
COLUMNS = listed(f"given.{name}" for name in GIVEN)
INSERT = f"INSERT INTO delayedq_worker ({listed(GIVEN)}, started_at, seen_at)"
#: What it changes of a worker that is known.
RENEWED = (*GIVEN[1:], "started_at", "seen_at")
#: What it answers, where the database lets an INSERT answer.
ANSWER = "RETURNING name, asked"
# With the first heartbeat of a process, what was asked of an earlier one of its name is forgotten: of one that was last
# seen before this one started. The times alone do not tell them apart: a heartbeat that is held up moves the start.
_ASKED = """asked = CASE WHEN %(first)s AND excluded.started_at > delayedq_worker.seen_at THEN ''
    ELSE delayedq_worker.asked END"""
ON_CONFLICT = f"""
ON CONFLICT (name) DO UPDATE SET {_ASKED}, {", ".join(f"{name} = excluded.{name}" for name in RENEWED)}
"""
