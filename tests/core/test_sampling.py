from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayedq.core.sampling import PARTS, sample, whole

SHARES = st.floats(0.0001, 2)

QUICK = settings(max_examples=100, deadline=None)


@QUICK
@given(st.integers(-(10**15), 10**15), st.integers(0, 10**12), SHARES)
def test_slices_rise_within_their_range_and_never_overlap(first, length, share):
    ends = [end for part in sample(first, first + length, share).slices for end in part]

    assert ends == sorted(ends)
    assert first <= ends[0]
    assert ends[-1] <= first + length


@QUICK
@given(st.integers(10 * PARTS, 10**12), st.floats(0.0001, 0.99))
def test_the_scale_is_what_the_slices_leave_out(length, share):
    part = sample(0, length, share)

    assert sum(high - low for low, high in part.slices) * part.scale == pytest.approx(length)


@QUICK
@given(st.integers(100 * PARTS, 10**12), st.floats(0.1, 0.9))
def test_a_share_is_about_the_share_that_was_asked_for(length, share):
    assert 1 / sample(0, length, share).scale == pytest.approx(share, rel=0.1)


def test_a_range_that_is_short_is_read_as_a_whole():
    assert sample(5, 5 + PARTS, 0.01) == whole(5, 5 + PARTS)
    assert whole(5, 9).is_whole
    assert whole(5, 9).estimate(3) == 3


def test_what_repeats_in_step_with_the_parts_is_neither_always_hit_nor_always_missed():
    part = sample(0, 60 * PARTS, 0.1)

    hits = sum(1 for low, high in part.slices if low % 60 <= 30 < high % 60)
    assert 0.05 * PARTS < hits < 0.15 * PARTS
