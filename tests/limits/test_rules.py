"""How a message says which channel it is in."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayedq.core.bounds import check_channel
from delayedq.core.metadata import PREFIX, as_given
from delayedq.limits.rules import channel_id, channel_of, has_channel_only, with_channel
from delayedq.sql.priority import LIMITED, is_limited, shown_priority

NAMES = st.text().filter(lambda name: not name.startswith(PREFIX))
METADATA = st.none() | st.dictionaries(NAMES, st.integers() | st.text(), min_size=1).map(json.dumps)


@settings(deadline=None)
@given(METADATA, st.text(max_size=200))
def test_a_channel_travels_in_the_metadata_and_leaves_it_as_it_was(metadata, channel):
    both = with_channel(metadata, channel)
    assert channel_of(both) == channel
    rest = as_given(both)
    assert (json.loads(rest) if rest else None) == (json.loads(metadata) if metadata else None)


@settings(deadline=None)
@given(METADATA, st.text(max_size=200))
def test_metadata_that_say_more_are_never_taken_for_a_channel_alone(metadata, channel):
    both = with_channel(metadata, channel)
    assert not has_channel_only(both) or json.loads(both) == json.loads(with_channel(None, channel))
    assert has_channel_only(with_channel(None, "acme"))


@settings(deadline=None)
@given(METADATA)
def test_metadata_without_a_channel_stay_as_they_are(metadata):
    assert channel_of(metadata) is None
    assert as_given(metadata) is metadata


@settings(deadline=None)
@given(st.integers(-100, 100))
def test_a_priority_is_shown_as_it_was_given(priority):
    assert not is_limited(priority)
    assert is_limited(priority - LIMITED)
    assert shown_priority(priority) == shown_priority(priority - LIMITED) == priority


def test_names_that_run_into_each_other_are_different_channels():
    ids = {
        channel_id("ab", "c", ""),
        channel_id("a", "bc", ""),
        channel_id("a", "b", "c"),
        channel_id("a", "b", '","c'),
    }
    assert len(ids) == 4
    assert all(0 <= id_ < 2**63 for id_ in ids)


@pytest.mark.parametrize("name", [None, 7, "x" * 201, "a\0", "\ud800"])
def test_what_is_no_channel_is_refused(name):
    with pytest.raises(ValueError, match="at most 200 characters"):
        check_channel(name)
