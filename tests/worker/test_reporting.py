"""Who stores the end of an attempt writes its last report first, and waits for no others."""

from __future__ import annotations

from delayedq.core.progress import checked
from delayedq.models import MessageProgress
from delayedq.worker import reporting
from tests.app import tasks
from tests.worker.attempts import attempt_of


def test_an_end_waits_for_no_progress_of_others(store):
    """Their write may take long, say because somebody has locked a row of theirs."""
    ending, other = attempt_of(tasks.remind, 7, id=4711), attempt_of(tasks.remind, 7, id=4712)
    ending.reported = checked(100, 100, "")
    with reporting._writing:
        reporting._being_written.add(other)
        try:
            reporting.write_last([ending], patience=3600.0)
        finally:
            reporting._being_written.clear()
    assert MessageProgress.objects.get().done == 100
