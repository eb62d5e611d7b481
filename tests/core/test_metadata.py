"""What delayedq keeps in the metadata of a message leaves that of the task as it was."""

from __future__ import annotations

import json
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from delayedq.core.metadata import DEADLINE, EXPIRES, PREFIX, as_given, own, stored_duration, with_own

NAMES = st.text().filter(lambda name: not name.startswith(PREFIX))
METADATA = st.none() | st.dictionaries(NAMES, st.integers() | st.text(), min_size=1).map(json.dumps)


@given(METADATA, st.integers(1, 10**9))
def test_own_values_come_and_go(metadata, seconds):
    both = with_own(metadata, {EXPIRES: seconds})
    assert (own(both, EXPIRES), own(both, DEADLINE)) == (seconds, None)
    rest = as_given(both)
    assert (json.loads(rest) if rest else None) == (json.loads(metadata) if metadata else None)


@given(METADATA)
def test_without_own_values_nothing_changes(metadata):
    assert with_own(metadata, {}) is metadata
    assert as_given(metadata) is metadata
    assert own(metadata, EXPIRES) is None


def test_a_duration_that_is_not_stored_is_that_of_the_task():
    hour = timedelta(hours=1)
    assert stored_duration(None, EXPIRES, hour) == hour
    assert stored_duration(with_own(None, {EXPIRES: 60.0}), EXPIRES, hour) == timedelta(minutes=1)
