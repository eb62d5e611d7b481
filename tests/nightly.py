"""What each run of CI leaves to `.ci/nightly`."""

from __future__ import annotations

import pytest


def few_of(values, few):
    """All values, as parameters of a test; those that are not among the few wait for the night."""
    assert set(few) <= set(values)
    return [value if value in few else pytest.param(value, marks=pytest.mark.nightly) for value in values]
