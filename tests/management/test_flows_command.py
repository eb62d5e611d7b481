"""`manage.py delayedq explain flow:ID`."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from delayedq import chain
from tests.app import tasks


def said(*arguments):
    out = StringIO()
    call_command("delayedq", *arguments, stdout=out)
    return out.getvalue()


def test_it_says_what_each_step_waits_for(alias):
    flow = chain(tasks.nothing.s(), tasks.nothing.s()).enqueue()
    assert said("explain", f"flow:{flow.id}").splitlines() == [
        "1 nothing: running",
        "  1 of its 1 messages have not ended.",
        "2 nothing: waiting",
        "  It waits for 1 nothing.",
    ]


@pytest.mark.parametrize("name", ["flow:4711", "flow:a"])
def test_an_unknown_flow_is_an_error(alias, name):
    with pytest.raises(CommandError, match="There is no flow"):
        said("explain", name)
