"""Sizes of messages are checked when a flow is stored, and never when it goes on."""

from __future__ import annotations

from datetime import timedelta

import pytest

from delayedq import chain
from delayedq.exceptions import PayloadTooLarge
from tests.app import lifecycle, tasks
from tests.flows.given import fails, run


def test_sizes_are_checked_with_what_the_flow_adds(alias, settings):
    settings.DELAYEDQ = {"MAX_PAYLOAD_BYTES": 100}
    large = tasks.nothing.using(metadata={"x": "y" * 40})
    chain(tasks.nothing.s(), large.s()).enqueue()
    with pytest.raises(PayloadTooLarge):
        chain(tasks.nothing.s(), large.s()).enqueue(deadline=timedelta(hours=1))
    object.__setattr__(lifecycle.failed, "metadata", {"x": "y" * 100})
    try:
        with pytest.raises(PayloadTooLarge):
            chain(tasks.nothing.s()).enqueue(on_failure=lifecycle.failed)
    finally:
        object.__setattr__(lifecycle.failed, "metadata", None)


def test_what_was_stored_is_released_also_if_less_is_allowed_now(alias, settings):
    result = chain(tasks.nothing.s(), tasks.nothing.si("x" * 500), fails("bad")).enqueue(on_failure=lifecycle.failed)
    settings.DELAYEDQ = {"MAX_PAYLOAD_BYTES": 10}
    assert run() == ["succeeded", "succeeded", "failed", "succeeded"]
    assert result.state == "failed"
