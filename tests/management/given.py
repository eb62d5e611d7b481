"""Steps of the tests of `manage.py delayedq cron`: schedules, the command, and the rows of its output."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from io import StringIO

from django.core.management import call_command

#: The day before New York's clocks skip an hour: 10:20 there.
NOW = datetime(2026, 3, 7, 15, 20, tzinfo=UTC)
TASK = {"task": "tests.app.tasks.mark", "args": ["x"]}
REPORT = {**TASK, "cron": "30 2 * * *", "timezone": "America/New_York"}
SWEEP = {**TASK, "every": timedelta(minutes=15)}


def cron(*arguments, stdout=None, **options):
    out = stdout or StringIO()
    call_command("delayedq", "cron", *arguments, stdout=out, **options)
    return out.getvalue()


def rows(output):
    """The cells of each line below the header."""
    return [re.split(r"\s{2,}", line.strip()) for line in output.splitlines()[2:] if line.strip()]
