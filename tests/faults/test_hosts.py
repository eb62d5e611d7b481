"""Torture with fleets on hosts of their own, whose clocks are wrong, or that are cut off: everything holds."""

from __future__ import annotations

import shutil

import pytest

from tests.faults.hosts_faults import FAULTS
from tests.faults.judged import holds
from tests.faults.partition_faults import FAULTS as PARTITIONS
from tests.missing import missing
from tests.nightly import few_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("fault", few_of(FAULTS, ["clocks"]))
def test_everything_holds_on_hosts_whose_clocks_are_wrong(fault, postgresql):
    if shutil.which("gcc") is None or shutil.which("ip") is None:
        missing("hosts")
    holds("tests.faults.hosts_faults", fault, as_root=True)


@pytest.mark.nightly
@pytest.mark.parametrize("fault", PARTITIONS)
def test_nothing_is_lost_while_a_primary_that_was_replaced_goes_on_out_of_reach(fault, postgresql):
    if shutil.which("ip") is None:
        missing("hosts")
    assert holds("tests.faults.partition_faults", fault, as_root=True)["in_vain"] > 0
