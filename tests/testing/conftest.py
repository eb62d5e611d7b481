"""For the tests of the test tools."""

from __future__ import annotations

import pytest
from django.db import transaction


@pytest.fixture
def in_test_case(alias):
    """Inside the transaction of a TestCase, on each database."""
    with transaction.atomic(using=alias):
        yield alias
        transaction.set_rollback(True, using=alias)
