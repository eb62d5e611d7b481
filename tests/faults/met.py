"""Rare branches: which of them the schedules have met, and how often."""

from __future__ import annotations

from collections import Counter

#: By their names.
MET = Counter()


def sometimes(what, holds=True):
    """It is to be met in some schedules, though in no certain one."""
    MET[what] += bool(holds)
