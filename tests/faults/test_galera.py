"""Torture on a Galera cluster, with workers on different nodes: nothing is lost, nothing overlaps, limits hold."""

from __future__ import annotations

import shutil

import pytest

from tests.faults.galera_faults import PROVIDER
from tests.faults.judged import holds
from tests.missing import missing

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(300)]


def test_everything_holds_while_nodes_leave_and_join_and_are_cut_off(mariadb):
    if not PROVIDER.exists() or shutil.which("rsync") is None:
        missing("galera")
    report = holds("tests.faults.galera_faults", "in_turn", "--rate", "200")
    assert report["refused"] > 0  # by the one that is left of three
