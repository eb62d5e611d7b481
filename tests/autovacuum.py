"""PostgreSQL cleans up and counts by itself, in transactions that a test may meet."""

from __future__ import annotations

import time

from django.db import connections

_AT_WORK = """
SELECT count(*) FROM pg_stat_activity
WHERE backend_type = 'autovacuum worker' AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)
"""
#: Seconds.
PATIENCE = 60


def outlast_autovacuum(alias):
    """Wait for its transactions that are open: those that begin later see all that has been committed by now."""
    until = time.monotonic() + PATIENCE
    with connections[alias].cursor() as cursor:
        while True:
            cursor.execute(_AT_WORK)
            if cursor.fetchone() == (0,):
                return
            assert time.monotonic() < until, "autovacuum does not end"
            time.sleep(0.02)
