"""Autovacuum and auto-analyze of PostgreSQL, whose transactions can interfere with a test."""

from __future__ import annotations

from django.db import connections

from tests.worker.conftest import eventually

_AT_WORK = """
SELECT FROM pg_stat_activity
WHERE backend_type = 'autovacuum worker' AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)
"""


def outlast_autovacuum():
    """Wait for its transactions that are open: those that begin later see all that has been committed by now."""
    eventually(lambda: not _at_work())


def _at_work():
    with connections["postgresql"].cursor() as cursor:
        cursor.execute(_AT_WORK)
        return cursor.fetchall()
